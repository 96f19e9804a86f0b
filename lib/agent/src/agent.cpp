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
constexpr std::chrono::seconds console_stall_limit{1};

/// Room for this many is made at once: for ourselves, and for each worker's pipes, files, pidfd and connections to the
/// store.
constexpr std::size_t own_descriptors = 64;
constexpr std::size_t descriptors_per_worker = 8;

std::string describe_sender(pid_t sender) {
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
            io_.get_executor(), [this](const process::ChildEnd& end) { on_child_exit(end); },
            [this] {
              takedown_->on_child_exit();
              if (command_) command_->check_gone();
            }),
        signals_(io_.get_executor(), context,
                 {[this](const process::SignalMessage& message) { on_signal_message(message); },
                  [this](pid_t first) { watcher_.reap(first); },
                  [this](const char* who, pid_t pid) { on_parent_lost(who, pid); }}),
        time_limit_(io_.get_executor()),
        skew_(io_.get_executor()),
        background_poll_(io_.get_executor()) {}

  JobResult run();

 private:
  Result<void> set_up();
  Result<void> open_rendezvous();
  void on_signal_message(const process::SignalMessage& message);
  /// Ctrl-Z: workers and clocks stand still; SIGCONT: they go on.
  void set_suspended(bool still);
  /// While the job is in the background, as the kernel does with its own jobs: what reads from the terminal is stopped.
  void stop_background_readers();
  void signal_stopped_readers(int number) const;
  void on_child_exit(const process::ChildEnd& end);
  void on_parent_lost(const char* who, pid_t pid);
  void on_time_limit();
  /// From now on the console is waited for only while it takes something.
  void bound_console_wait() { output_->set_flush_timeout(console_stall_limit); }
  void on_late_signal(const std::string& what, bool at_once);

  void dispatch(const Event& event);
  void run_actions();
  void carry_out(const action::SpawnWorkers& spawn);
  void carry_out(const action::SignalGroup& signal) {
    close_evidence();
    takedown_->signal(signal.signal);
    output_->read_file_tails();
  }
  void carry_out(const action::StartGrace& grace) { takedown_->start_grace(grace.duration); }
  void carry_out(const action::KillGroup&) {
    close_evidence();
    takedown_->kill();
  }
  void carry_out(const action::CheckGone&) { takedown_->check_gone(); }
  void carry_out(const action::CloseOutput&);
  void carry_out(const action::StartSkew& skew);
  void carry_out(const action::Finish&);
  void carry_out(const action::Join&) { member_->join(); }
  void carry_out(const action::SendFailed& failed);
  void carry_out(const action::SendSucceeded& succeeded) { member_->send(succeeded); }
  void carry_out(const action::SendStopped& stopped);
  void carry_out(const action::SendLeave& leave) { member_->send(leave); }
  void carry_out(const action::SendAbort& abort) { member_->send(abort); }
  void carry_out(const action::Abandon& abandon) { member_->abandon(abandon.why); }
  /// What workers write from now on, they write because they are stopped.
  void close_evidence();
  void on_output_flushed();
  void remove_private_directory();
  /// The result is complete, and told.
  void publish_result();

  // --before and --after
  [[nodiscard]] bool is_command_running() const { return command_ && command_->is_running(); }
  Result<void> start_command(std::string_view name, const std::string& command,
                             const std::vector<std::pair<std::string, std::string>>& variables,
                             HostCommand::OnEnd on_end);
  void on_before_exit(int attempt, CommandEnd end);
  /// False: there is none, or nothing has been started on this machine.
  bool start_after_command();
  void on_after_exit(const CommandEnd& end, const std::string& private_report);
  void stop_after_command(const std::string& why, int code);

  void spawn_workers(int attempt);
  Result<void> start_workers(int attempt);
  void on_output_closed();

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
  bool before_done_ = false;
  std::string after_stopped_by_;  ///< empty: it was not
  int after_stopped_code_ = 0;    ///< the exit code then

  std::optional<JobResult> published_;

  std::deque<Action> actions_;
  bool running_actions_ = false;
  bool suspended_ = false;  ///< by Ctrl-Z
  dev_t terminal_ = 0;      ///< from which a worker reads; 0: none
  Alarm background_poll_;
  std::set<pid_t> stopped_readers_;  ///< process groups that are stopped as they would read in the background
  bool folded_ = false;
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
    if (path.size() < sizeof shared->private_directory) ::strcpy(shared->private_directory, path.c_str());
  };
  output_ = std::make_unique<logs::Output>(io_.get_executor(), std::move(options));
  if (auto ready = output_->prepare(); !ready) return ready;
  if (events_file_.is_same_file(STDERR_FILENO)) {
    events_file_.redirect_to([this](std::string_view lines) { output_->console_line(lines); });
  } else if (events_file_.is_same_file(STDOUT_FILENO)) {
    events_file_.redirect_to([this](std::string_view lines) { output_->stdout_line(lines); });
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
  if (auto path = timer_file_path(spec_, prepared_.parent)) {
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

void Agent::on_signal_message(const process::SignalMessage& message) {
  const int signal = message.signal;
  if (signal == SIGSTOP || (signal == SIGCONT && suspended_)) return set_suspended(signal == SIGSTOP);
  if (signal == SIGCONT) stop_background_readers();
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
  const std::string from = describe_sender(message.sender);
  const event::EndingSignal ending{signal, from, message.at_once};
  const std::string what = signal_name(signal) + (from.empty() ? "" : " from " + from);
  if (machine_->ending_signal() != 0 && !message.at_once) {
    say(Level::info, concat(what, ": the job is being ended already"));
    return;
  }
  if (suspended_) set_suspended(false);
  if (is_command_running()) {
    if (message.at_once) {
      command_->stop(SIGKILL);
      bound_console_wait();
    }
    if (state == State::finished) return stop_after_command(what, exit_codes::signal_base + signal);
    say(Level::notice, concat(what, ": stopping --before (SIGKILL after ", format_duration(spec_.stop.grace),
                              ", or at once if you repeat it)"));
    return dispatch(ending);
  }
  if (state == State::closing || state == State::finished) {
    dispatch(ending);
    return on_late_signal(what, message.at_once);
  }
  if (machine_->ending_signal() != 0) {
    say(Level::notice, concat(what, " again: killing all workers"));
  } else if (group_->alive_count() > 0) {
    say(Level::notice, concat(what, ": stopping ", counted(group_->alive_count(), "worker"), " (SIGKILL after ",
                              format_duration(spec_.stop.grace), ", or at once if you repeat it)"));
  } else if (state == State::stopping && (signal == SIGINT || signal == SIGQUIT)) {
    say(Level::notice, concat(what, ": killing what the workers have left"));
  }
  dispatch(ending);
}

void Agent::set_suspended(bool still) {
  suspended_ = still;
  // A read that Ctrl-Z interrupted must not go on in the background.
  if (!still) stop_background_readers();
  group_->signal(still ? SIGSTOP : SIGCONT, stopped_readers_);
  if (command_) command_->set_paused(still);
  for (Alarm* alarm : {&time_limit_, &skew_}) alarm->set_paused(still);
  takedown_->set_paused(still);
  member_->set_paused(still);
  if (watchdog_) watchdog_->set_paused(still);
  shared_.shared->set_suspended(still);
}

void Agent::signal_stopped_readers(int number) const {
  for (const auto& info : process::workers_and_their_descendants()) {
    if (stopped_readers_.count(info.group) != 0) process::signal_descendant(info, number);
  }
}

void Agent::stop_background_readers() {
  if (terminal_ == 0 || suspended_) return;
  if (!process::job_is_in_background()) {
    signal_stopped_readers(SIGCONT);
    stopped_readers_.clear();
    return;
  }
  const bool had_stopped = !stopped_readers_.empty();
  bool runs = false;
  if (!machine_->taking_down()) {
    for (const auto& reader : process::readers_of_terminal(terminal_)) {
      stopped_readers_.insert(reader.group);
      runs = runs || reader.state != 'T';
    }
  }
  if (runs) signal_stopped_readers(SIGSTOP);
  if (!stopped_readers_.empty() && !had_stopped) {
    say(Level::notice, concat("rank ", spec_.stdin_.rank, " is stopped: it reads from the terminal, which another job ",
                              "of the shell has; in the foreground ('fg') it goes on"));
  }
  background_poll_.set(Clock::now() + background_interval, [this] { stop_background_readers(); });
}

void Agent::on_parent_lost(const char* who, pid_t pid) {
  if (suspended_) set_suspended(false);
  bound_console_wait();
  if (is_command_running()) command_->stop(SIGTERM);
  dispatch(event::ParentLost{concat("ddrun's own ", who, " (pid ", pid, ") was killed; the job was stopped")});
}

/// Nothing is left but output that has not been taken.
void Agent::on_late_signal(const std::string& what, bool at_once) {
  if (machine_->state() == State::finished && output_->is_flushed()) return io_.stop();
  if (at_once) return output_->abort_flush();
  say(Level::notice, concat(what, ": ending as soon as nobody reads the output for ",
                            format_duration(console_stall_limit), ", or at once if you repeat it"));
  bound_console_wait();
}

void Agent::on_time_limit() {
  if (is_command_running() && machine_->state() == State::finished) {
    return stop_after_command("the time for it is up", exit_codes::timed_out);
  }
  if (machine_->state() != State::closing && machine_->state() != State::finished) {
    say(Level::info, concat("the time limit of ", format_duration(*spec_.timeout), " is up"));
  }
  dispatch(event::JobTimeout{});
  // The output of a job that went well is worth as much time as its reader wants.
  if (machine_->verdict() != Verdict::success) bound_console_wait();
}

void Agent::on_child_exit(const process::ChildEnd& end) {
  Worker* worker = group_->record_exit(end);
  if (worker == nullptr) {
    if (command_) command_->on_child_exit(end);
    return;
  }
  output_->drain(worker->local_rank);
  WorkerEnd& ended = worker->end;
  ended.success = is_success(ended.status, spec_.restart);
  ended.stopped_by_ddrun = takedown_->has_caused(ended.status);
  say(Level::info, concat("rank ", ended.rank, " (pid ", ended.pid, ") ", describe(ended.status), " after ",
                          format_duration(ended.ran)));
  if (!ended.success && !ended.stopped_by_ddrun) {
    ended.shm = describe_shm(ended.status, output_->stderr_tail(worker->local_rank, 50));
  }
  events_->worker_ended(ended);
  if (machine_->verdict() == Verdict::launcher_failed) record_.correct_late_exit(ended);
  dispatch(event::WorkerEnded{worker->local_rank, ended.status});
  takedown_->on_child_exit();
}

// ---- what is done

void Agent::dispatch(const Event& event) {
  for (auto& action : machine_->on(event)) actions_.push_back(std::move(action));
  if (!running_actions_) run_actions();
}

void Agent::run_actions() {
  running_actions_ = true;
  while (!actions_.empty()) {
    const Action action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](const auto& what) { carry_out(what); }, action);
  }
  running_actions_ = false;
  if (is_command_running() && machine_->is_stop_pending()) command_->stop(SIGTERM);
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
    return machine_->is_stop_pending();
  });
  std::vector<std::pair<int, pid_t>> started;
  for (const Worker& worker : group_->workers()) {
    if (worker.end.pid == 0) continue;
    events_->worker_started(worker.end);
    started.emplace_back(worker.end.rank, worker.end.pid);
  }
  log_started(started, prepared_.program, prepared_.directory);
  return spawned;
}

