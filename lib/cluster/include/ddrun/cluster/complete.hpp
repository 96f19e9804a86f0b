#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/cluster/detect.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cluster {

/// What the user set, by the option's long name ("nnodes"), and where ("--nnodes", "DDRUN_NNODES", "job.toml:3:1").
using Given = std::map<std::string, std::string, std::less<>>;

/// ddrun is the only one of its job, in a Slurm job of several nodes: it has to start its agents.
struct SlurmScript {
  int nodes = 0;
  bool in_step = false;  ///< inside of an interactive step, which holds the nodes' CPUs
};

struct Completion {
  std::vector<Evidence> evidence;    ///< as detected; what the user set counts instead
  std::vector<std::string> remarks;  ///< one line each, for -v
  std::optional<SlurmScript> start_agents;
};

/// Fills what the user did not set. With one machine the launch stays as it was. Fails where the job could only go
/// wrong; the message says what to write.
[[nodiscard]] Result<Completion> complete(LaunchSpec& spec, const Given& given, const Detected& detected);

/// How long a job may run so that its workers have their whole `grace` before a scheduler that ends the job at
/// `end_time` kills them, both in seconds since 1970. Schedulers send SIGTERM at that time and SIGKILL some time later;
/// 25 seconds are counted upon (Slurm's KillWait is 30 unless the administrator chose another). Nothing if that is
/// enough anyway, or if there is no time left in which anything could be done.
[[nodiscard]] std::optional<Milliseconds> time_before_end(std::int64_t end_time, std::int64_t now, Milliseconds grace);

}  // namespace ddrun::cluster
