#include "ddrun/agent/agent.hpp"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/agent/job_socket_path.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signals.hpp"
#include "ddrun/process/startup_pages.hpp"
#include "ddrun/topology/cpus.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "death_reason.hpp"
#include "event_log.hpp"
#include "group_machine.hpp"
#include "job.hpp"
#include "job_commands.hpp"
#include "job_preload.hpp"
#include "job_record.hpp"
#include "job_socket.hpp"
#include "network_interface.hpp"
#include "stack_pages.hpp"
#include "takedown.hpp"
#include "watchdog.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

namespace {

namespace asio = boost::asio;

using shutdown::console_stall_limit;
/// A job that writes a line each second has its memory trimmed at most this often.
constexpr Milliseconds max_trim_delay{60'000};
/// From the start of the first workers. A shorter job does not pay for a new file, some 4 % of its time on ext4.
constexpr Milliseconds socket_delay{100};

std::string describe_sender(pid_t sender) {
  if (sender <= 0) return {};
  if (sender == ::getpid()) return "--end-with-parent: the process that started ddrun has ended";
  const std::string name = process::process_name(sender);
  return name.empty() ? concat("pid ", sender) : concat("pid ", sender, " (", name, ")");
}

GroupMachine::Rules machine_rules(const Job& job) {
  const LaunchSpec& spec = job.spec;
  return {spec.restart, spec.stop, spec.exit_skew, spec.timeout.value_or(Milliseconds{0}),
          [&job] { return job.member.runs_coordinator(); }};
}

/// The terminal from which a worker reads; 0: none.
dev_t input_terminal(const LaunchSpec& spec) {
  struct stat input {};
  const bool reads = spec.stdin_.kind == StdinSpec::Kind::rank && ::isatty(STDIN_FILENO) != 0;
  return reads && ::fstat(STDIN_FILENO, &input) == 0 ? input.st_rdev : 0;
}

bool is_terminal(int fd, dev_t terminal) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISCHR(info.st_mode) && info.st_rdev == terminal;
}

/// The terminal shows what is typed, and ends the line at Return.
bool echoes_input() {
  struct termios modes {};
  return ::tcgetattr(STDIN_FILENO, &modes) == 0 && (modes.c_lflag & ECHO) != 0 && (modes.c_lflag & ICANON) != 0;
}

logs::OutputOptions output_options(const Job& job, std::function<void()> on_first_output) {
  logs::OutputOptions options;
  options.on_first_output = std::move(on_first_output);
  options.log = job.spec.log;
  const bool several = job.spec.rendezvous.several_machines();
  if (several && options.log.label == Label::automatic) options.log.label = Label::host;
  options.role = job.spec.role;
  options.run_id = job.member.run_id();
  options.hostname = job.prepared.hostname;
  options.local_world_size = job.prepared.local_world_size;
  if (const dev_t terminal = input_terminal(job.spec); terminal != 0 && is_terminal(STDOUT_FILENO, terminal)) {
    options.input_rank = job.spec.stdin_.rank;
    options.input_awaited = [terminal] { return echoes_input() && !process::readers_of_terminal(terminal).empty(); };
  }
  options.announce_private_directory = [shared = job.context.shared](const std::string& path) {
    return shared->set_private_directory(path);
  };
  return options;
}

/// Connects the state machine to the process: turns signals, exits and timers into events, and runs the actions.
class Agent {
 public:
  /// Opens log directory, signals, workers' descriptors and timer file, in this order; fails as these do. `job` is
  /// borrowed. Like a Job, an Agent is never destroyed.
  static Result<Agent*> create(Job& job);

  /// Blocks until the job is over. Once.
  JobResult run();

 private:
  explicit Agent(Job& job);
  Result<void> open();

