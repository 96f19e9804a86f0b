#include "ddrun/agent/agent.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/startup_pages.hpp"
#include "ddrun/topology/cpus.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "death_reason.hpp"
#include "event_log.hpp"
#include "group_machine.hpp"
#include "job.hpp"
#include "job_commands.hpp"
#include "job_mpi.hpp"
#include "job_preload.hpp"
#include "job_record.hpp"
#include "job_signals.hpp"
#include "participant.hpp"
#include "readiness.hpp"
#include "stack_pages.hpp"
#include "takedown.hpp"
#include "watchdog.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

namespace {

namespace asio = boost::asio;

GroupMachine::Rules machine_rules(const Job& job) {
  const LaunchSpec& spec = job.spec;
  GroupMachine::Rules rules{spec.restart, spec.stop, spec.exit_skew, spec.timeout.value_or(Milliseconds{0})};
  rules.several_machines = spec.rendezvous.several_machines();
  rules.runs_coordinator = [&job] { return job.rendezvous->runs_coordinator(); };
  if (!spec.has_several_programs()) return rules;
  rules.name_workers = [&job](const std::set<int>& slots) {
    std::vector<RankName> names;
    for (const int slot : slots) names.push_back(job.rank_name(slot));
    return name_workers(names);
  };
  return rules;
}

bool is_terminal(int fd, dev_t terminal) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISCHR(info.st_mode) && info.st_rdev == terminal;
}

logs::OutputOptions output_options(const Job& job, std::function<void()> on_first_output) {
  logs::OutputOptions options;
  options.on_first_output = std::move(on_first_output);
  options.log = job.spec.log;
  const bool several = job.spec.rendezvous.several_machines();
  if (several && options.log.label == Label::automatic) options.log.label = Label::host;
  options.programs = job.spec.programs;
  options.places = job.prepared.places;
  options.run_id = job.rendezvous->run_id();
  options.hostname = job.prepared.hostname;
  if (const dev_t terminal = input_terminal(job.spec); terminal != 0 && is_terminal(STDOUT_FILENO, terminal)) {
    options.input_rank = job.spec.stdin_.rank;
    ::tcgetattr(STDIN_FILENO, &options.input_settings);
  }
  // What else is left of the job, or restarts, are worth going on for.
  options.closes_unread = !several && !job.spec.log.frames && job.spec.restart.max_restarts == 0 &&
                          job.spec.report_files.empty() && !job.spec.events_file &&
                          job.hooks.reports.ci == CiService::none;
  options.announce_private_directory = [shared = job.context.shared](const std::string& path) {
    return shared->set_private_directory(path);
  };
  return options;
}

/// What this machine does while not all of its workers run; empty: nothing that takes time.
std::string describe_wait(GroupState state, const Job& job, const JobCommands& commands, const Readiness& readiness) {
  if (commands.is_running()) return commands.describe_wait();
  if (state <= GroupState::rendezvous) return job.rendezvous->describe_wait();
  if (state == GroupState::serving) return concat("waits for ", readiness.describe(), " to be ready");
  if (state != GroupState::preparing || job.prepared.preloading() == nullptr) return {};
  return concat("imports ", join(job.prepared.preloading()->command.preload, ", "), " (--preload)");
}

/// A round after the first, or one whose size was open: who takes part, as machines come and go and ranks change.
void announce_round(const Job& job) {
  const RendezvousSpec& rendezvous = job.spec.rendezvous;
  const RankAssignment& ranks = job.ranks;
  if (!rendezvous.several_machines() || (ranks.round == 1 && rendezvous.min_nodes == rendezvous.max_nodes)) return;
  std::vector<int> here(static_cast<std::size_t>(ranks.local_world_size));
  std::iota(here.begin(), here.end(), ranks.base_rank);
  say(Level::notice, concat("round ", ranks.round, ": ", counted(ranks.node_count, "machine"), " (", ranks.hosts, "), ",
                            counted(ranks.world_size, "worker"), "; here ", name_ranks(here)));
}

