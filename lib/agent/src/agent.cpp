#include "ddrun/agent/agent.hpp"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <deque>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "atomic_file.hpp"
#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signals.hpp"
#include "ddrun/topology/cpus.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "death_reason.hpp"
#include "event_log.hpp"
#include "group_machine.hpp"
#include "host_command.hpp"
#include "job_member.hpp"
#include "job_record.hpp"
#include "network_interface.hpp"
#include "preparation.hpp"
#include "takedown.hpp"
#include "watchdog.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

namespace {

namespace asio = boost::asio;

/// How long the console may take nothing when a process of ours was killed, or the user has lost patience.
constexpr std::chrono::seconds hurried_end{1};

/// Room for this many is made at once: for ourselves, and for each worker's pipes, files, pidfd and connections to the
/// store.
constexpr std::size_t own_descriptors = 64;
constexpr std::size_t descriptors_per_worker = 8;

std::string name_sender(pid_t sender) {
  if (sender <= 0) return {};
  const std::string name = process::process_name(sender);
  return name.empty() ? concat("pid ", sender) : concat("pid ", sender, " (", name, ")");
}

/// Connects the state machine with the world: turns what happens into events, carries out the actions.
class Agent {
 public:
  Agent(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment, std::string version,
        JobHooks hooks)
      : spec_(spec),
        hooks_(std::move(hooks)),
        shared_(context),
        environment_(environment),
        version_(std::move(version)),
        record_(spec),
        watcher_(
            io_.get_executor(), [this](const process::ChildEnd& end) { worker_ended(end); },
            [this] {
              takedown_->somebody_ended();
              if (command_) command_->check_gone();
            }),
        signals_(io_.get_executor(), context,
                 {[this](const process::SignalMessage& message) { signal_arrived(message); },
                  [this](pid_t first) { watcher_.reap(first); },
                  [this](const char* who, pid_t pid) { parent_lost(who, pid); }}),
        time_limit_(io_.get_executor()),
        skew_(io_.get_executor()),
        background_look_(io_.get_executor()) {}

  JobResult run();

 private:
  Result<void> set_up();
  Result<void> open_rendezvous();
  void signal_arrived(const process::SignalMessage& message);
  /// Ctrl-Z: workers and clocks stand still; SIGCONT: they go on.
  void suspend(bool still);
  /// While the job is in the background, as the kernel does with its own jobs: what reads from the terminal is stopped.
  void hold_readers();
  void signal_held(int number) const;
  void worker_ended(const process::ChildEnd& end);
  void parent_lost(const char* who, pid_t pid);
  void time_is_up();
  /// From now on the console is waited for only while it takes something.
  void hurry() { output_->set_flush_timeout(hurried_end); }
  void signal_arrived_late(const std::string& what, bool at_once);

  void dispatch(const Event& event);
  void act();
  void carry_out(const action::SpawnWorkers& spawn);
  void carry_out(const action::SignalGroup& signal) {
    evidence_ends();
    takedown_->signal(signal.signal);
    output_->read_file_tails();
  }
  void carry_out(const action::StartGrace& grace) { takedown_->start_grace(grace.duration); }
  void carry_out(const action::KillGroup&) {
    evidence_ends();
    takedown_->kill();
  }
  void carry_out(const action::CheckGone&) { takedown_->check_gone(); }
  void carry_out(const action::CloseOutput&);
  void carry_out(const action::StartSkew& skew);
  void carry_out(const action::Finish&);
  void carry_out(const action::Join&) { member_->join(); }
  void carry_out(const action::TellFailed& failed);
  void carry_out(const action::TellSucceeded& succeeded) { member_->tell(succeeded); }
  void carry_out(const action::TellStopped& stopped);
  void carry_out(const action::TellLeave& leave) { member_->tell(leave); }
  void carry_out(const action::TellAbort& abort) { member_->tell(abort); }
  void carry_out(const action::Abandon& abandon) { member_->abandon(abandon.why); }
  /// What workers write from now on, they write because they are stopped.
  void evidence_ends();
  void all_is_written();
  void remove_private_directory();
  /// The result is complete, and told.
  void settle();

