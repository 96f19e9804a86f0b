#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "ddrun/rendezvous/coordinator_options.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "job_state.hpp"

namespace ddrun::rendezvous {

/// Of a host name in JOIN.
inline constexpr std::size_t max_host_name_bytes = 255;

struct Rejection {
  Refused refused;
  std::string seen_from_here;  ///< the reason, for the machines that are there
};

/// Why this agent cannot take part in the job, whatever the members are; empty if it can. The first agent whose version
/// and identity are valid defines `job`: that of CoordinatorOptions::own_join if there is one, else the joining one.
[[nodiscard]] std::optional<Rejection> check_join(const Join& join, JobState& job, const CoordinatorOptions& options);

}  // namespace ddrun::rendezvous
