#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/cluster/detect.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cluster {

/// The options that the user set, by long name ("nnodes"), and their source ("--nnodes", "DDRUN_NNODES",
/// "job.toml:3:1").
using GivenOptions = std::map<std::string, std::string, std::less<>>;

/// ddrun runs once, in the script of a Slurm job with several nodes, and has to start its agents.
struct SlurmScript {
  int nodes = 0;
  bool in_step = false;  ///< inside an interactive step, which holds the nodes' CPUs
};

struct Completion {
  std::vector<Evidence> evidence;    ///< as detected, with what overrides it
  std::vector<std::string> remarks;  ///< one line each, for -v
  std::optional<SlurmScript> start_agents;
};

/// Fills in what the user did not set. With one machine `spec` stays unchanged. Fails with `invalid_argument` where the
/// job could not work; the message gives the options to use.
[[nodiscard]] Result<Completion> complete(LaunchSpec& spec, const GivenOptions& given, const Detected& detected);

/// How long the job may run so that its workers have the whole `grace` before the scheduler kills them. `end_time` and
/// `now` are in seconds since 1970. Schedulers send SIGTERM at `end_time` and SIGKILL later; 25 s are assumed (Slurm's
/// default KillWait is 30 s). nullopt if that covers `grace`, or if no time is left.
[[nodiscard]] std::optional<Milliseconds> time_before_end(std::int64_t end_time, std::int64_t now, Milliseconds grace);

}  // namespace ddrun::cluster
