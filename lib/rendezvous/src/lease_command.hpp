#pragma once

#include <sys/types.h>

#include <functional>

#include "ddrun/lease/lease.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// The program of a job's lease. `on_program` as in RendezvousOptions.
[[nodiscard]] lease::ProgramOptions lease_command(const RendezvousSpec& spec, std::function<void(pid_t)> on_program);

}  // namespace ddrun::rendezvous