  void on_signal_message(const process::SignalMessage& message);
  /// Ctrl-Z stops workers and timers; SIGCONT continues them.
  void set_suspended(bool still);
  /// While the job is in the background, stops processes that read from the terminal, as SIGTTIN would.
  void stop_background_readers();
  void signal_stopped_readers(int number) const;
  void on_child_exit(const process::ChildEnd& end);
  void on_parent_lost(const char* process, pid_t pid);
  void on_time_limit();
  /// From now on the console is waited for only as long as it takes some output each second.
  void bound_console_wait() {
    set_ending();
    output_.set_flush_timeout(console_stall_limit);
  }
  void on_late_signal(const std::string& what, bool at_once);

  /// The sweeper has killed the workers of this attempt. It is said once, and they are stopped for that reason, so that
  /// no worker counts as failed.
  [[nodiscard]] bool were_workers_swept();
  [[nodiscard]] bool is_overdue() const { return job_.context.shared->overdue.kills != seen_sweeper_kills_; }

  void dispatch(const Event& event);
  void run_actions();
  /// For an event that cannot wait: the actions that wait for stacks go on with it.
  void give_up_stacks() {
    if (!stacks_.is_reading()) return;
    stacks_.give_up();
    running_actions_ = false;
  }
  void carry_out(const action::SpawnWorkers& spawn);
  void carry_out(const action::CancelSpawn&) {
    commands_.stop(SIGTERM);
    if (preload_) preload_->cancel();
  }
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
  void carry_out(const action::StartSkew& skew);
  void carry_out(const action::Finish&);
  void carry_out(const action::Join&) {
    const auto on_event = [this](const Event& event) {
      if (job_.hooks.on_round && std::holds_alternative<event::RoundBegins>(event)) job_.hooks.on_round();
      const auto* stop = std::get_if<event::StopOrdered>(&event);
      // A signal to ddrun on another machine.
      if (stop != nullptr && stop->signal != 0 && !member_.expects_another_round()) bound_console_wait();
      dispatch(event);
    };
    member_.join({on_event, [this](int signal) { group_.signal({signal}); }});
  }
  void carry_out(const action::SendFailed& failed);
  void carry_out(const action::SendSucceeded& succeeded) { member_.send(succeeded); }
  void carry_out(const action::SendStopped&);
  void carry_out(const action::SendLeave& leave) { member_.send(leave); }
  void carry_out(const action::Abandon& abandon) { member_.abandon(abandon.why); }
  /// Output from now on is a consequence of the stop, and no evidence of a cause.
  void close_evidence();
  void on_output_flushed();
  /// Later each time, so that regular output wakes this process once and not twice.
  void trim_memory_later();
  void remove_private_directory();
  /// Completes the result and passes it to the caller's hook, once.
  void publish_result();

  void on_before_exit(int attempt, const ExitStatus& status);
  /// Once there are workers to start: at once, or with --preload when the modules are imported.
  void prepare_spawn(int attempt);
  /// spawn_workers() when what an attempt waited for has ended, outside of run_actions().
  void resume_spawn(int attempt);
  void spawn_workers(int attempt);
  Result<void> start_workers(int attempt);
  /// Once, before the first workers. One machine does it for all: that of node rank 0, which is the coordinator's
  /// unless ranks were given or the coordinator has no workers.
  void announce_logs(const RankAssignment& ranks);
  /// Called for each attempt; only the first counts.
  void open_socket_later();
  void answer(const JobRequest& request, const JobSocket::Reply& reply);
  void on_output_closed();

  Job& job_;
  const LaunchSpec& spec_ = job_.spec;
  const Preparation& prepared_ = job_.prepared;
  JobRecord& record_ = job_.record;
  asio::io_context& io_ = job_.io;
  JobMember& member_ = job_.member;