  // --before and --after
  [[nodiscard]] bool command_runs() const { return command_ && command_->is_running(); }
  Result<void> start_command(std::string_view name, const std::string& command,
                             const std::vector<std::pair<std::string, std::string>>& variables,
                             HostCommand::OnEnd on_end);
  void before_ended(int attempt, CommandEnd end);
  /// False: there is none, or nothing has been started on this machine.
  bool start_after();
  void after_ended(const CommandEnd& end, const std::string& private_report);
  void stop_after(const std::string& why, int code);

  void spawn_workers(int attempt);
  Result<void> start_workers(int attempt);
  void output_closed();

  const LaunchSpec& spec_;
  JobHooks hooks_;
  process::AgentContext& shared_;
  const char* const* environment_;
  std::string version_;
  Preparation prepared_;
  JobRecord record_;
  Clock::time_point attempt_started_at_;

  asio::io_context io_{1};
  std::unique_ptr<process::Launcher> launcher_;
  process::JobCgroup job_cgroup_;
  process::ChildWatcher watcher_;
  process::SignalReceiver signals_;
  Alarm time_limit_;
  Alarm skew_;
  std::unique_ptr<logs::Output> output_;
  std::unique_ptr<JobMember> member_;
  EventsFile events_file_;
  std::unique_ptr<WorkerGroup> group_;
  std::unique_ptr<GroupMachine> machine_;
  std::unique_ptr<EventLog> events_;
  std::unique_ptr<Takedown> takedown_;
  std::unique_ptr<Watchdog> watchdog_;    ///< null: not asked for
  std::unique_ptr<HostCommand> command_;  ///< null: there was none yet
  bool before_is_done_ = false;
  std::string after_stopped_by_;  ///< empty: it was not
  int after_stopped_code_ = 0;    ///< the exit code then

  std::optional<JobResult> ended_;

