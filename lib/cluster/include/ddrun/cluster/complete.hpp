#pragma once

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

}  // namespace ddrun::cluster