  process::JobCgroup job_cgroup_;  ///< none before open()
  logs::Output output_;
  process::ChildWatcher watcher_;
  process::SignalReceiver signals_;
  std::unique_ptr<JobPreload> preload_;  ///< only with --preload
  WorkerGroup group_;
  GroupMachine machine_;
  Takedown takedown_;
  JobCommands commands_;
  StackPages stacks_;
  EventLog event_log_;
  JobSocket socket_;
  Alarm socket_timer_;
  std::optional<Watchdog> watchdog_;  ///< only with TORCHELASTIC_ENABLE_FILE_TIMER
  Alarm time_limit_;
  Alarm skew_;
  Alarm background_poll_;
  Alarm trim_;
  Milliseconds trim_delay_ = process::settle_time;
  const dev_t terminal_;  ///< see input_terminal()
  Clock::time_point attempt_started_at_;
  bool before_done_ = false;

  std::optional<JobResult> published_;

  std::deque<Action> actions_;
  bool running_actions_ = false;
  std::uint32_t seen_sweeper_kills_ = 0;   ///< before this attempt
  std::uint32_t noted_sweeper_kills_ = 0;  ///< that were said
  bool suspended_ = false;                 ///< by Ctrl-Z
  std::set<pid_t> stopped_readers_;        ///< process groups stopped because they read in the background
  bool folded_ = false;
  bool announced_logs_ = false;
  bool socket_wanted_ = false;
};

Agent::Agent(Job& job)
    : job_(job),
      output_(io_.get_executor(), output_options(job, [this] { trim_memory_later(); })),
      watcher_(
          io_.get_executor(), [this](const process::ChildEnd& end) { on_child_exit(end); },
          [this] {
            takedown_.on_child_exit();
            commands_.check_gone();
          }),
      signals_(io_.get_executor(), job.context,
               {[this](const process::SignalMessage& message) { on_signal_message(message); },
                [this](pid_t first) { watcher_.reap(first); },
                [this](const char* process, pid_t pid) { on_parent_lost(process, pid); }}),
      preload_(spec_.preload.empty() ? nullptr : std::make_unique<JobPreload>(job, output_, job_cgroup_)),
      group_(io_.get_executor(), spec_, prepared_, preload_ ? preload_->spawner() : job.launcher, watcher_, output_),
      machine_(machine_rules(job), prepared_.local_world_size),
      takedown_(io_.get_executor(), group_, watcher_, machine_, job_cgroup_,
                [this](const Event& event) { dispatch(event); }),
      commands_(job, output_, watcher_, job_cgroup_),
      stacks_(io_.get_executor(), job, group_, output_),
      event_log_(spec_.event_log_handler, spec_.role, prepared_.hostname,
                 spec_.rendezvous.standalone ? "c10d" : spec_.rendezvous.backend),
      socket_(io_.get_executor(), [this](const auto& request, const auto& reply) { answer(request, reply); }),
      socket_timer_(io_.get_executor()),
      time_limit_(io_.get_executor()),
      skew_(io_.get_executor()),
      background_poll_(io_.get_executor()),
      trim_(io_.get_executor()),
      terminal_(input_terminal(spec_)) {}

Result<Agent*> Agent::create(Job& job) {
  auto* const agent = new Agent(job);
  auto opened = agent->open();
  if (opened) return agent;
  agent->output_.remove_if_unused();
  return tl::unexpected(opened.error());
}

Result<void> Agent::open() {
  if (auto ready = output_.prepare(); !ready) return ready;
  EventsFile& events_file = job_.events_file;
  if (events_file.is_same_file(STDERR_FILENO)) {
    events_file.redirect_to([this](std::string_view lines) { output_.console_line(lines); });
  } else if (events_file.is_same_file(STDOUT_FILENO)) {
    events_file.redirect_to([this](std::string_view lines) { output_.stdout_line(lines); });
  }
  if (auto opened = watcher_.open(); !opened) return opened;
  if (auto opened = signals_.open(spec_.stop.ending_signals, spec_.stop.grace); !opened) return opened;
  if (auto enough = group_.check_descriptors(); !enough) return enough;
  job_cgroup_ = process::await_job_cgroup(*job_.context.shared);
  if (auto path = timer_file_path(spec_, prepared_.parent)) {
    return watchdog_.emplace(io_.get_executor(), group_, record_).open(std::move(*path));
  }
  return {};
}

// ---- what happens

void Agent::on_signal_message(const process::SignalMessage& message) {
  const int signal = message.signal;
  if (signal == SIGSTOP || (signal == SIGCONT && suspended_)) return set_suspended(signal == SIGSTOP);
  if (signal == SIGCONT) stop_background_readers();
  if (spec_.stop.ending_signals.count(signal) == 0) {
    if (signal == SIGWINCH) output_.screen_resized();
    const bool to_all = spec_.rendezvous.signals_to_all && (signal == SIGUSR1 || signal == SIGUSR2);
    say(Level::info,
        concat("passing ", signal_name(signal), to_all ? " to the workers of all machines" : " to the workers"));
    if (to_all) member_.pass_signal(signal);
    else group_.signal({signal});
    return;
  }
  const State state = machine_.state();
  const std::string from = describe_sender(message.sender);
  const event::EndingSignal ending{signal, from, message.at_once};
  const std::string what = signal_name(signal) + (from.empty() ? "" : " from " + from);
  if (machine_.ending_signal() != 0 && !message.at_once) {
    say(Level::info, concat(what, ": the job is being ended already"));
    return;
  }
  if (suspended_) set_suspended(false);
  bound_console_wait();
  if (commands_.is_running()) {
    if (message.at_once) commands_.stop(SIGKILL);
    if (state == State::finished) return commands_.stop_after(what, exit_codes::signal_base + signal);
    say(Level::notice, concat(what, ": stopping --before (SIGKILL after ", format_duration(spec_.stop.grace),
                              ", or at once if you repeat it)"));
    return dispatch(ending);
  }
  if (state == State::closing || state == State::finished) {
    dispatch(ending);
    return on_late_signal(what, message.at_once);
  }
  if (machine_.ending_signal() != 0) {
    say(Level::notice, concat(what, " again: killing all workers"));
  } else if (group_.alive_count() > 0) {
    say(Level::notice, concat(what, ": stopping ", counted(group_.alive_count(), "worker"), " (SIGKILL after ",
                              format_duration(spec_.stop.grace), ", or at once if you repeat it)"));
  } else if (state == State::stopping && (signal == SIGINT || signal == SIGQUIT)) {
    say(Level::notice, concat(what, ": killing what the workers have left"));
  }
  if (message.at_once) give_up_stacks();
  dispatch(ending);
}

void Agent::set_suspended(bool still) {
  suspended_ = still;
  // A read that Ctrl-Z interrupted must not continue in the background.
  if (!still) stop_background_readers();
  group_.signal({still ? SIGSTOP : SIGCONT}, stopped_readers_);
  commands_.set_suspended(still);
  for (Alarm* alarm : {&time_limit_, &skew_}) alarm->set_paused(still);
  takedown_.set_paused(still);
  member_.set_paused(still);
  if (watchdog_) watchdog_->set_paused(still);
  job_.context.shared->set_suspended(still);
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
  if (!machine_.taking_down()) {
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

void Agent::on_parent_lost(const char* process, pid_t pid) {
  if (suspended_) set_suspended(false);
  bound_console_wait();
  if (commands_.is_running()) commands_.stop(SIGTERM);
  give_up_stacks();
  dispatch(event::ParentLost{concat("ddrun's own ", process, " (pid ", pid, ") was killed; the job was stopped")});
}

/// No process is left, only output that the console has not taken.
void Agent::on_late_signal(const std::string& what, bool at_once) {
  if (machine_.state() == State::finished && output_.is_flushed()) return io_.stop();
  if (at_once) return output_.abort_flush();
  say(Level::notice, concat(what, ": ending as soon as the output is not read for ",
                            format_duration(console_stall_limit), ", or at once if you repeat it"));
}

void Agent::on_time_limit() {
  if (commands_.is_running() && machine_.state() == State::finished) {
    return commands_.stop_after("the time for it is up", exit_codes::timed_out);
  }
  if (machine_.state() != State::closing && machine_.state() != State::finished) {
    say(Level::info, concat("the time limit of ", format_duration(*spec_.timeout), " is up"));
  }
  dispatch(event::JobTimeout{});
  // After a success the console may take its time.
  if (machine_.verdict() != Verdict::success) bound_console_wait();
}

void Agent::on_child_exit(const process::ChildEnd& end) {
  Worker* worker = group_.record_exit(end);
  if (worker == nullptr) {
    commands_.on_child_exit(end);
    return takedown_.on_child_exit();  // of a start that was given up
  }
  output_.drain(worker->local_rank);
  WorkerEnd& ended = worker->end;
  ended.success = is_success(ended.status, spec_.restart);
  const bool is_swept = ended.status == ExitStatus(Signaled{SIGKILL}) && were_workers_swept();
  ended.stopped_by_ddrun = is_swept || takedown_.has_caused(ended.status);
  say(Level::info, concat("rank ", ended.rank, " (pid ", ended.pid, ") ", describe(ended.status), " after ",
                          format_duration(ended.ran)));
  if (!ended.success && !ended.stopped_by_ddrun) {
    ended.shm = describe_shm(ended.status, output_.stderr_tail(worker->local_rank, 50));
  }
  event_log_.worker_ended(ended);
  if (machine_.verdict() == Verdict::launcher_failed) record_.correct_late_exit(ended);
  const bool fails = machine_.state() == State::running && !ended.success && group_.alive_count() > 0;
  dispatch(event::WorkerEnded{worker->local_rank, ended.status,
                              fails ? record_.describe_hang(*worker, group_, output_) : ""});
  takedown_.on_child_exit();
}

// ---- what is done

bool Agent::were_workers_swept() {
  const auto& page = job_.context.shared->overdue;
  if (!is_overdue()) return false;
  const std::uint32_t kills = page.kills;
  if (std::exchange(noted_sweeper_kills_, kills) != kills) {
    const Clock::time_point since{std::chrono::nanoseconds(page.stood_still_since_ns)};
    say(Level::warning, concat("workers were killed by ddrun: this agent had stood still for ",
                               format_duration(Clock::now() - since), "; stopping the workers, to join again"));
    dispatch(event::StopOrdered{SIGKILL});
  }
  return true;
}

void Agent::dispatch(const Event& event) {
  auto actions = machine_.step(event);
  if (!actions) return say(Level::warning, concat("internal error: ", actions.error().message));
  for (auto& action : *actions) actions_.push_back(std::move(action));
  if (!running_actions_) run_actions();
}

void Agent::run_actions() {
  running_actions_ = true;
  while (!actions_.empty() && !stacks_.is_reading()) {
    const Action action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](const auto& what) { carry_out(what); }, action);
  }
  running_actions_ = stacks_.is_reading();
}

Result<void> Agent::start_workers(int attempt) {
  std::vector<logs::WorkerIdentity> identities;
  const RankAssignment& ranks = member_.ranks();
  identities.reserve(static_cast<std::size_t>(prepared_.local_world_size));
  for (int local_rank = 0; local_rank < prepared_.local_world_size; ++local_rank) {
    identities.push_back({ranks.rank_of(local_rank), local_rank});
  }
  event_log_.attempt_started(ranks);
  output_.set_hostname(ranks.host);
  if (auto begun = output_.begin_attempt(attempt, identities); !begun) return begun;
  announce_logs(ranks);
  worker_env::WorkerFacts facts;
  facts.version = job_.version;
  facts.attempt_dir = output_.attempt_dir();
  facts.job_tag = member_.run_id();
  if (watchdog_) {
    if (auto renewed = watchdog_->renew()) facts.timer_file = watchdog_->path();
    else say(Level::warning, concat(renewed.error().message, "; attempt ", attempt, " has no watchdog timers"));
  }
  facts.network = interface_variables(spec_, ranks.master_addr, prepared_.full_host);
  if (!facts.network.empty()) {
    say(Level::info, concat("network interface for workers: ", facts.network.front().second, " (",
                            facts.network.front().first, ")"));
  }
  facts.error_file = [this](int local_rank) { return output_.error_file(local_rank); };
  auto environment = worker_env::WorkerEnvironment::prepare(spec_, ranks, prepared_.parent, facts);
  if (!environment) return tl::unexpected(environment.error());
  job_cgroup_.renew();
  job_.launcher.set_child_cgroup(job_cgroup_.open_directory());
  say(Level::info, concat("starting ", counted(ranks.local_world_size, "worker"), ", attempt ", attempt, ", store at ",
                          ranks.master_addr, ":", ranks.master_port));
  const auto should_stop = [this] {
    io_.poll();
    return were_workers_swept() || machine_.is_stop_pending();
  };
  auto spawned = group_.spawn_all(ranks, *environment, should_stop, [this] { return is_overdue(); });
  std::vector<std::pair<int, pid_t>> started;
  for (const Worker& worker : group_.workers()) {
    if (worker.end.pid == 0) continue;
    event_log_.worker_started(worker.end);
    started.emplace_back(worker.end.rank, worker.end.pid);
  }
  log_started(started, prepared_.program, prepared_.directory);
  return spawned;
}

void Agent::announce_logs(const RankAssignment& ranks) {
  const std::string dir = output_.run_dir();
  if (dir.empty() || std::exchange(announced_logs_, true)) return;
  const bool first = ranks.node_rank == 0;
  const std::string where =
      ranks.node_count > 1 ? concat(" on node rank ", ranks.node_rank, "; each machine has its own") : "";
  // Only this line tells where a temporary directory is.
  say(first || !spec_.log.dir ? Level::notice : Level::info, concat("logs: ", dir, where));
  if (!first) return;
  if (auto linked = output_.link_latest(); !linked) {
    say(linked.error().code == Errc::invalid_argument ? Level::warning : Level::info, linked.error().message);
  }
}

void Agent::carry_out(const action::SpawnWorkers& spawn) {
  if (spec_.rendezvous.several_machines()) {
    // The coordinator announced the restart before this node had found the reason.
    const std::string why = record_.describe_own_reason();
    if (!why.empty()) say(Level::notice, concat("starting again after ", why));
  }
  attempt_started_at_ = Clock::now();
  takedown_.begin_attempt();
  seen_sweeper_kills_ = noted_sweeper_kills_ = job_.context.shared->overdue.kills;
  stopped_readers_.clear();
  record_.begin_attempt(prepared_.local_world_size);
  // On a tmpfs they would use up memory.
  if (!record_.result().attempts.empty()) output_.remove_error_files();
  group_.clear_workers();
  const HostCommands& commands = spec_.commands;
  if (commands.before.empty() || (before_done_ && commands.before_each == BeforeEach::job)) {
    return prepare_spawn(spawn.attempt);
  }
  auto begun = commands_.start_before(
      [this, attempt = spawn.attempt](const ExitStatus& status) { on_before_exit(attempt, status); });
  if (!begun) dispatch(event::SpawnFailed{concat("--before: ", begun.error().message), exit_code(begun.error().code)});
}

void Agent::prepare_spawn(int attempt) {
  if (!preload_) return spawn_workers(attempt);
  job_cgroup_.renew();  // standby workers enter it
  preload_->prepare([this, attempt](const Result<void>& ready) {
    if (machine_.is_stop_pending()) return dispatch(event::Spawned{});  // without workers: taken down at once
    if (!ready) return dispatch(event::SpawnFailed{ready.error().message, exit_code(ready.error().code)});
    resume_spawn(attempt);
  });
}

void Agent::resume_spawn(int attempt) {
  attempt_started_at_ = Clock::now();
  running_actions_ = true;  // events that arrive while workers are spawned wait, as within run_actions()
  spawn_workers(attempt);
  run_actions();
}

void Agent::spawn_workers(int attempt) {
  if (auto started = start_workers(attempt); !started) {
    dispatch(event::SpawnFailed{started.error().message, exit_code(started.error().code)});
  } else {
    if (suspended_) group_.signal({SIGSTOP});  // workers started since
    if (preload_) preload_->on_workers_started();
    open_socket_later();
    trim_delay_ = process::settle_time;
    trim_memory_later();
    dispatch(event::Spawned{});
  }
}

void Agent::open_socket_later() {
  if (std::exchange(socket_wanted_, true)) return;
  socket_timer_.set(Clock::now() + socket_delay, [this] {
    const std::string runtime_dir(prepared_.parent.get("XDG_RUNTIME_DIR").value_or(""));
    socket_.open(job_socket_folders(::geteuid(), runtime_dir), job_.context.shared->started_pid);
  });
}

void Agent::answer(const JobRequest& request, const JobSocket::Reply& reply) {
  std::vector<int> ranks;
  std::vector<inspect::StackReader::Target> asked;
  for (const auto& target : stacks_.targets()) {
    if (target.pid != 0) ranks.push_back(target.rank);
    if (request.includes(target.rank)) asked.push_back(target);
  }
  if (request.question == JobRequest::Question::job) {
    const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - record_.started_at());
    return reply(reply_line({{"tag", stacks_.tag()},
                             {"pid", job_.context.shared->started_pid.load()},
                             {"run_id", member_.run_id()},
                             {"program", spec_.program.name},
                             {"ranks", ranks},
                             {"started", ::time(nullptr) - age.count()}}));
  }
  if (ranks.empty()) return reply(error_reply("no worker of this job runs on this machine at present; ask again"));
  if (asked.empty()) {
    return reply(error_reply(concat("no such rank runs on this machine; give some of ", name_ranks(ranks))));
  }
  const auto format = request.as_json ? StackPages::Format::json : StackPages::Format::text;
  stacks_.async_read(std::move(asked), format, [this, as_json = request.as_json, reply](const std::string& text) {
    trim_memory_later();
    reply(as_json ? concat(R"({"stacks":)", text, "}") : reply_line({{"text", text}}));
  });
}