  std::deque<Action> actions_;
  bool acting_ = false;
  bool suspended_ = false;  ///< by Ctrl-Z
  dev_t terminal_ = 0;      ///< from which a worker reads; 0: none
  Alarm background_look_;
  std::set<pid_t> held_;  ///< process groups that are stopped as they would read in the background
  bool is_folded_ = false;
};

// ---- set-up

Result<void> Agent::set_up() {
  auto prepared = prepare(spec_, environment_);
  if (!prepared) return tl::unexpected(prepared.error());
  prepared_ = std::move(*prepared);
  record_.result().world_size = prepared_.local_world_size;
  record_.result().host = prepared_.hostname;

  auto launcher = process::Launcher::create();
  if (!launcher) return tl::unexpected(launcher.error());
  launcher_ = std::make_unique<process::Launcher>(std::move(*launcher));
  launcher_->set_child_descriptor_limit(process::raise_descriptor_limit());
  process::reserve_descriptors(own_descriptors +
                               descriptors_per_worker * static_cast<std::size_t>(prepared_.local_world_size));

  if (spec_.events_file) {
    if (auto opened = events_file_.open(*spec_.events_file); !opened) return opened;
  }
  if (auto found = open_rendezvous(); !found) return found;
  record_.result().run_id = member_->run_id();

  logs::OutputOptions options;
  options.log = spec_.log;
  if (spec_.rendezvous.several_machines() && options.log.label == Label::automatic) options.log.label = Label::host;
  options.role = spec_.role;
  options.run_id = member_->run_id();
  options.hostname = prepared_.hostname;
  options.local_world_size = prepared_.local_world_size;
  options.announce_private_directory = [shared = shared_.shared](const std::string& path) {
    return shared->set_private_directory(path);
  };
  output_ = std::make_unique<logs::Output>(io_.get_executor(), std::move(options));
  if (auto ready = output_->prepare(); !ready) return ready;
  if (events_file_.same_place(STDERR_FILENO)) {
    events_file_.share([this](std::string_view lines) { output_->console_line(lines); });
  } else if (events_file_.same_place(STDOUT_FILENO)) {
    events_file_.share([this](std::string_view lines) { output_->stdout_line(lines); });
  }

  if (auto opened = watcher_.open(); !opened) return opened;
  if (auto opened = signals_.open(spec_.stop.ending_signals, spec_.stop.grace); !opened) return opened;

  group_ = std::make_unique<WorkerGroup>(io_.get_executor(), spec_, prepared_, *launcher_, watcher_, *output_);
  if (auto enough = group_->check_descriptors(); !enough) return enough;
  GroupMachine::Rules rules{spec_.restart, spec_.stop, spec_.exit_skew, spec_.timeout.value_or(Milliseconds{0}),
                            [this] { return member_->runs_coordinator(); }};
  machine_ = std::make_unique<GroupMachine>(std::move(rules), prepared_.local_world_size);
  takedown_ = std::make_unique<Takedown>(io_.get_executor(), *group_, watcher_, *machine_, job_cgroup_,
                                         [this](const Event& event) { dispatch(event); });
  events_ = std::make_unique<EventLog>(spec_.event_log_handler, spec_.role, prepared_.hostname,
                                       spec_.rendezvous.standalone ? "c10d" : spec_.rendezvous.backend);
  struct stat input {};
  if (spec_.stdin_.kind == StdinSpec::Kind::rank && ::isatty(STDIN_FILENO) != 0 && ::fstat(STDIN_FILENO, &input) == 0) {
    terminal_ = input.st_rdev;
  }
  job_cgroup_ = process::await_job_cgroup(*shared_.shared);
  if (auto path = wanted_timer_file(spec_, prepared_.parent)) {
    watchdog_ = std::make_unique<Watchdog>(io_.get_executor(), *group_, record_);
    return watchdog_->open(std::move(*path));
  }
  return {};
}

Result<void> Agent::open_rendezvous() {
  JobMember::Options options;
  options.spec = &spec_;
  options.prepared = &prepared_;
  options.record = &record_;
  options.events = &events_file_;
  options.version = version_;
  options.hooks = &hooks_;
  options.on_lease_program = [shared = shared_.shared](pid_t pid) { shared->helper_pid = pid; };
  options.kill_workers = process::kill_workers_without_reaping;
  options.on_signal = [this](int signal) { group_->signal(signal); };
  options.with_store = worker_env::uses_agent_store(spec_, prepared_.parent);
  member_ = std::make_unique<JobMember>(io_.get_executor(), std::move(options),
                                        [this](const Event& event) { dispatch(event); });
  return member_->open();
}

// ---- what happens

void Agent::signal_arrived(const process::SignalMessage& message) {
  const int signal = message.signal;
  if (signal == SIGSTOP || (signal == SIGCONT && suspended_)) return suspend(signal == SIGSTOP);
  if (signal == SIGCONT) hold_readers();
  if (spec_.stop.ending_signals.count(signal) == 0) {
    if (signal == SIGWINCH) output_->screen_resized();
    const bool to_all = spec_.rendezvous.signals_to_all && (signal == SIGUSR1 || signal == SIGUSR2);
    say(Level::info,
        concat("passing ", signal_name(signal), to_all ? " to the workers of all machines" : " to the workers"));
    if (to_all) member_->pass_signal(signal);
    else group_->signal(signal);
    return;
  }
  const State state = machine_->state();
  const std::string from = name_sender(message.sender);
  const event::EndingSignal ending{signal, from, message.at_once};
  const std::string what = signal_name(signal) + (from.empty() ? "" : " from " + from);
  if (machine_->ending_signal() != 0 && !message.at_once) {
    say(Level::info, concat(what, ": the job is being ended already"));
    return;
  }
  if (suspended_) suspend(false);
  if (command_runs()) {
    if (message.at_once) {
      command_->stop(SIGKILL);
      hurry();
    }
    if (state == State::finished) return stop_after(what, exit_codes::signal_base + signal);
    say(Level::notice, concat(what, ": stopping --before (SIGKILL after ", format_duration(spec_.stop.grace),
                              ", or at once if you repeat it)"));
    return dispatch(ending);
  }
  if (state == State::closing || state == State::finished) {
    dispatch(ending);
    return signal_arrived_late(what, message.at_once);
  }
  if (machine_->ending_signal() != 0) {
    say(Level::notice, concat(what, " again: killing all workers"));
  } else if (group_->living() > 0) {
    say(Level::notice, concat(what, ": stopping ", counted(group_->living(), "worker"), " (SIGKILL after ",
                              format_duration(spec_.stop.grace), ", or at once if you repeat it)"));
  } else if (state == State::stopping && (signal == SIGINT || signal == SIGQUIT)) {
    say(Level::notice, concat(what, ": killing what the workers have left"));
  }
  dispatch(ending);
}

void Agent::suspend(bool still) {
  suspended_ = still;
  // A read that Ctrl-Z interrupted must not go on in the background.
  if (!still) hold_readers();
  group_->signal(still ? SIGSTOP : SIGCONT, held_);
  if (command_) command_->set_paused(still);
  for (Alarm* alarm : {&time_limit_, &skew_}) alarm->set_paused(still);
  takedown_->set_paused(still);
  member_->set_paused(still);
  if (watchdog_) watchdog_->set_paused(still);
  shared_.shared->set_suspended(still);
}

void Agent::signal_held(int number) const {
  for (const auto& info : process::workers_and_their_descendants()) {
    if (held_.count(info.group) != 0) process::signal_descendant(info, number);
  }
}

void Agent::hold_readers() {
  if (terminal_ == 0 || suspended_) return;
  if (!process::job_is_in_background()) {
    signal_held(SIGCONT);
    held_.clear();
    return;
  }
  const bool held_before = !held_.empty();
  bool runs = false;
  if (!machine_->taking_down()) {
    for (const auto& reader : process::readers_of_terminal(terminal_)) {
      held_.insert(reader.group);
      runs = runs || reader.state != 'T';
    }
  }
  if (runs) signal_held(SIGSTOP);
  if (!held_.empty() && !held_before) {
    say(Level::notice, concat("rank ", spec_.stdin_.rank, " is stopped: it reads from the terminal, which another job ",
                              "of the shell has; in the foreground ('fg') it goes on"));
  }
  background_look_.set(Clock::now() + background_interval, [this] { hold_readers(); });
}

void Agent::parent_lost(const char* who, pid_t pid) {
  if (suspended_) suspend(false);
  hurry();
  if (command_runs()) command_->stop(SIGTERM);
  dispatch(event::ParentLost{concat("ddrun's own ", who, " (pid ", pid, ") was killed; the job was stopped")});
}

/// Nothing is left but output that has not been taken.
void Agent::signal_arrived_late(const std::string& what, bool at_once) {
  if (machine_->state() == State::finished && output_->is_flushed()) return io_.stop();
  if (at_once) return output_->abort_flush();
  say(Level::notice, concat(what, ": ending as soon as nobody reads the output for ", format_duration(hurried_end),
                            ", or at once if you repeat it"));
  hurry();
}

void Agent::time_is_up() {
  if (command_runs() && machine_->state() == State::finished) {
    return stop_after("the time for it is up", exit_codes::timed_out);
  }
  if (machine_->state() != State::closing && machine_->state() != State::finished) {
    say(Level::info, concat("the time limit of ", format_duration(*spec_.timeout), " is up"));
  }
  dispatch(event::JobTimeout{});
  // The output of a job that went well is worth as much time as its reader wants.
  if (machine_->verdict() != Verdict::success) hurry();
}

void Agent::worker_ended(const process::ChildEnd& end) {
  Worker* worker = group_->take_end(end);
  if (worker == nullptr) {
    if (command_) command_->take_end(end);
    return;
  }
  output_->drain(worker->local_rank);
  WorkerEnd& told = worker->end;
  told.success = is_success(told.status, spec_.restart);
  told.stopped_by_ddrun = takedown_->was_cause_of(told.status);
  say(Level::info, concat("rank ", told.rank, " (pid ", told.pid, ") ", describe(told.status), " after ",
                          format_duration(told.ran)));
  if (!told.success && !told.stopped_by_ddrun) {
    told.shm = describe_shm(told.status, output_->stderr_tail(worker->local_rank, 50));
  }
  events_->worker_ended(told);
  if (machine_->verdict() == Verdict::launcher_failed) record_.worker_ended_late(told);
  dispatch(event::WorkerEnded{worker->local_rank, told.status});
  takedown_->somebody_ended();
}

// ---- what is done

void Agent::dispatch(const Event& event) {
  for (auto& action : machine_->on(event)) actions_.push_back(std::move(action));
  if (!acting_) act();
}

void Agent::act() {
  acting_ = true;
  while (!actions_.empty()) {
    const Action action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](const auto& what) { carry_out(what); }, action);
  }
  acting_ = false;
  if (command_runs() && machine_->spawn_is_pointless()) command_->stop(SIGTERM);
}

