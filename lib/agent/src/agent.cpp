#include "ddrun/agent/agent.hpp"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cctype>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/exit_code_table.hpp"
#include "ddrun/agent/group_machine.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signal_source.hpp"
#include "ddrun/rendezvous/local_rendezvous.hpp"
#include "ddrun/topology/bindings.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "event_log.hpp"
#include "file_timer.hpp"
#include "job_member.hpp"
#include "job_record.hpp"
#include "local_events.hpp"
#include "preparation.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

namespace {

namespace asio = boost::asio;
using asio::posix::stream_descriptor;

/// While killing, what was missed is looked for again after this time.
constexpr Milliseconds resweep{50};
/// A process that survives SIGKILL for this long hangs in the kernel.
constexpr std::chrono::seconds kill_limit{10};

/// Slurm, systemd and others signal every process of a job: guard, sweeper and agent then hear the same one, and it
/// comes here on three ways. Within this time that is one signal, not a second and third one that mean "at once".
constexpr std::chrono::seconds echo_time{1};

/// How long the console may still take when a process of ours was killed, or the user has lost patience.
constexpr std::chrono::seconds hurried_end{1};

/// Room for this many is made at once: for ourselves, and for each worker's pipes, files, pidfd and connections to the
/// store.
constexpr std::size_t own_descriptors = 64;
constexpr std::size_t descriptors_per_worker = 8;

/// A deadline that never comes: what bounds it is the user, who can always say stop.
constexpr Deadline no_deadline = Deadline::max();

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
            io_.get_executor(), [this](const process::ChildEnd& end) { worker_ended(end); }, [this] { check_gone(); }),
        signals_(io_.get_executor(), [this](const process::SignalEvent& event) { own_signal(event); }),
        guard_messages_(io_.get_executor()),
        sweeper_life_(io_.get_executor()),
        grace_timer_(io_),
        backoff_timer_(io_),
        job_timer_(io_),
        skew_timer_(io_) {}

  JobResult run();

 private:
  Result<void> set_up();
  Result<void> find_meeting_place();
  [[nodiscard]] const std::string& run_id() const { return member_ ? member_->run_id() : rendezvous_->run_id(); }
  Result<RankAssignment> next_round(int attempt);
  Result<void> watch_guard_and_sweeper();
  void read_guard_messages();
  void read_sweeper_life();

  void own_signal(const process::SignalEvent& event);
  /// The way on which a signal came: from the guard, from the sweeper, or straight to us.
  enum class Way { guard, sweeper, own };
  void signal_arrived(int signal, pid_t sender, Way way);
  bool is_echo(int signal, Way way);
  void worker_ended(const process::ChildEnd& end);
  void check_gone();
  void parent_lost(const char* who, pid_t pid);
  void timers_expired(const std::vector<TimerRequest>& timers);
  void end_late_process(const TimerRequest& timer, const process::ProcessInfo& process);
  void time_is_up();
  /// From now on the console gets a bounded time for what it has not taken.
  void hurry();

  void dispatch(const Event& event);
  void carry_out(const action::SpawnWorkers& spawn);
  void carry_out(const action::SignalGroup& signal);
  void carry_out(const action::StartGrace& grace);
  void carry_out(const action::KillGroup&);
  void carry_out(const action::CheckGone&);
  void carry_out(const action::CloseOutput&);
  void carry_out(const action::StartBackoff& backoff);
  void carry_out(const action::StartSkew& skew);
  void carry_out(const action::Finish&);
  void carry_out(const action::Meet&) { member_->meet(); }
  void carry_out(const action::TellFailed& failed);
  void carry_out(const action::TellSucceeded& succeeded) { member_->tell(succeeded); }
  void carry_out(const action::TellStopped& stopped) { member_->tell(stopped); }
  void carry_out(const action::TellLeave& leave) { member_->tell(leave); }
  void carry_out(const action::TellAbort& abort) { member_->tell(abort); }
  void carry_out(const action::Desert&) { member_->desert(); }
  void all_is_written();

  Result<void> start_workers(int attempt);
  /// Before the group hears of its end from us: whoever is dead by now has ended by itself.
  void take_those_who_died_unasked();
  void output_closed();
  void kill_everything();
  template <class OnExpiry>
  void arm(asio::steady_timer& timer, Deadline at, OnExpiry on_expiry) {
    timer.expires_at(at);
    timer.async_wait([on_expiry, &timer](const boost::system::error_code& ec) {
      // One that was on its way when the timer was set anew is not the one that is waited for.
      if (!ec && Clock::now() >= timer.expiry()) on_expiry();
    });
  }

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
  process::SignalSource signals_;
  stream_descriptor guard_messages_;
  stream_descriptor sweeper_life_;
  asio::steady_timer grace_timer_;
  asio::steady_timer backoff_timer_;
  asio::steady_timer job_timer_;
  asio::steady_timer skew_timer_;
  std::unique_ptr<logs::Output> output_;
  std::unique_ptr<rendezvous::LocalRendezvous> rendezvous_;  ///< one machine
  std::unique_ptr<JobMember> member_;                        ///< several
  EventsFile events_file_;
  std::optional<LocalEvents> local_events_;  ///< one machine
  std::unique_ptr<WorkerGroup> group_;
  std::unique_ptr<GroupMachine> machine_;
  std::unique_ptr<EventLog> events_;
  std::unique_ptr<FileTimer> file_timer_;  ///< null: not asked for
  bool stranger_was_told_ = false;         ///< a timer of a process that is none of ours: once is enough

  std::deque<Action> actions_;
  bool acting_ = false;
  bool checking_gone_ = false;
  bool hurry_ = false;              ///< nobody may be left to read the console
  unsigned output_generation_ = 0;  ///< tells a late "output is closed" from the one that is waited for
  struct Heard {
    Clock::time_point at;
    std::set<Way> ways;
  };
  std::map<int, Heard> heard_;  ///< by signal
  std::set<int> sent_;          ///< signals by which the present attempt was taken down
  Deadline kill_deadline_{};
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
  if (auto found = find_meeting_place(); !found) return found;
  record_.result().run_id = run_id();

  logs::OutputOptions options;
  options.log = spec_.log;
  if (spec_.rendezvous.several_machines() && options.log.label == Label::automatic) options.log.label = Label::host;
  options.role = spec_.role;
  options.run_id = run_id();
  options.hostname = prepared_.hostname;
  options.local_world_size = prepared_.local_world_size;
  options.announce_private_directory = [shared = shared_.shared](const std::string& path) {
    if (path.size() < sizeof shared->private_directory) ::strcpy(shared->private_directory, path.c_str());
  };
  output_ = std::make_unique<logs::Output>(io_.get_executor(), std::move(options));
  if (auto ready = output_->prepare(); !ready) return ready;

  if (auto opened = watcher_.open(); !opened) return opened;
  if (auto opened = signals_.open(); !opened) return opened;
  if (auto watched = watch_guard_and_sweeper(); !watched) return watched;

  group_ = std::make_unique<WorkerGroup>(io_.get_executor(), spec_, prepared_, *launcher_, watcher_, *output_);
  if (auto enough = group_->check_descriptors(); !enough) return enough;
  GroupMachine::Rules rules{spec_.restart, spec_.stop, spec_.exit_skew, spec_.timeout.value_or(Milliseconds{0}),
                            member_ ? member_->authority() : Authority::here};
  machine_ = std::make_unique<GroupMachine>(std::move(rules), prepared_.local_world_size);
  events_ = std::make_unique<EventLog>(spec_.event_log_handler, spec_.role, prepared_.hostname,
                                       spec_.rendezvous.standalone ? "c10d" : spec_.rendezvous.backend);
  shared_.shared->grace_ms = static_cast<long>(spec_.stop.grace.count());
  std::uint64_t ending = 0;
  for (const int signal : spec_.stop.ending_signals) ending |= process::signal_bit(signal);
  shared_.shared->ending_signals = ending;
  job_cgroup_ = process::await_job_cgroup(*shared_.shared);
  if (auto path = wanted_timer_file(spec_, prepared_.parent)) {
    file_timer_ =
        std::make_unique<FileTimer>(io_.get_executor(), [this](const auto& timers) { timers_expired(timers); });
    return file_timer_->open(std::move(*path));
  }
  return {};
}