void Agent::trim_memory_later() {
  trim_.set(Clock::now() + trim_delay_, [this] {
    trim_delay_ = std::min(2 * trim_delay_, max_trim_delay);
    output_.trim();
    process::drop_startup_pages();
  });
}

void Agent::on_before_exit(int attempt, const ExitStatus& status) {
  if (machine_.is_stop_pending()) return dispatch(event::Spawned{});  // without workers: taken down at once
  if (status != ExitStatus(Exited{0})) {
    return dispatch(event::SpawnFailed{concat("--before failed on ", record_.result().host, ": ", describe(status)),
                                       shell_code(status)});
  }
  before_done_ = true;
  if (preload_) return prepare_spawn(attempt);
  resume_spawn(attempt);
}

void Agent::carry_out(const action::ReadStacks& read) {
  close_evidence();
  stacks_.async_show(read.why, [this, finds_cause = read.finds_cause](const inspect::StackPage& page) {
    if (finds_cause) record_.find_culprits(page, group_, output_);
    run_actions();
  });
}

void Agent::close_evidence() {
  if (record_.has_stop_begun()) return;
  output_.drain_all();
  record_.begin_stop();
}

void Agent::carry_out(const action::CloseOutput&) {
  takedown_.cancel();
  skew_.cancel();
  group_.close_inputs();
  std::set<int> still_running;
  bool all_well = !takedown_.has_killed();
  for (const Worker& worker : group_.workers()) {
    all_well = all_well && worker.end.success;
    if (worker.child) still_running.insert(worker.end.rank);
  }
  if (!all_well) job_.context.shared->request_terminal_restore();
  output_.async_end_attempt([this] { on_output_closed(); }, std::move(still_running));
}