/// Of the workers of the present round, by program.
Result<std::vector<worker_env::WorkerEnvironment>> make_environments(const Job& job, const logs::Output& output,
                                                                     const worker_env::WorkerFacts& facts) {
  std::vector<worker_env::WorkerEnvironment> environments;
  for (std::size_t index = 0; index < job.spec.programs.size(); ++index) {
    const PreparedProgram& program = job.prepared.programs[index];
    worker_env::WorkerFacts of_program = facts;
    const int to_slot = program.first_slot - program.first_local_rank;
    of_program.error_file = [&output, to_slot](int local_rank) { return output.error_file(to_slot + local_rank); };
    if (job.spec.has_several_programs()) of_program.seed_offset = to_slot;
    if (program.world != job.prepared.mpi_world) {
      of_program.pmi.reset();
      of_program.pmix.reset();
    }
    environments.push_back(TRY(worker_env::WorkerEnvironment::prepare(job.spec, program.command, job.world_ranks[index],
                                                                      job.prepared.parent, of_program)));
  }
  return environments;
}

/// Returns memory that a burst of output or a reading has used, later each time, so that regular output wakes this
/// process once and not twice.
class MemoryTrim : public Participant {
 public:
  MemoryTrim(asio::any_io_executor executor, logs::Output& output) : output_(output), timer_(std::move(executor)) {}

  void begin_attempt() override { delay_ = process::settle_time; }
  void trim_later() {
    timer_.set(Clock::now() + delay_, [this] {
      delay_ = std::min(2 * delay_, max_delay);
      output_.trim();
      process::drop_startup_pages();
    });
  }

