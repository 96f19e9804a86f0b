#include "ddrun/process/guard.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <optional>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signals.hpp"
#include "sweeper.hpp"
#include "terminal_state.hpp"

namespace ddrun::process {

namespace {

/// Missing standard descriptors would be given to our pipes, and then to the workers as their stdout.
void open_missing_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
    }
  }
}

/// A job in the background must leave the terminal to the shell.
bool is_stdin_usable() {
  if (::isatty(STDIN_FILENO) == 0) return true;
  const pid_t foreground = ::tcgetpgrp(STDIN_FILENO);
  return foreground < 0 || foreground == ::getpgrp();
}

pid_t started_process = 0;

bool forwarded_by_parent(const siginfo_t& info) { return info.si_code == SI_QUEUE && info.si_pid == ::getppid(); }

/// Of a signal that was sent to us, or that our parent has passed on with its sender; 0 for the kernel.
pid_t sender_of(const siginfo_t& info) {
  if (forwarded_by_parent(info)) return info.si_value.sival_int;
  return info.si_code <= 0 ? info.si_pid : 0;
}

/// A process that stops must be sure that another continues it. (Process 1 of a container cannot even stop.)
bool may_stop() { return ::getpid() != 1 && !own_group_is_orphaned(); }

/// The process that the user started, where the guard is a child of it: passes all signals on, and ends as the guard
/// does. What else it has for children was there before ddrun, and none of its business.
class SignalProxy {
 public:
  SignalProxy(pid_t guard, const TerminalState& terminal) : guard_(guard), terminal_(terminal) {}

  [[noreturn]] void run() const {
    const sigset_t set = handled_signals();
    while (true) {
      reap_guard();
      siginfo_t info{};
      const int signal = ::sigwaitinfo(&set, &info);
      if (signal < 0 || signal == SIGCHLD) continue;
      sigval sender{};
      sender.sival_int = sender_of(info);
      // The guard stops for what we queue, and we with it.
      if (signal == SIGTSTP && !may_stop()) ::kill(guard_, signal);
      else ::sigqueue(guard_, signal, sender);
    }
  }

 private:
  void reap_guard() const {
    int status = 0;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0 || (pid < 0 && errno == EINTR)) {
      if (pid != guard_) continue;
      if (WIFSTOPPED(status)) {
        ::raise(SIGSTOP);
        continue;
      }
      const int code = shell_code(exit_status_from_wait(status));
      terminal_.restore(code != exit_codes::success);  // the guard is in another session, and may not
      end_program({code, WIFSIGNALED(status) ? WTERMSIG(status) : 0});
    }
  }

  pid_t guard_;
  const TerminalState& terminal_;
};