void Agent::on_output_closed() {
  output_.read_file_tails();
  record_.add_attempt(machine_, group_, output_, prepared_, attempt_started_at_);
  dispatch(event::OutputClosed{});
}

void Agent::carry_out(const action::SendStopped&) {
  std::string restart;
  if (!spec_.rendezvous.several_machines() && member_.expects_another_round()) {
    restart = record_.describe_restart(machine_.attempt() + 1);
  }
  member_.send_stopped(std::move(restart));
}

void Agent::carry_out(const action::StartSkew& skew) {
  skew_.set(Clock::now() + skew.duration, [this] { dispatch(event::SkewExpired{}); });
}

void Agent::carry_out(const action::SendFailed& failed) {
  auto& workers = group_.workers();
  const auto worker = std::find_if(workers.begin(), workers.end(),
                                   [&](const Worker& one) { return one.local_rank == failed.local_rank; });
  if (worker == workers.end()) return;
  record_.explain_kill(worker->end, prepared_);
  member_.send_failed(worker->end);
}

void Agent::carry_out(const action::Finish&) {
  skew_.cancel();
  record_.set_verdict(machine_);
  member_.write_verdict(record_.result());
  event_log_.job_ended(record_.result());
  const auto flush = [this] { output_.async_flush([this] { on_output_flushed(); }); };
  if (!commands_.start_after(flush)) return flush();
  // --after has no time limit, unless the job was cut short.
  const Verdict verdict = record_.result().verdict;
  const bool cut_short = verdict == Verdict::stopped_by_signal || verdict == Verdict::timed_out;
  if (cut_short) time_limit_.set(Clock::now() + spec_.stop.grace, [this] { on_time_limit(); });
}