Result<void> Agent::start_workers(int attempt) {
  std::vector<logs::WorkerIdentity> identities;
  const RankAssignment& ranks = member_->ranks();
  identities.reserve(static_cast<std::size_t>(prepared_.local_world_size));
  for (int local_rank = 0; local_rank < prepared_.local_world_size; ++local_rank) {
    identities.push_back({ranks.rank_of(local_rank), local_rank});
  }
  events_->attempt_started(ranks);
  output_->set_hostname(ranks.host);
  if (auto begun = output_->begin_attempt(attempt, identities); !begun) return begun;
  worker_env::WorkerFacts facts;
  facts.version = version_;
  facts.attempt_dir = output_->attempt_dir();
  facts.job_tag = member_->run_id();
  if (watchdog_) {
    if (auto renewed = watchdog_->renew()) facts.timer_file = watchdog_->path();
    else say(Level::warning, concat(renewed.error().message, "; attempt ", attempt, " has no watchdog timers"));
  }
  facts.network = interface_variables(spec_, ranks.master_addr, prepared_.full_host);
  if (!facts.network.empty()) {
    say(Level::info, concat("network interface for workers: ", facts.network.front().second, " (",
                            facts.network.front().first, ")"));
  }
  facts.error_file = [this](int local_rank) { return output_->error_file(local_rank); };
  auto environment = worker_env::WorkerEnvironment::prepare(spec_, ranks, prepared_.parent, facts);
  if (!environment) return tl::unexpected(environment.error());
  job_cgroup_.renew();
  launcher_->set_child_cgroup(job_cgroup_.open_directory());
  say(Level::info, concat("starting ", counted(ranks.local_world_size, "worker"), ", attempt ", attempt, ", store at ",
                          ranks.master_addr, ":", ranks.master_port));
  auto spawned = group_->spawn_all(ranks, *environment, [this] {
    io_.poll();
    return machine_->spawn_is_pointless();
  });
  std::vector<std::pair<int, pid_t>> started;
  for (const Worker& worker : group_->workers()) {
    if (worker.end.pid == 0) continue;
    events_->worker_started(worker.end);
    started.emplace_back(worker.end.rank, worker.end.pid);
  }
  say_started(started, prepared_.program, prepared_.directory);
  return spawned;
}