void Agent::carry_out(const action::SpawnWorkers& spawn) {
  if (spec_.rendezvous.several_machines()) {
    // The coordinator spoke of the restart before it could know the reason.
    const std::string why = record_.describe_own_reason();
    if (!why.empty()) say(Level::notice, concat("starting again after ", why));
  }
  attempt_started_at_ = Clock::now();
  takedown_->begin_attempt();
  stopped_readers_.clear();
  record_.begin_attempt(prepared_.local_world_size);
  // In memory they would add up.
  if (!record_.result().attempts.empty()) output_->remove_error_files();
  group_->clear_workers();
  const HostCommands& commands = spec_.commands;
  if (commands.before.empty() || (before_done_ && commands.before_each == BeforeEach::job)) {
    return spawn_workers(spawn.attempt);
  }
  auto begun = start_command("before", commands.before, {},
                             [this, attempt = spawn.attempt](const CommandEnd& end) { on_before_exit(attempt, end); });
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

void Agent::on_before_exit(int attempt, CommandEnd end) {
  say(Level::info, concat("--before ", describe(end.status), " after ", format_duration(end.ran)));
  std::optional<CommandEnd>& before = record_.result().before;
  if (before) end.runs += before->runs;
  before = end;
  if (machine_->is_stop_pending()) return dispatch(event::Spawned{});  // no worker was: it is taken down at once
  if (end.status != ExitStatus(Exited{0})) {
    return dispatch(event::SpawnFailed{concat("--before failed on ", record_.result().host, ": ", describe(end.status)),
                                       shell_code(end.status)});
  }
  before_done_ = true;
  attempt_started_at_ = Clock::now();
  running_actions_ = true;  // events that arrive while workers are spawned wait, as within run_actions()
  spawn_workers(attempt);
  run_actions();
}

bool Agent::start_after_command() {
  JobResult& result = record_.result();
  if (spec_.commands.after.empty() || (result.attempts.empty() && !result.before)) return false;
  record_.update_totals(*output_);
  // The user's file is written again at the end; what only one reader gets, such as a pipe, is left for that.
  std::string report = spec_.report_file.value_or("");
  std::string private_report;
  if (!is_replaceable_file(report)) report = private_report = make_private_file("ddrun-report.");
  if (!report.starts_with('/')) report = concat(std::filesystem::current_path().string(), "/", report);
  if (auto written = write_report(report, json_report(result)); !written) say(Level::warning, written.error().message);
  auto begun = start_command("after", spec_.commands.after,
                             {{"DDRUN_REPORT", report}, {"DDRUN_EXIT_CODE", std::to_string(exit_code(result))}},
                             [this, private_report](const CommandEnd& end) { on_after_exit(end, private_report); });
  if (!begun) {
    say(Level::warning, concat("--after: ", begun.error().message));
    if (!private_report.empty()) ::unlink(private_report.c_str());
    return false;
  }
  // Nothing but the user's own limit bounds it, unless the job was cut short.
  const bool cut_short = result.verdict == Verdict::stopped_by_signal || result.verdict == Verdict::timed_out;
  if (cut_short) time_limit_.set(Clock::now() + spec_.stop.grace, [this] { on_time_limit(); });
  return true;
}

void Agent::stop_after_command(const std::string& why, int code) {
  if (after_stopped_by_.empty()) say(Level::notice, concat(why, ": stopping --after"));
  after_stopped_by_ = why;
  after_stopped_code_ = code;
  command_->stop(SIGTERM);
}

void Agent::on_after_exit(const CommandEnd& end, const std::string& private_report) {
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
  output_->async_flush([this] { on_output_flushed(); });
}

void Agent::close_evidence() {
  if (record_.has_stop_begun()) return;
  output_->drain_all();
  record_.begin_stop();
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
  output_->async_end_attempt([this] { on_output_closed(); }, std::move(still_running));
}

void Agent::on_output_closed() {
  if (machine_->state() != State::closing) return;
  output_->read_file_tails();
  record_.add_attempt(*machine_, *group_, *output_, prepared_, attempt_started_at_);
  dispatch(event::OutputClosed{});
}

void Agent::carry_out(const action::SendStopped& stopped) {
  std::string restart;
  if (!spec_.rendezvous.several_machines() && member_->expects_another_round()) {
    restart = record_.describe_restart(machine_->attempt() + 1);
  }
  member_->send(stopped);
  // The coordinator may have ended the job instead, for its cause.
  if (!restart.empty() && !record_.has_verdict()) say(Level::notice, restart);
}

void Agent::carry_out(const action::StartSkew& skew) {
  skew_.set(Clock::now() + skew.duration, [this] { dispatch(event::SkewExpired{}); });
}

void Agent::carry_out(const action::SendFailed& failed) {
  const auto& workers = group_->workers();
  const auto worker = std::find_if(workers.begin(), workers.end(),
                                   [&](const Worker& one) { return one.local_rank == failed.local_rank; });
  if (worker != workers.end()) member_->send_failed(worker->end);
}

void Agent::carry_out(const action::Finish&) {
  skew_.cancel();
  record_.set_verdict(*machine_);
  events_->job_ended(record_.result());
  if (start_after_command()) return;
  output_->async_flush([this] { on_output_flushed(); });
}

void Agent::on_output_flushed() {
  // The report may wait for a reader, for some seconds: since its verdict the coordinator asks for no sign of life.
  if (!member_->runs_coordinator()) publish_result();
  member_->async_close([this] { io_.stop(); });
}

void Agent::publish_result() {
  if (published_) return;
  set_message_sink({});
  if (output_->close()) begin_new_line();
  events_file_.redirect_to({});
  if (folded_) say_text(hooks_.fold.ends);
  published_ = record_.finish(*output_, prepared_);
  if (hooks_.on_result) hooks_.on_result(*published_);
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
    time_limit_.set(record_.started_at() + *spec_.timeout, [this] { on_time_limit(); });
  }
  set_message_sink([this](std::string_view line) { output_->console_line(line); });
  folded_ = !hooks_.fold.begins.empty() && member_->runs_coordinator();
  if (folded_) say_text(hooks_.fold.begins);
  dispatch(event::Start{});
  io_.run();
  set_message_sink({});
  if (watchdog_) watchdog_->close();
  publish_result();  // while signals are still taken: the first one would end a process that does not listen
  events_file_.finish();
  signals_.close();
  remove_private_directory();
  output_.reset();
  return std::move(*published_);
}

}  // namespace

JobResult run_job(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                  const std::string& version, JobHooks hooks) {
  // Left to the end of the process, which is next: taking it all apart, thread and sockets, would only take time.
  return (new Agent(spec, context, environment, version, std::move(hooks)))->run();
}

}  // namespace ddrun::agent
