#include "sweeper.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "ddrun/base/boot_time.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signals.hpp"
#include "ddrun/process/startup_pages.hpp"

namespace ddrun::process {

namespace {

using shutdown::agent_timeout;
constexpr auto sweep_timeout = std::chrono::seconds(10);
/// For the agent's helper to exit by itself: to release a lease takes a message to another machine.
constexpr std::chrono::milliseconds helper_timeout{2'000};
constexpr int max_overdue_kills = 50;

/// Sets the name that `pkill` matches, and the arguments that `pkill -f` matches.
void set_process_name(int argc, char** argv, pid_t guard) {
  ::prctl(PR_SET_NAME, "job-sweeper");
  if (argc < 1) return;
  char* const begin = argv[0];
  char* const end = argv[argc - 1] + ::strlen(argv[argc - 1]) + 1;
  ::memset(begin, 0, static_cast<std::size_t>(end - begin));
  ::snprintf(begin, static_cast<std::size_t>(end - begin), "job-sweeper of %d", static_cast<int>(guard));
}

/// The sweeper's loop while the agent lives.
class Sweeper {
 public:
  Sweeper(pid_t agent, UniqueFd guard_pipe, UniqueFd signals, SharedState& shared)
      : agent_(agent), guard_pipe_(std::move(guard_pipe)), signals_(std::move(signals)), shared_(shared) {}

  /// Blocks until the agent is dead, or done and about to exit. Returns its wait status.
  int wait_for_agent() {
    int status = 0;
    while (true) {
      if (shared_.agent_done) return W_EXITCODE(shared_.agent_code, 0);
      const pid_t reaped = ::waitpid(agent_, &status, WNOHANG);
      if (reaped == agent_) return status;
      if (reaped < 0 && errno != EINTR) return W_EXITCODE(exit_codes::launcher_failed, 0);  // no such child
      if (kill_at_ && Clock::now() >= *kill_at_) ::kill(agent_, SIGKILL);
      look_for_overdue_workers();
      wait_for_event();
    }
  }

  /// The signal for which an agent that did not handle signals was killed; 0: none.
  [[nodiscard]] int ending_signal() const { return ending_signal_; }

 private:
  void wait_for_event() {
    pollfd fds[3] = {{signals_.get(), POLLIN, 0}, {overdue_timer_.get(), POLLIN, 0}, {guard_pipe_.get(), POLLIN, 0}};
    int timeout = settled_ ? -1 : static_cast<int>(settle_time.count());
    if (!signals_) timeout = 100;  // without SIGCHLD (no descriptor was free) the agent's end is polled for
    if (kill_at_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*kill_at_ - Clock::now()).count();
      timeout = static_cast<int>(std::clamp<long long>(left + 1, 100, 60'000));
    }
    if (::poll(fds, guard_pipe_ ? 3 : 2, timeout) == 0 && !settled_) {
      drop_startup_pages();
      settled_ = true;
    }
    overdue_timer_fired_ = overdue_timer_fired_ || fds[1].revents != 0;
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      // A signal was sent to the sweeper itself: forward it.
      if (info.ssi_signo != SIGCHLD) ::kill(agent_, static_cast<int>(info.ssi_signo));
    }
    if (guard_pipe_ && fds[2].revents != 0) read_guard_pipe();
  }

  /// One timer, which is set anew only when it fires.
  void look_for_overdue_workers() {
    const auto deadline = shared_.overdue.deadline();
    if (deadline.clock == OverdueWorkers::Clocks::none && !overdue_.next_look()) return;
    const auto before = overdue_.next_look();
    const auto stat = read_process_stat(agent_);
    const OverdueWorkers::Now now{Clock::now().time_since_epoch(), boot_time(), stat ? stat->state : '?'};
    if (overdue_.look(deadline, now)) kill_overdue_workers();
    const auto next = overdue_.next_look();
    if (next == before && !std::exchange(overdue_timer_fired_, false)) return;
    if (!overdue_timer_) overdue_timer_ = make_boot_timer();
    itimerspec when{};
    if (next) {
      const bool leads = overdue_.clock() == OverdueWorkers::Clocks::lead;
      const auto left =
          std::max(*next - (leads ? boot_time() : Clock::now().time_since_epoch()), std::chrono::nanoseconds(1));
      when.it_value = {static_cast<time_t>(left.count() / 1'000'000'000),
                       static_cast<long>(left.count() % 1'000'000'000)};
    }
    ::timerfd_settime(overdue_timer_.get(), 0, &when, nullptr);
  }

  /// The workers and what they have started, not the helpers; the agent, which may go on, reaps them.
  void kill_overdue_workers() {
    shared_.overdue.stood_still_since_ns = shared_.overdue.written_ns.load();
    ++shared_.overdue.kills;
    JobCgroup(shared_.cgroup).kill();
    std::vector<pid_t> helpers;
    for (const auto& helper : shared_.helpers) {
      if (helper != 0) helpers.push_back(helper);
    }
    for (int times = 0; times < max_overdue_kills; ++times) {
      bool any = false;
      for (const ProcessInfo& info : descendants(agent_, helpers)) {
        if (info.state != 'Z' && signal_descendant(info, SIGKILL)) any = true;
      }
      if (!any) return;
      const timespec pause{0, 20'000'000};  // one may fork while others are killed
      ::nanosleep(&pause, nullptr);
    }
  }

  void read_guard_pipe() {
    EndingMessage message;
    const ssize_t n = ::read(guard_pipe_.get(), &message, sizeof message);
    if (n < 0) return;
    if (n == 0 ? !shared_.agent_handles_signals : message.unhandled != 0) {
      ending_signal_ = n == 0 ? SIGHUP : message.unhandled;
      ::kill(agent_, SIGKILL);
    }
    // A stopped agent could not react to the message or to the guard's death.
    ::kill(agent_, SIGCONT);
    if (n == 0) {
      shared_.ending = true;
      // The agent sees the same end-of-file and stops the job; if it does not, it is killed after the grace time.
      guard_pipe_.reset();
      arm_kill_timer(std::chrono::milliseconds(shared_.agent_handles_signals ? shared_.grace_ms.load() : 0) +
                     agent_timeout);
    } else if (message.at_once) {
      arm_kill_timer(agent_timeout);
    }
  }

  void arm_kill_timer(std::chrono::milliseconds from_now) {
    const auto at = Clock::now() + from_now;
    if (!kill_at_ || at < *kill_at_) kill_at_ = at;
  }

  pid_t agent_;
  UniqueFd guard_pipe_;
  UniqueFd signals_;
  SharedState& shared_;
  OverdueWorkers overdue_;
  UniqueFd overdue_timer_;
  bool overdue_timer_fired_ = false;
  bool settled_ = false;
  int ending_signal_ = 0;
  std::optional<Clock::time_point> kill_at_;
};

/// Reaps a child; gives up at `limit`, or if it was reaped already.
void wait_for_child(pid_t child, Clock::time_point limit) {
  const UniqueFd end(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  while (Clock::now() < limit && ::waitpid(child, nullptr, WNOHANG) == 0) {
    pollfd waited{end.get(), POLLIN, 0};
    // Without pidfds: poll every 10 ms.
    ::poll(&waited, end ? 1 : 0, end ? static_cast<int>(helper_timeout.count()) : 10);
  }
}

/// True if the write end of this pipe is closed everywhere.
bool has_no_writer(int pipe) {
  pollfd end{pipe, POLLIN, 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

/// Of a job whose agent was killed.
void end_what_is_left(SharedState& shared, JobCgroup& cgroup) {
  cgroup.kill();
  auto left = kill_all_descendants(Clock::now() + sweep_timeout, shared.helper_pid);
  if (shared.helper_pid != 0) {
    wait_for_child(shared.helper_pid, Clock::now() + helper_timeout);
    left = kill_all_descendants(Clock::now() + sweep_timeout);
  }
  shared.unkillable = left ? static_cast<int>(*left) : -1;
  shared.remove_mpi_files();
  cgroup.remove_with_retry();
}

}  // namespace

int run_sweeper(int argc, char** argv, UniqueFd guard_pipe, AgentContext context,
                const std::function<int(AgentContext&)>& agent_main) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  SharedState& shared = *context.shared;
  shared.sweeper_pid = ::getpid();

  auto alive_pipe = make_pipe();
  if (!alive_pipe) {
    say_error(alive_pipe.error().message);
    return exit_codes::launcher_failed;
  }
  const pid_t agent = ::fork();
  if (agent < 0) {
    say_error(fail_errno(Errc::unavailable, "cannot start the agent", errno).value().message);
    return exit_codes::launcher_failed;
  }
  if (agent == 0) {
    guard_pipe.reset();
    alive_pipe->write.reset();
    const int sweeper_liveness = alive_pipe->read.get();
    const int guard_messages = context.guard_messages.get();
    context.sweeper_liveness = std::move(alive_pipe->read);
    ::setsid();
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    shared.agent_pid = ::getpid();
    set_ending_condition([&shared] { return shared.has_to_end(); });
    helper::mirror_running(shared.helpers);
    const int code = run_main(exit_codes::launcher_failed, [&] { return agent_main(context); });
    if (!has_children()) {
      // An exit takes the kernel a while: the three processes exit at the same time, not one after the other.
      shared.agent_code = code;
      shared.agent_done = true;
      if (::getppid() == shared.sweeper_pid) ::kill(shared.sweeper_pid, SIGCHLD);
      // Guard or sweeper removes the cgroup; if one is dead the other may be dying too. (The pipes say so earlier than
      // getppid(): a dying process closes its descriptors before its children are adopted.)
      if (has_no_writer(sweeper_liveness) || has_no_writer(guard_messages))
        JobCgroup(shared.cgroup).remove_with_retry();
    }
    // _exit: no destructors or buffers that were forked from the guard.
    ::_exit(code);
  }
  shared.agent_pid = agent;
  ::setsid();  // after the fork: a new session can be a new group of the scheduler, which would delay the agent
  // While the agent gets ready: it needs the cgroup only for its first worker.
  JobCgroup cgroup = create_job_cgroup(shared);
  alive_pipe->read.reset();
  context.guard_messages.reset();
  set_process_name(argc, argv, shared.guard_pid);

  const sigset_t set = handled_signals();
  UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  // The sweeper must not hold open the user's pipes or terminal.
  if (const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC); null >= 0) {
    for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
    ::close(null);
  }
  Sweeper sweeper(agent, std::move(guard_pipe), std::move(signals), shared);
  const int status = sweeper.wait_for_agent();
  const bool ended_early = sweeper.ending_signal() != 0 && WIFSIGNALED(status);
  if (WIFSIGNALED(status) && !ended_early) shared.agent_killed_by = WTERMSIG(status);
  if (!shared.agent_done) end_what_is_left(shared, cgroup);
  if (cgroup.remove()) shared.cgroup[0] = '\0';
  const bool gone = shared.private_directory[0] == '\0' || ::rmdir(shared.private_directory) == 0;
  if (gone || shared.agent_killed_by == 0) shared.private_directory[0] = '\0';
  if (ended_early) return exit_codes::signal_base + sweeper.ending_signal();
  return WIFSIGNALED(status) ? exit_codes::launcher_failed : WEXITSTATUS(status);
}

}  // namespace ddrun::process
