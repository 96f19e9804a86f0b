#include "cluster_place.hpp"

#include <time.h>
#include <unistd.h>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/topology/nproc.hpp"

using namespace ddrun;

namespace {

/// The scheduler ends the job, whatever ddrun does: workers should have had their grace time by then.
void heed_end(LaunchSpec& spec, const cluster::Fact<std::int64_t>& end) {
  const auto left = cluster::time_before_end(end.value, ::time(nullptr), spec.stop.grace);
  if (!left || (spec.timeout && *spec.timeout <= *left)) return;
  spec.timeout = left;
  const auto& rank = spec.rendezvous.node_rank;
  const bool says_it = !rank || *rank == 0;
  say(says_it ? Level::notice : Level::info,
      concat("the scheduler ends this job soon after ", format_duration(*left), " (", end.variable,
             "): workers are stopped then, as with --timeout"));
}

}  // namespace

Result<cluster::Completion> complete_place(cli::Launch& launch, const cluster::Detected& detected) {
  auto completion = cluster::complete(launch.spec, launch.given, detected);
  if (completion && detected.gpus && launch.spec.nproc.kind != NprocSpec::Kind::count) {
    topology::limit_gpus(launch.spec.nproc, detected.gpus->value,
                         topology::find_gpus(topology::GpuVariables::from_environment(), {}));
  }
  return completion;
}

Result<cluster::Detected> detect_place(const cli::Launch& launch, pid_t started_pid) {
  const Environment variables(environ);
  if (launch.env_detect == "none") return cluster::Detected{};
  if (launch.env_detect == "auto" && !cluster::worth_looking(variables)) return cluster::Detected{};
  cluster::Machine machine = cluster::this_machine();
  machine.pid = started_pid;
  return cluster::detect(variables, cluster::read_text_file, machine, launch.env_detect);
}

Result<ClusterPlace> find_place(cli::Launch& launch, pid_t started_pid) {
  auto detected = detect_place(launch, started_pid);
  if (!detected) return tl::unexpected(detected.error());
  auto completion = complete_place(launch, *detected);
  if (!completion) return tl::unexpected(completion.error());
  for (const std::string& remark : completion->remarks) say(Level::info, remark);
  if (detected->end_time && !completion->start_agents) heed_end(launch.spec, *detected->end_time);
  return ClusterPlace{std::move(*detected), std::move(*completion)};
}