void Agent::carry_out(const action::SpawnWorkers& spawn) {
  if (spec_.rendezvous.several_machines()) {
    // The coordinator spoke of the restart before it could know the reason.
    const std::string why = record_.describe_own_reason();
    if (!why.empty()) say(Level::notice, concat("starting again after ", why));
  }
  attempt_started_at_ = Clock::now();
  takedown_->attempt_begins();
  held_.clear();
  record_.attempt_begins(prepared_.local_world_size);
  // In memory they would add up.
  if (!record_.result().attempts.empty()) output_->remove_error_files();
  group_->forget_workers();
  const HostCommands& commands = spec_.commands;
  if (commands.before.empty() || (before_is_done_ && commands.before_each == BeforeEach::job)) {
    return spawn_workers(spawn.attempt);
  }
  auto begun = start_command("before", commands.before, {},
                             [this, attempt = spawn.attempt](const CommandEnd& end) { before_ended(attempt, end); });
  if (!begun) dispatch(event::SpawnFailed{concat("--before: ", begun.error().message), exit_code(begun.error().code)});
}

void Agent::spawn_workers(int attempt) {
  if (auto started = start_workers(attempt); !started) {
    dispatch(event::SpawnFailed{started.error().message, exit_code(started.error().code)});
  } else {
    if (suspended_) group_->signal(SIGSTOP);  // those that were started since
    dispatch(event::Spawned{});
  }
}

// ---- --before and --after

Result<void> Agent::start_command(std::string_view name, const std::string& command,
                                  const std::vector<std::pair<std::string, std::string>>& variables,
                                  HostCommand::OnEnd on_end) {
  LaunchSpec spec = spec_;
  spec.virtual_local_rank = false;
  spec.seed.reset();
  worker_env::WorkerFacts facts;
  facts.version = version_;
  facts.job_tag = member_->run_id();
  auto environment = worker_env::worker_environment(spec, member_->ranks(), 0, prepared_.parent, facts);
  if (!environment) return tl::unexpected(environment.error());
  std::set<std::string_view> left_out{"RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE"};
  for (const auto& variable : variables) left_out.insert(variable.first);
  std::erase_if(*environment, [&](const std::string& entry) { return left_out.count(entry_name(entry)) != 0; });
  for (const auto& [variable, value] : variables) environment->push_back(concat(variable, "=", value));

  std::string label;
  if (spec_.log.label != Label::none) {
    const bool with_host = spec_.rendezvous.several_machines() || spec_.log.label == Label::host;
    label = concat("[", with_host ? member_->ranks().host + ":" : "", name, "] ");
  }
  if (!command_) {
    command_ = std::make_unique<HostCommand>(io_.get_executor(), *launcher_, watcher_, *output_, spec_.stop.grace);
  }
  job_cgroup_.renew();
  launcher_->set_child_cgroup(job_cgroup_.open_directory());
  say(Level::info, concat("running --", name));
  auto started =
      command_->start(std::move(label), command, prepared_.directory, std::move(*environment), std::move(on_end));
  if (started && suspended_) command_->set_paused(true);
  return started;
}

