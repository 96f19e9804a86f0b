#include "job.hpp"

#include <utility>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/worker_env/worker_environment.hpp"

namespace ddrun::agent {

namespace {

/// Descriptors reserved for ddrun, and for each worker's pipes, files, pidfd and connections to the store.
constexpr std::size_t own_descriptors = 64;
constexpr std::size_t descriptors_per_worker = 8;

/// What happens on other threads while this one may be blocked.
void connect_to_sweeper(rendezvous::RendezvousOptions& options, process::SharedState* shared) {
  options.on_lease_program = [shared](pid_t pid) { shared->helper_pid = pid; };
  options.kill_workers = [shared] {
    ++shared->link_kills;
    return process::kill_workers_without_reaping();
  };
  options.on_workers_until = [shared](const rendezvous::WorkersUntil& until) {
    constexpr process::OverdueWorkers::Clocks clocks[] = {process::OverdueWorkers::Clocks::none,
                                                          process::OverdueWorkers::Clocks::sight,
                                                          process::OverdueWorkers::Clocks::lead};
    auto& page = shared->overdue;
    const std::int64_t at = std::chrono::nanoseconds(until.at.time_since_epoch()).count();
    const bool is_earlier = at < page.sight_ns.exchange(at);
    page.interval_ns = std::chrono::nanoseconds(until.heartbeat).count();
    page.written_ns = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
    const auto clock = clocks[static_cast<int>(until.kind)];
    const bool begins = page.clock == process::OverdueWorkers::Clocks::none && clock != page.clock;
    if (begins) ++page.groups;
    page.clock = clock;
    if (begins || is_earlier) shared->wake_sweeper();
  };
  options.on_leads_until = [shared](lease::FenceClock::time_point until) {
    shared->overdue.lead_ns = until.time_since_epoch().count();
    shared->overdue.written_ns = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  };
}

rendezvous::RendezvousOptions rendezvous_options(const LaunchSpec& spec, const Preparation& prepared,
                                                 const std::string& version) {
  rendezvous::RendezvousOptions options;
  options.spec = &spec;
  options.local_world_size = prepared.workers();
  options.mpi = prepared.mpi.setting();
  options.host = prepared.hostname;
  options.full_host = prepared.full_host;
  options.version = version;
  options.with_store.clear();
  for (const PreparedProgram& program : prepared.programs) {
    if (!program.world || program.first_local_rank > 0) continue;  // the program of a world's rank 0 decides
    options.with_store.push_back(worker_env::uses_agent_store(spec, program.command, prepared.parent));
  }
  return options;
}

}  // namespace

Result<Job*> Job::create(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                         const std::string& version, JobHooks& hooks, JobRecord& record) {
  auto prepared = TRY(prepare(spec, environment));
  record.result().world_size = prepared.workers();
  record.result().host = prepared.hostname;
  for (const PreparedProgram& program : prepared.programs) {
    const ProgramSpec& command = program.command;
    record.result().programs.push_back(
        {command.role, command.name, program.workers, program.world, command.is_service});
  }

  auto launcher = TRY(process::Launcher::create());
  launcher.set_child_descriptor_limit(process::raise_descriptor_limit());
  process::reserve_descriptors(own_descriptors + descriptors_per_worker * prepared.places.size());
  EventsFile events_file;
  if (spec.events_file) TRY(events_file.open(*spec.events_file));

  rendezvous::RendezvousOptions options = rendezvous_options(spec, prepared, version);
  options.on_listening = hooks.on_listening;
  connect_to_sweeper(options, context.shared);
  bool weak_secret = false;
  if (hooks.secret) {
    options.secret = std::move(hooks.secret);
  } else if (spec.rendezvous.several_machines() && !spec.rendezvous.insecure) {
    auto found = TRY(rendezvous::find_or_make_secret(
        spec.rendezvous, [&](std::string_view name) { return prepared.parent.find(name); }));
    if (found.is_new) say(Level::notice, rendezvous::new_secret_message(found.file));
    weak_secret = !found.secret.looks_strong();
    options.secret = std::move(found.secret);
    options.secret_file = std::move(found.file);
  }
  auto io = TRY(make_io_context());
  auto* const job = new Job{
      spec,         context, hooks, record, version, std::move(prepared), std::move(launcher), std::move(events_file),
      *io.release()};
  job->rendezvous = rendezvous::make_rendezvous(job->io.get_executor(), std::move(options),
                                                [job](const rendezvous::ToAgent& told) { job->on_told(told); });
  TRY(job->rendezvous->open());
  // Once in the job, not on each machine.
  if (weak_secret && job->rendezvous->runs_coordinator()) say(Level::warning, rendezvous::weak_secret_message());
  record.result().run_id = job->rendezvous->run_id();
  return job;
}

std::string Job::label(std::string_view name) const {
  if (spec.log.label == Label::none) return {};
  const bool with_host = spec.rendezvous.several_machines() || spec.log.label == Label::host;
  return concat("[", with_host ? ranks.host + ":" : "", name, "] ");
}

Result<std::vector<std::string>> Job::environment_without(const std::set<std::string_view>& names,
                                                          const ProgramSpec& program,
                                                          const RankAssignment& of_round) const {
  LaunchSpec of_no_rank = spec;
  of_no_rank.seed.reset();
  ProgramSpec without_device = program;
  without_device.virtual_local_rank = false;
  worker_env::WorkerFacts facts;
  facts.version = version;
  facts.job_tag = rendezvous->run_id();
  auto environment = worker_env::worker_environment(of_no_rank, without_device, of_round, 0, prepared.parent, facts);
  if (environment) {
    std::erase_if(*environment, [&](const std::string& entry) { return names.count(entry_name(entry)) != 0; });
  }
  return environment;
}

}  // namespace ddrun::agent