Result<void> Agent::find_meeting_place() {
  const bool with_store = worker_env::uses_agent_store(spec_, prepared_.parent);
  if (!spec_.rendezvous.several_machines()) {
    if (spec_.events_file) local_events_.emplace(events_file_, prepared_.hostname);
    rendezvous_ = std::make_unique<rendezvous::LocalRendezvous>(spec_, prepared_.local_world_size);
    return rendezvous_->open(with_store);
  }
  JobMember::Options options;
  options.spec = &spec_;
  options.prepared = &prepared_;
  options.record = &record_;
  options.events = &events_file_;
  options.version = version_;
  options.hooks = &hooks_;
  options.with_store = with_store;
  member_ = std::make_unique<JobMember>(io_.get_executor(), std::move(options),
                                        [this](const Event& event) { dispatch(event); });
  return member_->open();
}

Result<RankAssignment> Agent::next_round(int attempt) {
  if (member_) return member_->ranks();
  return rendezvous_->next_round(attempt);
}

Result<void> Agent::watch_guard_and_sweeper() {
  boost::system::error_code ec;
  guard_messages_.assign(shared_.guard_messages.release(), ec);
  if (!ec) sweeper_life_.assign(shared_.sweeper_life.release(), ec);
  if (ec) return fail(Errc::unavailable, "cannot watch ddrun's own processes: " + ec.message(), ec);
  read_guard_messages();
  read_sweeper_life();
  shared_.shared->agent_has_listened = true;
  shared_.shared->agent_listens = true;
  return {};
}