void Agent::on_output_flushed() {
  // The report may wait some seconds for a reader; after the verdict the coordinator expects no heartbeat.
  if (!member_.runs_coordinator()) publish_result();
  member_.async_close([this] { io_.stop(); });
}

void Agent::publish_result() {
  if (published_) return;
  set_message_sink({});
  if (output_.close()) begin_new_line();
  job_.events_file.redirect_to({});
  if (folded_) say_text(job_.hooks.fold.ends);
  published_ = record_.finish(output_, prepared_);
  if (job_.hooks.on_result) job_.hooks.on_result(*published_);
  if (published_->console_bytes_lost > 0) {
    job_.events_file.write_line(output_lost_event(published_->host, published_->console_bytes_lost));
  }
}

/// The error files in it were read for the report.
void Agent::remove_private_directory() {
  if (output_.remove_if_unused()) return;
  output_.remove_error_files();
  if (!output_.remove_if_unused())
    say(Level::notice, concat("workers have put files in ", output_.root(), " that ddrun does not remove"));
}

JobResult Agent::run() {
  if (spec_.report_bindings) {
    for (const auto& line :
         topology::describe_bindings(prepared_.binding, prepared_.local_world_size, prepared_.cpus, 0)) {
      say(Level::notice, line);
    }
  }
  if (spec_.timeout) time_limit_.set(record_.started_at() + *spec_.timeout, [this] { on_time_limit(); });
  set_message_sink([this](std::string_view line) { output_.console_line(line); });
  folded_ = !job_.hooks.fold.begins.empty() && member_.runs_coordinator();
  if (folded_) say_text(job_.hooks.fold.begins);
  dispatch(event::Start{});
  io_.run();
  socket_.close();
  if (machine_.state() != State::finished)
    record_.fail(concat("ddrun has no event to wait for, and the job is ", name(machine_.state()),
                        ": a system call that it needs is denied (seccomp, SELinux)"));
  set_message_sink({});
  if (watchdog_) watchdog_->close();
  if (preload_) preload_->close();
  publish_result();
  job_.events_file.finish();
  remove_private_directory();
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
  if (hooks.on_result) hooks.on_result(refused);
  return std::move(refused);
}

}  // namespace ddrun::agent