/// Children that we have already are those of the program that became ddrun by exec: a script's background processes.
/// The guard ends whatever descends from it, so it must not be their parent, nor adopt what they leave. It becomes a
/// child of this process then, with a session of its own, so that it hears each signal once.
void isolate_from_existing_children(const TerminalState& terminal) {
  if (!has_children()) return;
  const pid_t before = ::getpid();
  const pid_t guard = ::fork();
  if (guard > 0) SignalProxy(guard, terminal).run();
  if (guard < 0) {
    say_error(concat("cannot start: ", std::error_code(errno, std::generic_category()).message()));
    ::_exit(exit_codes::launcher_failed);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // who kills the one that was started has killed the guard
  if (::getppid() != before) ::_exit(exit_codes::launcher_failed);
  ::setsid();
}

/// The agent has so long to stop the workers before the guard stops without it.
constexpr timespec suspend_timeout{1, 0};

/// The guard's loop: sleeps until a signal comes. (It wakes once by itself, when it has become clear that the job takes
/// longer than giving back memory.)
class Guard {
 public:
  Guard(pid_t sweeper, UniqueFd to_agent, UniqueFd to_sweeper, SharedState& shared, TerminalState& terminal)
      : sweeper_(sweeper),
        to_agent_(std::move(to_agent)),
        to_sweeper_(std::move(to_sweeper)),
        shared_(shared),
        terminal_(terminal) {}

  /// Until neither sweeper nor agent is left.
  ProgramEnd run() {
    const sigset_t set = handled_signals();
    bool settled = false;
    while (!reap()) {
      if (stop_wanted_ && shared_.suspended) stop();
      if (shared_.terminal_left_changed.exchange(false)) terminal_.restore(true);
      siginfo_t info{};
      const timespec* const limit = stop_wanted_ ? &suspend_timeout : settled ? nullptr : &settle_time;
      const int signal = limit != nullptr ? ::sigtimedwait(&set, &info, limit) : ::sigwaitinfo(&set, &info);
      if (signal < 0 && errno == EAGAIN) {
        if (stop_wanted_) {
          stop();
        } else {
          drop_startup_pages();
          settled = true;
        }
      }
      if (signal < 0 || signal == SIGCHLD) continue;
      // Looked at before the agent is told: a signal that it acts upon must not kill it when it has done so.
      const bool handled = shared_.agent_handles_signals;
      const bool ends_job = (shared_.ending_signals.load() & signal_bit(signal)) != 0;
      SignalMessage message{signal, sender_of(info), false};
      if (ends_job) {
        message.at_once =
            message.sender == at_once_mark || repeated_signal_.forces_kill(signal, message.sender, Clock::now());
      }
      if (signal == SIGTSTP && !ends_job && (forwarded_by_parent(info) || may_stop())) {
        message.signal = SIGSTOP;
        stop_wanted_ = true;
      }
      if (signal == SIGCONT) stop_wanted_ = false;
      [[maybe_unused]] ssize_t n = ::write(to_agent_.get(), &message, sizeof message);
      if (stop_wanted_ && !handled) stop();
      if (!ends_job) continue;
      received_ |= signal_bit(signal);
      const EndingMessage ending{static_cast<unsigned char>(handled ? 0 : signal), message.at_once};
      n = ::write(to_sweeper_.get(), &ending, sizeof ending);
      if (!sweeper_is_gone_) ::kill(sweeper_, SIGCONT);  // it may have been stopped
    }
    return {exit_code_, signal_of(exit_code_)};
  }

 private:
  /// Until SIGCONT. One that has come already would be forgotten by the kernel.
  void stop() {
    stop_wanted_ = false;
    sigset_t pending;
    ::sigemptyset(&pending);
    ::sigpending(&pending);
    if (::sigismember(&pending, SIGCONT) != 0) return;
    const bool unchanged = terminal_.is_unchanged();
    ::raise(SIGSTOP);
    terminal_.save_again(unchanged);
  }

  /// The signal that we have heard and that this exit code tells of; 0 for none. A process can die of it only if it is
  /// none of those that stop.
  [[nodiscard]] int signal_of(int exit_code) const {
    const int signal = exit_code - exit_codes::signal_base;
    const bool stops = signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
    return signal > 0 && signal < NSIG && !stops && (received_ & signal_bit(signal)) != 0 ? signal : 0;
  }

  /// True when all is over. If the sweeper was killed, the agent becomes a child of ours, and what it says counts.
  bool reap() {
    int status = 0;
    pid_t pid;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) != 0) {
      if (pid < 0) {
        if (errno == EINTR) continue;
        return true;
      }
      if (pid == shared_.agent_pid || (pid == sweeper_ && WIFEXITED(status))) {
        exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : exit_codes::launcher_failed;
        if (pid == shared_.agent_pid && WIFSIGNALED(status) && !shared_.agent_done)
          shared_.agent_killed_by = WTERMSIG(status);
        if (shared_.agent_done) exit_code_ = shared_.agent_code;
        // A sweeper does not wait for an agent that is done; the agent has become our child, and is on its way out.
        agent_is_gone_ = pid == shared_.agent_pid || !shared_.agent_done;
      }
      if (pid == sweeper_) sweeper_is_gone_ = true;
      // Without both, what is left is to be killed, not waited for.
      if (agent_is_gone_ && sweeper_is_gone_) return true;
      if (agent_is_gone_ && pid == shared_.agent_pid) return true;
      if (sweeper_is_gone_ && ::kill(shared_.agent_pid, 0) != 0) return true;
    }
    return false;
  }

  pid_t sweeper_;
  UniqueFd to_agent_;
  UniqueFd to_sweeper_;
  SharedState& shared_;
  TerminalState& terminal_;
  RepeatedSignal repeated_signal_;
  std::uint64_t received_ = 0;  ///< signals that end the job, as bits
  bool stop_wanted_ = false;    ///< as soon as the agent has stopped the workers
  int exit_code_ = exit_codes::launcher_failed;
  bool agent_is_gone_ = false;
  bool sweeper_is_gone_ = false;
};

}  // namespace

void SharedState::begin_signal_handling(const std::set<int>& signals, Milliseconds grace) {
  grace_ms = static_cast<long>(grace.count());
  std::uint64_t ending = 0;
  for (const int signal : signals) ending |= signal_bit(signal);
  ending_signals = ending;
  agent_ever_handled_signals = true;
  agent_handles_signals = true;
}

void SharedState::set_suspended(bool now_suspended) {
  suspended = now_suspended;
  if (now_suspended) wake_guard();
}

void SharedState::request_terminal_restore() {
  if (!has_terminal) return;
  terminal_left_changed = true;
  wake_guard();
}

