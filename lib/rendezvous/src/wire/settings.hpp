#pragma once

#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/coordinator_options.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// Of this machine's agent.
[[nodiscard]] JobSettings job_settings(const LaunchSpec& spec);

/// Settings of JOIN that must be equal on all agents (PROTOCOL.md, section 5), sorted by key.
[[nodiscard]] Settings join_settings(const LaunchSpec& spec, const std::string& mpi = {});

/// Errors: `invalid_argument`, naming the missing or invalid setting.
[[nodiscard]] Result<JobSettings> read_settings(const Settings& settings);

/// For agents without a job id: whether they run the same program.
[[nodiscard]] bool same_program(const Settings& ours, const Settings& theirs);

/// One sentence per difference, with both values, but not for the program; empty if there is none. `theirs` joins,
/// `ours` is the job's. For those there: "X is 2, but 1 there", or here: "X is 2 there, 1 here".
enum class Audience : bool { there, here };
[[nodiscard]] std::string describe_differences(const Settings& ours, const Settings& theirs, Audience audience);

}  // namespace ddrun::rendezvous