void Agent::before_ended(int attempt, CommandEnd end) {
  say(Level::info, concat("--before ", describe(end.status), " after ", format_duration(end.ran)));
  std::optional<CommandEnd>& told = record_.result().before;
  if (told) end.runs += told->runs;
  told = end;
  if (machine_->spawn_is_pointless()) return dispatch(event::Spawned{});  // no worker was: it is taken down at once
  if (end.status != ExitStatus(Exited{0})) {
    return dispatch(event::SpawnFailed{concat("--before failed on ", record_.result().host, ": ", describe(end.status)),
                                       shell_code(end.status)});
  }
  before_is_done_ = true;
  attempt_started_at_ = Clock::now();
  acting_ = true;  // what happens while workers are being spawned is acted upon afterwards, as within act()
  spawn_workers(attempt);
  act();
}

bool Agent::start_after() {
  JobResult& result = record_.result();
  if (spec_.commands.after.empty() || (result.attempts.empty() && !result.before)) return false;
  record_.sum_up(*output_);
  // The user's file is written again at the end; what only one reader gets, such as a pipe, is left for that.
  std::string report = spec_.report_file.value_or("");
  std::string private_report;
  if (!is_replaceable_file(report)) report = private_report = make_private_file("ddrun-report.");
  if (!report.starts_with('/')) report = concat(std::filesystem::current_path().string(), "/", report);
  if (auto written = write_report(report, json_report(result)); !written) say(Level::warning, written.error().message);
  auto begun = start_command("after", spec_.commands.after,
                             {{"DDRUN_REPORT", report}, {"DDRUN_EXIT_CODE", std::to_string(exit_code(result))}},
                             [this, private_report](const CommandEnd& end) { after_ended(end, private_report); });
  if (!begun) {
    say(Level::warning, concat("--after: ", begun.error().message));
    if (!private_report.empty()) ::unlink(private_report.c_str());
    return false;
  }
  // Nothing but the user's own limit bounds it, unless the job was cut short.
  const bool cut_short = result.verdict == Verdict::stopped_by_signal || result.verdict == Verdict::timed_out;
  if (cut_short) time_limit_.set(Clock::now() + spec_.stop.grace, [this] { time_is_up(); });
  return true;
}

void Agent::stop_after(const std::string& why, int code) {
  if (after_stopped_by_.empty()) say(Level::notice, concat(why, ": stopping --after"));
  after_stopped_by_ = why;
  after_stopped_code_ = code;
  command_->stop(SIGTERM);
}

void Agent::after_ended(const CommandEnd& end, const std::string& private_report) {
  say(Level::info, concat("--after ", describe(end.status), " after ", format_duration(end.ran)));
  if (!private_report.empty()) ::unlink(private_report.c_str());
  JobResult& result = record_.result();
  result.after = end;
  if (end.status != ExitStatus(Exited{0})) {
    const bool stopped = !after_stopped_by_.empty();
    const std::string what = concat("--after ", stopped ? "was stopped on " : "failed on ", result.host, ": ",
                                    stopped ? after_stopped_by_ : describe(end.status));
    if (exit_code(result) != 0) {
      say(Level::warning, what);
    } else {
      result.verdict = Verdict::launcher_failed;
      result.cause.reset();
      result.message = what;
      result.launcher_code = stopped ? after_stopped_code_ : shell_code(end.status);
    }
  }
  output_->async_flush([this] { all_is_written(); });
}

void Agent::evidence_ends() {
  if (record_.stop_has_begun()) return;
  output_->drain_all();
  record_.stop_begins();
}