void Agent::read_guard_messages() {
  guard_messages_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    process::SignalMessage message;
    ssize_t n;
    while ((n = ::read(guard_messages_.native_handle(), &message, sizeof message)) == sizeof message) {
      signal_arrived(message.signal, message.sender, Way::guard);
    }
    if (n == 0) {
      // A stopped sweeper would stay behind for ever.
      if (::getppid() == shared_.shared->sweeper_pid) ::kill(::getppid(), SIGCONT);
      parent_lost("guard", shared_.shared->guard_pid);
      return;
    }
    read_guard_messages();
  });
}

void Agent::read_sweeper_life() {
  sweeper_life_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (!ec) parent_lost("sweeper", shared_.shared->sweeper_pid);
  });
}

// ---- what happens

void Agent::own_signal(const process::SignalEvent& event) {
  if (event.signal == SIGCHLD) watcher_.reap();
  else if (event.sender == shared_.shared->sweeper_pid) signal_arrived(event.signal, event.sender, Way::sweeper);
  else signal_arrived(event.signal, event.sender, Way::own);
}

bool Agent::is_echo(int signal, Way way) {
  Heard& heard = heard_[signal];
  const auto now = Clock::now();
  if (now - heard.at < echo_time && heard.ways.insert(way).second) return true;
  heard = {now, {way}};
  return false;
}

void Agent::signal_arrived(int signal, pid_t sender, Way way) {
  if (is_echo(signal, way)) return;
  if (spec_.stop.ending_signals.count(signal) == 0) {
    say(Level::info, concat("passing ", signal_name(signal), " to the workers"));
    group_->signal(signal);
    return;
  }
  const State state = machine_->state();
  const std::string from = name_sender(sender);
  if (state == State::closing || state == State::finished) {
    // Only a console that takes nothing can be what keeps us.
    hurry_ = true;
    dispatch(event::EndingSignal{signal, from});
    output_closed();
    if (state == State::finished) io_.stop();
    return;
  }
  const std::string what = signal_name(signal) + (from.empty() ? "" : " from " + from);
  if (machine_->ending_signal() != 0) {
    say(Level::notice, concat(what, " again: killing all workers"));
  } else if (group_->living() > 0) {
    say(Level::notice, concat(what, ": stopping ", group_->living(), group_->living() == 1 ? " worker" : " workers",
                              " (SIGKILL after ", format_duration(spec_.stop.grace), ", or at once if you repeat it)"));
  }
  dispatch(event::EndingSignal{signal, from});
}

