// Detection of the job from the environment.

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "commands.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/topology/nproc.hpp"

namespace ddrun {

namespace {

/// Sets a timeout before the scheduler's end of the job, so that workers have their grace time.
void limit_to_job_end(LaunchSpec& spec, const cluster::Fact<std::int64_t>& end) {
  const auto left = cluster::time_before_end(end.value, ::time(nullptr), spec.stop.grace);
  if (!left || (spec.timeout && *spec.timeout <= *left)) return;
  spec.timeout = left;
  const auto& rank = spec.rendezvous.node_rank;
  const bool is_first_node = !rank || *rank == 0;
  say(is_first_node ? Level::notice : Level::info,
      concat("the scheduler ends this job soon after ", format_duration(*left), " (", end.variable,
             "): workers are stopped then, as with --timeout"));
}

}  // namespace

Result<cluster::Completion> complete_launch(cli::Launch& launch, const cluster::Detected& detected) {
  auto completion = TRY(cluster::complete(launch.spec, launch.given, detected));
  const bool is_spread = launch.spec.rendezvous.several_machines() || completion.start_agents;
  if (launch.spec.has_several_programs() && is_spread) {
    return fail(Errc::invalid_argument, std::string(cli::one_machine_only));
  }
  for (ProgramSpec& program : launch.spec.programs) {
    if (!detected.gpus || program.nproc.kind == NprocSpec::Kind::count) continue;
    topology::limit_gpus(program.nproc, detected.gpus->value,
                         topology::find_gpus(topology::GpuVariables::from_environment(), {}));
  }
  return completion;
}

Result<cluster::Detected> detect_environment(const cli::Launch& launch, pid_t started_pid) {
  const Environment variables(environ);
  if (launch.env_detect == "none") return cluster::Detected{};
  if (launch.env_detect == "auto" && !cluster::has_scheduler_variables(variables)) return cluster::Detected{};
  cluster::Machine machine = cluster::this_machine();
  machine.pid = started_pid;
  return cluster::detect(variables, cluster::read_text_file, machine, launch.env_detect);
}

void note_unused_gpus(const cli::Launch& launch, int gpu_limit) {
  const LaunchSpec& spec = launch.spec;
  const bool one = spec.first().nproc.kind == NprocSpec::Kind::count && spec.first().nproc.count == 1;
  if (!one || spec.has_several_programs() || launch.given.contains("nproc-per-node") ||
      spec.rendezvous.node_rank.value_or(0) != 0)
    return;
  if (::getenv("DDRUN_ROUND") != nullptr) return;  // started by a worker of another ddrun
  const int gpus = std::min(gpu_limit, topology::count_gpus(topology::GpuVariables::from_environment()));
  if (gpus < 2) return;
  say(Level::notice, concat("1 worker is started, ", gpus, " GPUs are visible: --nproc-per-node=gpu uses all"));
}

Result<DetectedCluster> detect_cluster(cli::Launch& launch, pid_t started_pid) {
  auto detected = TRY(detect_environment(launch, started_pid));
  auto completion = TRY(complete_launch(launch, detected));
  for (const std::string& remark : completion.remarks) say(Level::info, remark);
  if (detected.end_time && !completion.start_agents) limit_to_job_end(launch.spec, *detected.end_time);
  return DetectedCluster{std::move(detected), std::move(completion)};
}

}  // namespace ddrun