void Agent::carry_out(const action::CloseOutput&) {
  takedown_->cancel();
  skew_.cancel();
  group_->close_inputs();
  std::set<int> still_running;
  bool all_well = !takedown_->has_killed();
  for (const Worker& worker : group_->workers()) {
    all_well = all_well && worker.end.success;
    if (worker.child) still_running.insert(worker.end.rank);
  }
  if (!all_well) shared_.shared->request_terminal_restore();
  output_->async_end_attempt([this] { output_closed(); }, std::move(still_running));
}

void Agent::output_closed() {
  if (machine_->state() != State::closing) return;
  output_->read_file_tails();
  record_.add_attempt(*machine_, *group_, *output_, prepared_, attempt_started_at_);
  dispatch(event::OutputClosed{});
}

void Agent::carry_out(const action::TellStopped& stopped) {
  std::string restart;
  if (!spec_.rendezvous.several_machines() && member_->another_round_follows()) {
    restart = record_.describe_restart(machine_->attempt() + 1);
  }
  member_->tell(stopped);
  // The coordinator may have ended the job instead, for its cause.
  if (!restart.empty() && !record_.has_verdict()) say(Level::notice, restart);
}

void Agent::carry_out(const action::StartSkew& skew) {
  skew_.set(Clock::now() + skew.duration, [this] { dispatch(event::SkewExpired{}); });
}

void Agent::carry_out(const action::TellFailed& failed) {
  const auto& workers = group_->workers();
  const auto worker = std::find_if(workers.begin(), workers.end(),
                                   [&](const Worker& one) { return one.local_rank == failed.local_rank; });
  if (worker != workers.end()) member_->tell_failed(worker->end);
}

void Agent::carry_out(const action::Finish&) {
  skew_.cancel();
  record_.take_verdict(*machine_);
  events_->job_ended(record_.result());
  if (start_after()) return;
  output_->async_flush([this] { all_is_written(); });
}

void Agent::all_is_written() {
  // The report may wait for a reader, for some seconds: since its verdict the coordinator asks for no sign of life.
  if (!member_->runs_coordinator()) settle();
  member_->async_close([this] { io_.stop(); });
}

void Agent::settle() {
  if (ended_) return;
  set_message_sink({});
  if (output_->close()) begin_new_line();
  events_file_.share({});
  if (is_folded_) say_text(hooks_.fold.ends);
  ended_ = record_.finish(*output_, prepared_);
  if (hooks_.on_result) hooks_.on_result(*ended_);
}

/// The report has said what error files hold, as far as it can be read.
void Agent::remove_private_directory() {
  if (output_->remove_if_unused()) return;
  output_->remove_error_files();
  if (!output_->remove_if_unused())
    say(Level::notice, concat("workers have put files in ", output_->root(), " that ddrun does not remove"));
}

JobResult Agent::run() {
  if (auto ready = set_up(); !ready) {
    signals_.close();
    if (output_) output_->remove_if_unused();
    JobResult& refused = record_.result();
    refused.verdict = Verdict::launcher_failed;
    refused.message = ready.error().message;
    refused.launcher_code = exit_code(ready.error().code);
    refused.host = prepared_.hostname;
    if (hooks_.on_result) hooks_.on_result(refused);
    return std::move(refused);
  }
  if (spec_.report_bindings) {
    for (const auto& line :
         topology::describe_bindings(prepared_.binding, prepared_.local_world_size, prepared_.cpus, 0)) {
      say(Level::notice, line);
    }
  }
  if (spec_.timeout) {
    time_limit_.set(record_.started_at() + *spec_.timeout, [this] { time_is_up(); });
  }
  set_message_sink([this](std::string_view line) { output_->console_line(line); });
  is_folded_ = !hooks_.fold.begins.empty() && member_->runs_coordinator();
  if (is_folded_) say_text(hooks_.fold.begins);
  dispatch(event::Start{});
  io_.run();
  set_message_sink({});
  if (watchdog_) watchdog_->close();
  settle();  // while signals are still taken: the first one would end a process that does not listen
  events_file_.finish();
  signals_.close();
  remove_private_directory();
  output_.reset();
  return std::move(*ended_);
}

}  // namespace

JobResult run_job(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                  const std::string& version, JobHooks hooks) {
  // Left to the end of the process, which is next: taking it all apart, thread and sockets, would only take time.
  return (new Agent(spec, context, environment, version, std::move(hooks)))->run();
}

}  // namespace ddrun::agent