void Agent::parent_lost(const char* who, pid_t pid) {
  hurry();
  dispatch(event::ParentLost{concat("ddrun's own ", who, " (pid ", pid, ") was killed; the job was stopped")});
}

void Agent::timers_expired(const std::vector<TimerRequest>& timers) {
  std::map<pid_t, process::ProcessInfo> family;
  for (const auto& process : process::descendants(::getpid())) family.emplace(process.pid, process);
  for (const TimerRequest& timer : timers) {
    // Anybody's number may be in the FIFO: only who descends from us is meant.
    const auto process = family.find(timer.pid);
    if (process != family.end()) {
      end_late_process(timer, process->second);
    } else if (!std::exchange(stranger_was_told_, true)) {
      say(Level::warning, concat("the watchdog timer ", timer.scope, " of process ", timer.pid,
                                 " has expired, which is not one of this job: left alone"));
    }
  }
}

void Agent::end_late_process(const TimerRequest& timer, const process::ProcessInfo& process) {
  const auto& workers = group_->workers();
  const auto owner = std::find_if(workers.begin(), workers.end(), [&](const Worker& worker) {
    return worker.end.pid == process.pid || worker.end.pid == process.group;
  });
  std::string what = concat("watchdog timer ", timer.scope);
  std::replace_if(
      what.begin(), what.end(), [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, '?');
  if (owner == workers.end() || owner->end.pid != timer.pid) what += concat(" of its process ", timer.pid);
  what += timer.signal > 0 ? concat(" expired: ddrun sent ", signal_name(timer.signal))
                           : " expired; it names no signal, and nothing was sent";
  if (owner != workers.end()) say(Level::notice, concat("rank ", owner->end.rank, ": ", what));
  else say(Level::notice, what);
  if (timer.signal <= 0) return;
  if (owner != workers.end()) record_.note_reason(owner->end.pid, std::move(what));
  ::kill(timer.pid, timer.signal);
}

void Agent::time_is_up() {
  hurry();
  if (machine_->state() != State::closing && machine_->state() != State::finished) {
    say(Level::notice, concat("the time limit of ", format_duration(*spec_.timeout), " is up"));
  }
  dispatch(event::JobTimeout{});
}

void Agent::hurry() {
  hurry_ = true;
  if (machine_->state() == State::finished) {
    arm(grace_timer_, Clock::now() + hurried_end, [this] { io_.stop(); });
  } else if (machine_->state() == State::closing) {
    arm(grace_timer_, Clock::now() + hurried_end, [this] { output_closed(); });
  }
}

void Agent::worker_ended(const process::ChildEnd& end) {
  Worker* worker = group_->take_end(end);
  if (worker == nullptr) return;
  output_->drain(worker->local_rank);
  WorkerEnd& told = worker->end;
  told.success = is_success(told.status, spec_.restart);
  if (machine_->taking_down() && !sent_.empty()) {
    // Who dies of something that we have not sent was not ended by us.
    const auto* signaled = std::get_if<Signaled>(&told.status);
    told.stopped_by_ddrun = signaled == nullptr || sent_.count(signaled->signal) != 0;
  }
  say(Level::info, concat("rank ", told.rank, " (pid ", told.pid, ") ", describe(told.status), " after ",
                          format_duration(told.ran)));
  events_->worker_ended(told);
  const bool had_failed = machine_->first_failure().has_value();
  dispatch(event::WorkerEnded{worker->local_rank, told.status});
  if (local_events_ && !had_failed && machine_->first_failure()) local_events_->failed(told);
  check_gone();
}

void Agent::check_gone() {
  if (!checking_gone_ || group_->living() > 0) return;
  if (!process::any_child_left()) {
    checking_gone_ = false;
    grace_timer_.cancel();
    dispatch(event::GroupGone{});
  } else if (machine_->state() == State::stopping) {
    if (!group_->somebody_in_a_group()) dispatch(event::OnlyStraysLeft{});
  }
}

// ---- what is done

void Agent::dispatch(const Event& event) {
  for (auto& action : machine_->on(event, Clock::now())) actions_.push_back(std::move(action));
  if (acting_) return;
  acting_ = true;
  while (!actions_.empty()) {
    const Action action = std::move(actions_.front());
    actions_.pop_front();
    std::visit([this](const auto& what) { carry_out(what); }, action);
  }
  acting_ = false;
}

Result<void> Agent::start_workers(int attempt) {
  std::vector<logs::WorkerIdentity> identities;
  const auto round = next_round(attempt);
  if (!round) return tl::unexpected(round.error());
  const RankAssignment& ranks = *round;
  identities.reserve(static_cast<std::size_t>(prepared_.local_world_size));
  for (int local_rank = 0; local_rank < prepared_.local_world_size; ++local_rank) {
    identities.push_back({ranks.rank_of(local_rank), local_rank});
  }
  events_->attempt_started(ranks);
  if (local_events_) local_events_->round(ranks);
  if (auto begun = output_->begin_attempt(attempt, identities); !begun) return begun;
  worker_env::WorkerFacts facts;
  facts.version = version_;
  facts.attempt_dir = output_->attempt_dir();
  facts.job_tag = run_id();
  if (file_timer_) {
    file_timer_->forget();
    facts.timer_file = file_timer_->path();
  }
  facts.error_file = [this](int local_rank) { return output_->error_file(local_rank); };
  auto environment = worker_env::WorkerEnvironment::prepare(spec_, ranks, prepared_.parent, facts);
  if (!environment) return tl::unexpected(environment.error());
  job_cgroup_.renew();
  launcher_->set_child_cgroup(job_cgroup_.open_directory());
  say(Level::info, concat("starting ", ranks.local_world_size, ranks.local_world_size == 1 ? " worker" : " workers",
                          ", attempt ", attempt, ", store at ", ranks.master_addr, ":", ranks.master_port));
  auto spawned = group_->spawn_all(ranks, *environment, [this] {
    io_.poll();
    return machine_->spawn_is_pointless();
  });
  for (const Worker& worker : group_->workers()) {
    if (worker.end.pid != 0) events_->worker_started(worker.end);
  }
  return spawned;
}

void Agent::carry_out(const action::SpawnWorkers& spawn) {
  attempt_started_at_ = Clock::now();
  sent_.clear();
  group_->forget_workers();
  if (auto started = start_workers(spawn.attempt); !started) {
    dispatch(event::SpawnFailed{started.error().message, exit_code(started.error().code)});
  } else {
    if (local_events_) local_events_->started();
    dispatch(event::Spawned{});
  }
}

void Agent::take_those_who_died_unasked() {
  if (sent_.empty()) watcher_.reap();
}

void Agent::carry_out(const action::SignalGroup& signal) {
  take_those_who_died_unasked();
  sent_.insert(signal.signal);
  group_->signal(signal.signal);
  group_->signal(SIGCONT);
}

void Agent::carry_out(const action::StartGrace& grace) {
  arm(grace_timer_, Clock::now() + grace.duration, [this] {
    if (group_->living() > 0) {
      say(Level::notice, concat(group_->living(), group_->living() == 1 ? " worker has" : " workers have",
                                " not ended within ", format_duration(spec_.stop.grace), ": SIGKILL"));
    }
    dispatch(event::GraceExpired{});
  });
}

void Agent::carry_out(const action::KillGroup&) {
  take_those_who_died_unasked();
  sent_.insert(SIGKILL);
  kill_everything();
  kill_deadline_ = Clock::now() + kill_limit;
}

void Agent::carry_out(const action::CheckGone&) {
  checking_gone_ = true;
  if (machine_->state() == State::killing) {
    // Whoever was born while we looked is found in the next turn; a death comes first as a rule, and ends the wait.
    arm(grace_timer_, Clock::now() + resweep, [this] {
      if (machine_->state() != State::killing) return;
      if (Clock::now() >= kill_deadline_) {
        checking_gone_ = false;
        dispatch(event::KillExpired{});
        return;
      }
      kill_everything();
      watcher_.reap();
      if (machine_->state() == State::killing) carry_out(action::CheckGone{});
    });
  }
  check_gone();
}

void Agent::kill_everything() {
  job_cgroup_.kill();
  group_->kill_everything();  // also what has moved to another cgroup, and where there is none
}

void Agent::carry_out(const action::CloseOutput&) {
  grace_timer_.cancel();
  skew_timer_.cancel();
  group_->close_inputs();
  const bool all_gone = !process::any_child_left();
  const Deadline deadline = all_gone && !hurry_ ? no_deadline : Clock::now() + hurried_end;
  output_->async_end_attempt(deadline, [this, generation = output_generation_] {
    if (generation == output_generation_) output_closed();
  });
}

void Agent::output_closed() {
  if (machine_->state() != State::closing) return;
  ++output_generation_;
  record_.add_attempt(*machine_, *group_, *output_, prepared_, attempt_started_at_);
  const bool again = machine_->will_restart();
  const std::string why = again ? record_.describe_restart(machine_->restarts_used() + 1) : "";
  if (local_events_) local_events_->ended(again, why);
  if (again) {
    say(Level::notice, why);
    if (local_events_) local_events_->restart(machine_->restarts_used() + 1, machine_->restart_pause(Clock::now()), why);
  }
  dispatch(event::OutputClosed{});
}

void Agent::carry_out(const action::StartBackoff& backoff) {
  arm(backoff_timer_, Clock::now() + backoff.duration, [this] { dispatch(event::BackoffExpired{}); });
}

void Agent::carry_out(const action::StartSkew& skew) {
  arm(skew_timer_, Clock::now() + skew.duration, [this] { dispatch(event::SkewExpired{}); });
}

void Agent::carry_out(const action::TellFailed& failed) {
  const auto& workers = group_->workers();
  const auto worker = std::find_if(workers.begin(), workers.end(),
                                   [&](const Worker& one) { return one.local_rank == failed.local_rank; });
  if (worker != workers.end()) member_->tell_failed(worker->end);
}

void Agent::carry_out(const action::Finish&) {
  backoff_timer_.cancel();
  skew_timer_.cancel();
  if (!record_.result().cause) record_.take_verdict(*machine_);
  events_->job_ended(record_.result());
  if (local_events_) local_events_->verdict(record_.result(), exit_code(record_.result()));
  output_->async_flush(hurry_ ? Clock::now() + hurried_end : no_deadline, [this] { all_is_written(); });
}

void Agent::all_is_written() {
  if (!member_) io_.stop();
  else member_->async_close([this] { io_.stop(); });
}

JobResult Agent::run() {
  if (auto ready = set_up(); !ready) {
    if (output_) output_->remove_if_unused();
    JobResult& refused = record_.result();
    refused.verdict = Verdict::launcher_failed;
    refused.message = ready.error().message;
    refused.launcher_code = exit_code(ready.error().code);
    refused.host = prepared_.hostname;
    return std::move(refused);
  }
  if (spec_.report_bindings) {
    for (const auto& line :
         topology::describe_bindings(prepared_.binding, prepared_.local_world_size, prepared_.cpus, 0)) {
      say(Level::notice, line);
    }
  }
  if (spec_.timeout) {
    arm(job_timer_, record_.started_at() + *spec_.timeout, [this] { time_is_up(); });
  }
  set_message_sink([this](std::string_view line) { output_->console_line(line); });
  dispatch(event::Start{});
  io_.run();
  set_message_sink({});
  if (file_timer_) file_timer_->close();
  shared_.shared->agent_listens = false;
  JobResult ended = record_.finish(*output_, prepared_);
  output_->remove_if_unused();
  output_.reset();
  return ended;
}

}  // namespace

JobResult run_job(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                  const std::string& version, JobHooks hooks) {
  // Left to the end of the process, which is next: taking it all apart, thread and sockets, would only take time.
  return (new Agent(spec, context, environment, version, std::move(hooks)))->run();
}

}  // namespace ddrun::agent