 private:
  /// A job that writes a line each second has its memory trimmed at most this often.
  static constexpr Milliseconds max_delay{60'000};

  logs::Output& output_;
  Alarm timer_;
  Milliseconds delay_ = process::settle_time;
};

/// One machine links the latest logs: that of node rank 0, which is the coordinator's unless ranks were given or the
/// coordinator has no workers.
void announce_logs(const Job& job, const logs::Output& output) {
  const RankAssignment& ranks = job.ranks;
  const std::string dir = output.run_dir();
  if (dir.empty()) return;
  const bool first = ranks.node_rank == 0;
  const std::string where =
      ranks.node_count > 1 ? concat(" on node rank ", ranks.node_rank, "; each machine has its own") : "";
  // Only this line tells where a temporary directory is.
  say(first || !job.spec.log.dir ? Level::notice : Level::info, concat("logs: ", dir, where));
  if (!first) return;
  if (auto linked = output.link_latest(); !linked) {
    say(linked.error().code == Errc::invalid_argument ? Level::warning : Level::info, linked.error().message);
  }
}

/// The error files in it were read for the report.
void remove_private_directory(logs::Output& output) {
  if (output.remove_if_unused()) return;
  output.remove_error_files();
  if (!output.remove_if_unused())
    say(Level::notice, concat("workers have put files in ", output.root(), " that ddrun does not remove"));
}

/// From a service's success, in which main programs may end too: a trainer may have stopped its server.
constexpr Milliseconds service_margin{10'000};

/// Connects the state machine to the process: turns exits, messages and timers into events, and runs the actions.
class Agent : private Participant {
 public:
  /// Opens log directory, signals, workers' descriptors and timer file, in this order; fails as these do. `job` is
  /// borrowed. Like a Job, an Agent is never destroyed.
  static Result<Agent*> create(Job& job);

  /// Blocks until the job is over. Once.
  JobResult run();

 private:
  explicit Agent(Job& job);
  Result<void> open();

  void on_time_limit();
  void on_child_exit(const process::ChildEnd& end);
  /// By a rank's own word, or by how it left the MPI world.
  void on_rank_failure(int slot, int code, std::string what);
  void set_paused(bool still) override {
    for (Alarm* alarm : {&time_limit_, &skew_, &service_margin_}) alarm->set_paused(still);
  }
  void on_told(const rendezvous::RoundBegins& begins);
  void on_told(const rendezvous::StopOrder& stop);
  void on_told(const rendezvous::VerdictMessage& verdict);
  void on_told(const rendezvous::CoordinatorLost& lost) { dispatch(lost); }
  void on_told(const rendezvous::Log& log);
  void on_told(const rendezvous::PassSignal& pass) { group_.signal({pass.signal}); }
  void on_told(const rendezvous::Exchanged& part) {
    if (mpi_) mpi_->on_told(part);
  }
  void on_told(const rendezvous::Waiting&) {
    if (!machine_.job_is_ending()) record_.announce_restart();
  }

  void dispatch(const Event& event);
  void carry_out(const action::Join&);
  void carry_out(const action::Prepare&);
  void carry_out(const action::CancelPrepare& cancel) { steps_.cancel(cancel.signal); }
  void carry_out(const action::SpawnWorkers& spawn);
  void carry_out(const action::AwaitReady&) { readiness_.begin(); }
  void carry_out(const action::StartServiceMargin& ended);
  void carry_out(const action::ReadStacks& read);
  void carry_out(const action::SignalGroup& signal) {
    close_evidence();
    takedown_.signal(signal.signal);
    output_.read_file_tails();
  }
  void carry_out(const action::StartGrace& grace) { takedown_.start_grace(grace.duration); }
  void carry_out(const action::KillGroup&) {
    close_evidence();
    if (preload_) preload_->cancel_refill();
    takedown_.kill();
  }
  void carry_out(const action::CheckGone&) { takedown_.check_gone(); }
  void carry_out(const action::CloseOutput&);
  void carry_out(const action::StartSkew& skew) {
    skew_.set(Clock::now() + skew.duration, [this] { dispatch(event::SkewExpired{}); });
  }
  void carry_out(const action::Send& send) { job_.rendezvous->send(send.message); }
  void carry_out(const action::Abandon& abandon) { job_.rendezvous->abandon(abandon.why); }
  void carry_out(const action::Finish&);

  /// Before the first worker of an attempt: its log files and environments.
  Result<void> begin_spawn(int attempt);
  Result<void> spawn(Part part);
  /// Output from now on is a consequence of the stop, and no evidence of a cause.
  void close_evidence();
  void on_output_closed();
  void on_output_flushed();
  /// Completes the result and writes the reports, once.
  void publish_result();

  Job& job_;
  const LaunchSpec& spec_ = job_.spec;
  JobRecord& record_ = job_.record;
  process::JobCgroup job_cgroup_;  ///< none before open()
  logs::Output output_;
  process::ChildWatcher watcher_;
  std::unique_ptr<JobPreload> preload_;  ///< only with --preload
  WorkerGroup group_;
  GroupMachine machine_;
  Takedown takedown_;
  JobCommands commands_;
  MemoryTrim trim_;
  StackPages stacks_;
  Readiness readiness_;
  EventLog event_log_;
  std::optional<JobMpi> mpi_;         ///< only for MPI programs
  std::optional<Watchdog> watchdog_;  ///< only with TORCHELASTIC_ENABLE_FILE_TIMER
  StartSteps steps_;
  std::vector<Participant*> participants_;
  JobSignals signals_;
  Alarm time_limit_;
  Alarm skew_;
  Alarm service_margin_;
  std::vector<worker_env::WorkerEnvironment> environments_;  ///< of the attempt, by program
  std::deque<Action> actions_;
  bool running_actions_ = false;
  bool announced_logs_ = false;
  std::string announced_restart_;  ///< by the coordinator of several machines
  std::optional<JobResult> published_;
};

Agent::Agent(Job& job)
    : job_(job),
      output_(job.io.get_executor(), output_options(job, [this] { trim_.trim_later(); })),
      watcher_(
          job.io.get_executor(), [this](const process::ChildEnd& end) { on_child_exit(end); },
          [this] {
            takedown_.on_child_exit();
            commands_.check_gone();
          }),
      preload_(job.prepared.preloading() == nullptr ? nullptr
                                                    : std::make_unique<JobPreload>(job, output_, job_cgroup_)),
      group_(job.io.get_executor(), spec_, job.prepared, job.launcher, preload_ ? &preload_->spawner() : nullptr,
             watcher_, output_),
      machine_(machine_rules(job), job.prepared.workers(), job.prepared.services()),
      takedown_(job.io.get_executor(), group_, watcher_, machine_, job_cgroup_, *job.context.shared,
                [this](const Event& event) { dispatch(event); }),
      commands_(job, output_, watcher_, job_cgroup_),
      trim_(job.io.get_executor(), output_),
      stacks_(
          job, group_, output_, [this] { return describe_wait(machine_.state(), job_, commands_, readiness_); },
          [this] { trim_.trim_later(); },
          [this](const inspect::StackPage& page, bool finds_cause) {
            record_.set_stacks(page);
            if (finds_cause) {
              record_.find_culprits(page, job_.prepared, machine_.first_failure(), group_, output_);
            }
          }),
      readiness_(job, group_, [this](const Event& event) { dispatch(event); }),
      event_log_(spec_.event_log_handler, job.prepared,
                 spec_.rendezvous.standalone ? "c10d" : spec_.rendezvous.backend),
      participants_{this, &takedown_, &commands_, &trim_, &stacks_, &readiness_, &signals_},
      signals_({job, output_, watcher_, group_, commands_, machine_, participants_},
               [this](const Event& event) { dispatch(event); }),
      time_limit_(job.io.get_executor()),
      skew_(job.io.get_executor()),
      service_margin_(job.io.get_executor()) {
  steps_.add(commands_);
  if (preload_) {
    steps_.add(*preload_);
    participants_.push_back(preload_.get());
  }
}

Result<Agent*> Agent::create(Job& job) {
  auto* const agent = new Agent(job);
  auto opened = agent->open();
  if (opened) return agent;
  agent->output_.remove_if_unused();
  return tl::unexpected(opened.error());
}

Result<void> Agent::open() {
  TRY(output_.prepare());
  EventsFile& events_file = job_.events_file;
  if (events_file.is_same_file(STDERR_FILENO)) {
    events_file.redirect_to([this](std::string_view lines) { output_.console_line(lines); });
  } else if (events_file.is_same_file(STDOUT_FILENO)) {
    events_file.redirect_to([this](std::string_view lines) { output_.stdout_line(lines); });
  }
  TRY(watcher_.open());
  TRY(signals_.open());
  TRY(group_.check_descriptors());
  job_cgroup_ = process::await_job_cgroup(*job_.context.shared);
  if (job_.prepared.mpi.is_on()) {
    participants_.push_back(&mpi_.emplace(
        job_,
        [this](int local_rank, int code, std::string what) {
          on_rank_failure(job_.prepared.slot_of(job_.prepared.mpi_world, local_rank), code, std::move(what));
        },
        [this](std::string why) { dispatch(event::SpawnFailed{std::move(why)}); }));
    TRY(mpi_->open());
    if (StartStep* const step = mpi_->start_step()) steps_.add(*step);
  }
  auto path = timer_file_path(spec_, job_.prepared.parent);
  if (!path) return {};
  participants_.push_back(&watchdog_.emplace(job_.io.get_executor(), group_, record_));
  return watchdog_->open(std::move(*path));
}

// ---- what happens

void Agent::on_time_limit() {
  const GroupState state = machine_.state();
  if (state == GroupState::finished && commands_.stop_after("the time for it is up", exit_codes::timed_out)) return;
  if (state < GroupState::closing) {
    say(Level::info, concat("the time limit of ", format_duration(*spec_.timeout), " is up"));
  }
  dispatch(event::JobTimeout{});
  // After a success the console may take its time.
  if (machine_.verdict() != Verdict::success) signals_.bound_console_wait();
}

void Agent::on_child_exit(const process::ChildEnd& end) {
  Worker* worker = group_.record_exit(end);
  if (worker == nullptr) {
    takedown_.note_kills();
    commands_.on_child_exit(end);
    return takedown_.on_child_exit();  // of a start that was given up
  }
  output_.drain(worker->end.slot);
  WorkerEnd& ended = worker->end;
  ended.success = is_success(ended.status, spec_.restart);
  const bool is_mpi = mpi_ && job_.prepared.of(ended.slot).world == job_.prepared.mpi_world;
  if (is_mpi) mpi_->on_worker_exit(ended.local_rank, ended.success);
  ended.success = ended.success && !ended.declared;
  ended.stopped_by_ddrun = !ended.declared && takedown_.has_caused(ended.status);
  say(Level::info,
      concat(ended.name(), " (pid ", ended.pid, ") ", describe(ended.status), " after ", format_duration(ended.ran)));
  if (!ended.success && !ended.stopped_by_ddrun) {
    ended.shm = describe_shm(ended.status, output_.stderr_tail(ended.slot, 50));
  }
  event_log_.worker_ended(ended);
  if (machine_.verdict() == Verdict::launcher_failed) record_.correct_late_exit(ended);
  event::WorkerEnded event{ended.slot, ended.status};
  const GroupState state = machine_.state();
  const bool is_before_stop = state >= GroupState::starting && state <= GroupState::running;
  if (!ended.success && !machine_.first_failure() && is_before_stop) {
    record_.explain_kill(ended, job_.prepared);
    event.name = ended.rank_name();
    event.local_rank = ended.local_rank;
    event.pid = ended.pid;
    event.why = ended.why;
    if (state == GroupState::running && group_.alive_count() > 0 && job_.prepared.of(ended.slot).world) {
      event.hang = record_.describe_hang(*worker, group_, output_);
    }
    // On one machine the reason is not needed before all workers have ended.
    if (event.why.empty() && spec_.rendezvous.several_machines())
      event.why = JobRecord::describe_present_reason(*worker, output_);
  }
  dispatch(event);
  takedown_.on_child_exit();
}

void Agent::on_rank_failure(int slot, int code, std::string what) {
  WorkerEnd& rank = group_.workers()[static_cast<std::size_t>(slot)].end;
  if (rank.declared) return;
  rank.declared = DeclaredFailure{code, what, std::chrono::system_clock::now()};
  rank.success = false;
  say(Level::info, concat(rank.name(), " (pid ", rank.pid, ") ", what));
  dispatch(event::RankFailed{slot, rank.rank_name(), rank.local_rank, rank.pid, code, std::move(what)});
}

void Agent::on_told(const rendezvous::RoundBegins& begins) {
  on_told(rendezvous::Waiting{});
  job_.ranks = begins.ranks;
  job_.world_ranks = ranks_by_program(job_.prepared, begins.ranks, job_.rendezvous->store_ports());
  record_.begin_round(begins.round, begins.ranks);
  if (job_.hooks.on_round) job_.hooks.on_round();
  if (!machine_.job_is_ending()) announce_round(job_);
  dispatch(begins);
}

void Agent::on_told(const rendezvous::StopOrder& stop) {
  const bool restarts = stop.another_round && !machine_.job_is_ending();
  // On one machine the restart is reported with its reason, once that is known.
  announced_restart_ = restarts && spec_.rendezvous.several_machines() ? stop.why : "";
  if (!announced_restart_.empty()) say(Level::notice, announced_restart_);
  // A signal to ddrun on another machine.
  if (stop.signal != 0 && !restarts) signals_.bound_console_wait();
  dispatch(stop);
}

void Agent::on_told(const rendezvous::VerdictMessage& verdict) {
  record_.set_verdict(verdict, job_.rendezvous->runs_coordinator());
  dispatch(verdict);
}

void Agent::on_told(const rendezvous::Log& log) {
  switch (log.kind) {
    case rendezvous::LogKind::event: return job_.events_file.write_line(log.text);
    case rendezvous::LogKind::notice: return say(Level::notice, log.text);
    case rendezvous::LogKind::warning: return say(Level::warning, log.text);
    case rendezvous::LogKind::report: return record_.add_node_report(log);
  }
}

void Agent::dispatch(const Event& event) {
  for (auto& action : machine_.step(event)) actions_.push_back(std::move(action));
  if (std::exchange(running_actions_, true)) return;
  while (!actions_.empty()) {
    const Action action = std::move(actions_.front());
    actions_.pop_front();
    std::visit(
        [this](const auto& what) {
          if constexpr (requires { carry_out(what); }) carry_out(what);
          else stacks_.carry_out(what);
        },
        action);
  }
  running_actions_ = false;
}

// ---- what is done

void Agent::carry_out(const action::Join&) {
  job_.on_told = [this](const rendezvous::ToAgent& told) {
    std::visit(
        [this](const auto& what) {
          if constexpr (requires { on_told(what); }) on_told(what);
          else stacks_.on_told(what);
        },
        told);
  };
  job_.rendezvous->join();
  stacks_.open_socket_later();
}

void Agent::carry_out(const action::Prepare&) {
  if (spec_.rendezvous.several_machines()) {
    // The coordinator may have announced the restart before this node had found the reason.
    const std::string why = record_.describe_own_reason(announced_restart_);
    if (!why.empty()) say(Level::notice, concat("starting again after ", why));
  }
  for (Participant* one : participants_) one->begin_attempt();
  record_.begin_attempt(job_.prepared.workers());
  // On a tmpfs they would use up memory.
  if (!record_.result().attempts.empty()) output_.remove_error_files();
  group_.clear_workers();
  steps_.begin([this](std::optional<event::SpawnFailed> failure) {
    if (failure) dispatch(*failure);
    else dispatch(event::Prepared{});
  });
}

void Agent::carry_out(const action::SpawnWorkers& workers) {
  const bool is_first = group_.workers().empty();  // of the attempt
  if (is_first) record_.begin_spawn();
  Result<void> started = is_first ? check_ports(job_.prepared) : Result<void>();
  if (is_first && started) started = begin_spawn(workers.attempt);
  if (started) started = spawn(workers.part);
  if (!started) {
    return dispatch(event::SpawnFailed{started.error().message, exit_code(started.error().code)});
  }
  if (signals_.is_suspended()) group_.signal({SIGSTOP});  // workers started since
  if (preload_ && workers.part == Part::mains) preload_->on_workers_started();
  trim_.trim_later();
  dispatch(event::Spawned{workers.part});
  if (variable("DDRUN_WRONG_STEP") == "group") dispatch(event::Start{});
}

void Agent::carry_out(const action::StartServiceMargin& ended) {
  service_margin_.set(Clock::now() + service_margin, [this, slot = ended.slot] {
    group_.workers()[static_cast<std::size_t>(slot)].end.why =
        concat("a service has to run as long as the main programs, and they had not ended ",
               format_duration(service_margin), " later; let the last of them end it");
    on_rank_failure(slot, 1, "is a service and ended");
  });
}

Result<void> Agent::begin_spawn(int attempt) {
  const RankAssignment& ranks = job_.ranks;
  std::vector<int> ranks_by_slot;
  for (const WorkerPlace& place : job_.prepared.places) {
    ranks_by_slot.push_back(job_.ranks_of(job_.prepared.program_of(place)).rank_of(place.local_rank));
  }
  event_log_.attempt_started(job_.world_ranks);
  output_.set_hostname(ranks.host);
  TRY(output_.begin_attempt(attempt, ranks_by_slot));
  if (!std::exchange(announced_logs_, true)) announce_logs(job_, output_);
  worker_env::WorkerFacts facts;
  facts.version = job_.version;
  facts.attempt_dir = output_.attempt_dir();
  facts.job_tag = job_.rendezvous->run_id();
  facts.addresses = job_.prepared.addresses;
  if (watchdog_) {
    if (auto renewed = watchdog_->renew()) facts.timer_file = watchdog_->path();
    else say(Level::warning, concat(renewed.error().message, "; attempt ", attempt, " has no watchdog timers"));
  }
  facts.network = interface_variables(job_.spec, ranks.master_addr, job_.prepared.full_host);
  if (!facts.network.empty()) {
    say(Level::info, concat("network interface for workers: ", facts.network.front().second, " (",
                            facts.network.front().first, ")"));
  }
  if (mpi_) TRY(mpi_->begin_round(facts));
  environments_ = TRY(make_environments(job_, output_, facts));
  group_.begin_attempt(job_.world_ranks);
  job_cgroup_.renew();
  job_.launcher.set_child_cgroup(job_cgroup_.open_directory());
  say(Level::info, concat("starting ", counted(ranks.local_world_size, "worker"), ", attempt ", attempt, ", store at ",
                          ranks.master_addr, ":", ranks.master_port));
  return {};
}

Result<void> Agent::spawn(Part part) {
  const auto should_stop = [this] {
    job_.io.poll();
    takedown_.note_kills();
    return machine_.state() != GroupState::starting;
  };
  auto spawned = group_.spawn(part, environments_, should_stop, [this] { return takedown_.were_workers_killed(); });
  std::vector<std::pair<RankName, pid_t>> started;
  for (const Worker& worker : group_.workers()) {
    const bool is_in_part = job_.prepared.is_service(worker.end.slot) == (part == Part::services);
    if (worker.end.pid == 0 || !is_in_part) continue;
    event_log_.worker_started(worker.end);
    started.emplace_back(worker.end.rank_name(), worker.end.pid);
  }
  log_started(started, job_.prepared);
  return spawned;
}

void Agent::carry_out(const action::ReadStacks& read) {
  close_evidence();
  stacks_.async_show(read, [this] { dispatch(event::StacksRead{}); });
}

void Agent::close_evidence() {
  service_margin_.cancel();
  readiness_.cancel();
  if (record_.has_stop_begun()) return;
  output_.drain_all();
  record_.begin_stop();
}

void Agent::carry_out(const action::CloseOutput&) {
  takedown_.cancel();
  skew_.cancel();
  group_.input().stop();
  if (mpi_) mpi_->end_round();
  std::set<int> still_running;
  bool all_well = !takedown_.has_killed();
  for (const Worker& worker : group_.workers()) {
    all_well = all_well && worker.end.success;
    if (worker.child) still_running.insert(worker.end.slot);
  }
  // Settings that input().stop() has restored may be changed for the next attempt before the guard looks at them.
  if (!all_well && !group_.input().feeds_terminal()) job_.context.shared->request_terminal_restore();
  // The page tells the cause.
  const auto closed = [this] { stacks_.when_shown([this] { on_output_closed(); }); };
  output_.async_end_attempt(closed, std::move(still_running));
}

void Agent::on_output_closed() {
  output_.read_file_tails();
  record_.add_attempt(machine_, group_, output_, job_.prepared);
  // --report is usually given on every machine; on one machine the record has all workers already.
  const bool whole = spec_.rendezvous.several_machines() && !spec_.report_files.empty();
  dispatch(event::OutputClosed{record_.stopped_message(whole)});
}

void Agent::carry_out(const action::Finish&) {
  skew_.cancel();
  record_.set_verdict(machine_);
  if (!job_.rendezvous->runs_coordinator()) job_.events_file.write_line(record_.verdict_event());
  event_log_.job_ended(record_.result());
  if (mpi_ && !mpi_->was_used() && record_.result().verdict == Verdict::success && job_.ranks.node_rank == 0) {
    const MpiServing& mpi = job_.prepared.mpi;
    const std::string_view name = mpi.libpmix.empty() ? "PMI" : mpi.pmi ? "PMI or PMIx" : "PMIx";
    say(Level::warning, concat("no worker used ", name, ": ",
                               counted(job_.ranks_of(job_.mpi_program()).world_size, "separate world"), "?"));
  }
  const std::string& meets_by = job_.prepared.first().meets_by;
  if (record_.result().verdict == Verdict::success && !meets_by.empty() && job_.rendezvous->are_stores_unused()) {
    say(Level::notice, concat("note: ", meets_by, "…), but no rank connected to the store: all ", job_.ranks.world_size,
                              " ran alone; fine if they are independent, else ",
                              meets_by.ends_with("Accelerator(") ? "give --env ACCELERATE_USE_CPU=true, if on CPUs"
                                                                 : "see why they did not meet"));
  }
  const auto flush = [this] { output_.async_flush([this] { on_output_flushed(); }); };
  if (!commands_.start_after(flush)) return flush();
  // --after has no time limit, unless the job was cut short.
  const Verdict verdict = record_.result().verdict;
  const bool cut_short = verdict == Verdict::stopped_by_signal || verdict == Verdict::timed_out;
  if (cut_short) time_limit_.set(Clock::now() + spec_.stop.grace, [this] { on_time_limit(); });
}

void Agent::on_output_flushed() {
  // The report may wait some seconds for a reader; after the verdict the coordinator expects no heartbeat.
  if (!job_.rendezvous->runs_coordinator()) publish_result();
  job_.rendezvous->async_close([this] { job_.io.stop(); });
}

void Agent::publish_result() {
  if (published_) return;
  set_message_sink({});
  if (output_.close()) begin_new_line();
  job_.events_file.redirect_to({});
  say_text(job_.hooks.fold.ends);
  published_ = record_.finish(output_, job_.prepared);
  write_reports(*published_, job_.hooks.reports);
  if (published_->console_bytes_lost > 0) {
    job_.events_file.write_line(output_lost_event(published_->host, published_->console_bytes_lost));
  }
}

JobResult Agent::run() {
  if (spec_.report_bindings) {
    for (const auto& line : job_.prepared.bindings()) say(Level::notice, line);
  }
  if (spec_.timeout) time_limit_.set(record_.started_at() + *spec_.timeout, [this] { on_time_limit(); });
  set_message_sink([this](std::string_view line) { output_.console_line(line); });
  if (!job_.rendezvous->runs_coordinator()) job_.hooks.fold = {};
  say_text(job_.hooks.fold.begins);
  dispatch(event::Start{});
  job_.io.run();
  if (machine_.state() != GroupState::finished)
    record_.fail(concat("ddrun has no event to wait for, and the job is ", name(machine_.state()),
                        ": a system call that it needs is denied (seccomp, SELinux)"));
  set_message_sink({});
  for (Participant* one : participants_) one->close();
  publish_result();
  job_.events_file.finish();
  remove_private_directory(output_);
  return std::move(*published_);
}

}  // namespace

JobResult run_job(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                  const std::string& version, JobHooks hooks) {
  JobRecord record(spec);
  auto job = Job::create(spec, context, environment, version, hooks, record);
  auto agent = job ? Agent::create(**job) : tl::unexpected(job.error());
  if (agent) return (*agent)->run();
  JobResult& refused = record.result();
  refused.verdict = Verdict::launcher_failed;
  refused.message = agent.error().message;
  refused.launcher_code = exit_code(agent.error().code);
  write_reports(refused, hooks.reports);
  return std::move(refused);
}

}  // namespace ddrun::agent