Result<void> SharedState::set_private_directory(std::string_view path) {
  constexpr std::size_t max_bytes = sizeof private_directory - 1;
  if (path.size() > max_bytes) {
    return fail(Errc::invalid_argument, concat("the path of the job's private directory has ", path.size(),
                                               " bytes, at most ", max_bytes, " are possible"));
  }
  private_directory[path.copy(private_directory, max_bytes)] = '\0';
  return {};
}

void SharedState::wake_guard() const { ::kill(guard_pid, SIGCHLD); }

bool job_is_in_background() {
  const auto stat = read_process_stat(started_process);
  return stat && stat->foreground > 0 && stat->foreground != stat->group;
}

ProgramEnd run_guarded(int argc, char** argv, const std::function<int(AgentContext&)>& agent_main) {
  open_missing_standard_streams();
  // Closed pipes and full files are values that writes return.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  // The process that started us may ignore it; then no end of a child would ever be told.
  ::signal(SIGCHLD, SIG_DFL);
  block_handled_signals();
  AgentContext context;
  context.stdin_usable = is_stdin_usable();
  started_process = ::getpid();
  TerminalState terminal;
  terminal.save();
  isolate_from_existing_children(terminal);

  void* page = ::mmap(nullptr, sizeof(SharedState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto agent_pipe = make_pipe(O_NONBLOCK);
  auto sweeper_pipe = make_pipe(O_NONBLOCK);
  if (page == MAP_FAILED || !agent_pipe || !sweeper_pipe) {
    say_error(concat("cannot start: ", std::error_code(errno, std::generic_category()).message()));
    return {exit_codes::launcher_failed};
  }
  auto* shared = new (page) SharedState;
  context.shared = shared;
  shared->started_pid = started_process;
  shared->guard_pid = ::getpid();
  shared->has_terminal = terminal.is_saved();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);

  const pid_t sweeper = ::fork();
  if (sweeper < 0) {
    say_error(concat("cannot start: ", std::error_code(errno, std::generic_category()).message(),
                     " (the limit of processes may be reached: see 'ulimit -u')"));
    return {exit_codes::launcher_failed};
  }
  if (sweeper == 0) {
    agent_pipe->write.reset();
    sweeper_pipe->write.reset();
    context.guard_messages = std::move(agent_pipe->read);
    ::_exit(run_sweeper(argc, argv, std::move(sweeper_pipe->read), std::move(context), agent_main));
  }
  agent_pipe->read.reset();
  sweeper_pipe->read.reset();
  const ProgramEnd end =
      Guard(sweeper, std::move(agent_pipe->write), std::move(sweeper_pipe->write), *shared, terminal).run();

  // Whatever outlived agent and sweeper has become our child.
  JobCgroup cgroup{shared->cgroup};
  if (!cgroup.remove()) cgroup.kill();
  // What the sweeper could not kill has become ours too: no need to wait as long again.
  const auto timeout = std::chrono::seconds(shared->unkillable != 0 ? 1 : 10);
  const std::optional<std::size_t> unkillable = kill_all_descendants(std::chrono::steady_clock::now() + timeout);
  cgroup.remove_with_retry();  // only now is it empty
  terminal.restore(end.code != exit_codes::success || shared->terminal_left_changed);
  const bool left =
      shared->private_directory[0] != '\0' && ::rmdir(shared->private_directory) != 0 && errno == ENOTEMPTY;
  if (const int signal = shared->agent_killed_by; signal != 0) {
    say_error(concat("ddrun's own agent (pid ", static_cast<int>(shared->agent_pid), ") was killed by ",
                     signal_name(signal), unkillable == std::size_t{0} ? "; all workers have been ended" : ""));
  }
  if (left) say_error(concat("error files of workers are left in ", shared->private_directory));
  if (!unkillable) {
    say_error("processes of the job are left: they cannot be found, as /proc cannot be read");
  } else if (*unkillable > 0) {
    say_error(concat(*unkillable, " process(es) of the job cannot be killed: they hang inside the kernel, ",
                     "state D in 'ps -eo pid,user,stat,wchan,cmd', or belong to another user"));
  }
  return end;
}

void end_program(const ProgramEnd& end) {
  if (end.by_signal != 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::prctl(PR_SET_DUMPABLE, 0);  // a program that takes core files does not look at the limit
    ::signal(end.by_signal, SIG_DFL);
    sigset_t just_this;
    ::sigemptyset(&just_this);
    ::sigaddset(&just_this, end.by_signal);
    ::sigprocmask(SIG_UNBLOCK, &just_this, nullptr);
    ::raise(end.by_signal);
  }
  // Nothing is buffered and nothing to be taken apart: the C++ library's own end would only take time.
  ::_exit(end.code);
}

}  // namespace ddrun::process
