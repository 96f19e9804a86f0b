#include "ddrun/process/guard.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <new>
#include <optional>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signals.hpp"
#include "ddrun/process/startup_pages.hpp"
#include "sweeper.hpp"

namespace ddrun::process {

namespace {

/// State of standard input, output and error that is shared with the user's shell and that a worker can leave changed:
/// the terminal's settings, and O_NONBLOCK. Does not block; failures are ignored.
class TerminalState {
 public:
  /// Saves both; the settings only if this process's group is the terminal's foreground group.
  void save() {
    terminal_ = -1;
    for (int fd = 0; fd < 3; ++fd) {
      flags_[static_cast<std::size_t>(fd)] = ::fcntl(fd, F_GETFL);
      if (terminal_ < 0 && ::tcgetattr(fd, &settings_) == 0 && in_foreground(fd)) terminal_ = fd;
    }
  }
  /// Restores O_NONBLOCK, and with `settings_too` the settings, unless the terminal belongs to another group now. Only
  /// after a failure: a program that succeeds may want its settings to stay, as stty does.
  void restore(bool settings_too) const {
    for (int fd = 0; fd < 3; ++fd) {
      const int before = flags_[static_cast<std::size_t>(fd)];
      const int now = ::fcntl(fd, F_GETFL);
      if (before < 0 || now < 0 || (before & O_NONBLOCK) != 0 || (now & O_NONBLOCK) == 0) continue;
      if (::isatty(fd) == 0 || in_foreground(fd)) ::fcntl(fd, F_SETFL, now & ~O_NONBLOCK);
    }
    if (!settings_too || !is_saved() || !in_foreground(terminal_) || is_unchanged()) return;
    // If the terminal were given to another group in between, SIGTTOU would stop this process.
    sigset_t output_stop;
    sigset_t before;
    ::sigemptyset(&output_stop);
    ::sigaddset(&output_stop, SIGTTOU);
    ::sigprocmask(SIG_BLOCK, &output_stop, &before);
    ::tcsetattr(terminal_, TCSANOW, &settings_);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
  }
  /// After a stop, in which the shell may have changed the settings: saves them if they were unchanged before it.
  void save_again(bool was_unchanged) {
    if (was_unchanged && in_foreground(terminal_)) save();
  }

  [[nodiscard]] bool is_saved() const { return terminal_ >= 0; }
  [[nodiscard]] bool is_unchanged() const {
    termios now{};
    return ::tcgetattr(terminal_, &now) != 0 ||
           (now.c_iflag == settings_.c_iflag && now.c_oflag == settings_.c_oflag && now.c_cflag == settings_.c_cflag &&
            now.c_lflag == settings_.c_lflag && ::memcmp(now.c_cc, settings_.c_cc, sizeof now.c_cc) == 0);
  }

 private:
  [[nodiscard]] static bool in_foreground(int fd) { return ::tcgetpgrp(fd) == ::getpgrp(); }

  int terminal_ = -1;  ///< descriptor; -1: none
  termios settings_{};
  std::array<int, 3> flags_{-1, -1, -1};  ///< of the open files of descriptors 0 to 2
};

/// Otherwise pipes would get the numbers of missing standard streams, and workers would inherit them as stdout.
void open_missing_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
    }
  }
}

/// False if stdin is a terminal whose foreground group is another one.
bool is_stdin_usable() {
  if (::isatty(STDIN_FILENO) == 0) return true;
  const pid_t foreground = ::tcgetpgrp(STDIN_FILENO);
  return foreground < 0 || foreground == ::getpgrp();
}

pid_t started_process = 0;

bool forwarded_by_parent(const siginfo_t& info) { return info.si_code == SI_QUEUE && info.si_pid == ::getppid(); }

/// The sender, also of a signal that the parent has forwarded; 0: the kernel.
pid_t sender_of(const siginfo_t& info) {
  if (forwarded_by_parent(info)) return info.si_value.sival_int;
  return info.si_code <= 0 ? info.si_pid : 0;
}

/// False if no process could continue this one after a stop. (Process 1 of a container cannot stop at all.)
bool may_stop() { return ::getpid() != 1 && !own_group_is_orphaned(); }

/// The process that the user started, where the guard is a child of it: forwards all signals to the guard and exits as
/// the guard does. Its other children are older than ddrun and are left alone.
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
      // The guard stops for a queued SIGTSTP unconditionally, and this process follows.
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
      terminal_.restore(code != exit_codes::success);  // the guard is in another session and cannot
      end_program({code, WIFSIGNALED(status) ? WTERMSIG(status) : 0});
    }
  }

  pid_t guard_;
  const TerminalState& terminal_;
};

/// Existing children belong to the script that became ddrun by exec. As the guard kills all its descendants, it must
/// neither be their parent nor adopt their orphans: it is forked then. Its new session lets it get each signal once.
void isolate_from_existing_children(const TerminalState& terminal) {
  if (!has_children()) return;
  const pid_t before = ::getpid();
  const pid_t guard = ::fork();
  if (guard > 0) SignalProxy(guard, terminal).run();
  if (guard < 0) {
    say_error(concat("cannot start: ", std::error_code(errno, std::generic_category()).message()));
    ::_exit(exit_codes::launcher_failed);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // SIGKILL to the started process must end the job too
  if (::getppid() != before) ::_exit(exit_codes::launcher_failed);
  ::setsid();
}

/// After SIGTSTP the guard stops at the latest after this time, even if the agent has not stopped the workers.
constexpr timespec suspend_timeout{1, 0};
constexpr timespec settle_timeout{0, std::chrono::nanoseconds(settle_time).count()};

/// The guard's loop: sleeps until a signal comes. (Once, after settle_time, it wakes to give back memory.)
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
      const timespec* const limit = stop_wanted_ ? &suspend_timeout : settled ? nullptr : &settle_timeout;
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
      // The end of the parent (--end-with-parent) is no repeated signal: workers keep their time to end.
      if (received_ != 0 && sender_of(info) == shared_.agent_pid) continue;
      // Read before the message is written: the agent may close its signal handling in response, and must not be killed
      // by the sweeper then.
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
      if (ends_job) shared_.ending = true;
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
  /// Stops this process until SIGCONT. A pending SIGCONT would be discarded by the stop, so it is checked first.
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

  /// The received signal for which `exit_code` is 128 plus its number; 0: none. Stop signals do not kill a process.
  [[nodiscard]] int signal_of(int exit_code) const {
    const int signal = exit_code - exit_codes::signal_base;
    const bool stops = signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
    return signal > 0 && signal < NSIG && !stops && (received_ & signal_bit(signal)) != 0 ? signal : 0;
  }

  /// Reaps children; true when agent and sweeper are gone. If the sweeper was killed, the guard adopts the agent and
  /// uses its exit code.
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
        // The sweeper does not wait for an agent that is done: the guard has adopted it and reaps it.
        agent_is_gone_ = pid == shared_.agent_pid || !shared_.agent_done;
      }
      if (pid == sweeper_) sweeper_is_gone_ = true;
      // Without both the remaining children are killed, not waited for.
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
  std::uint64_t received_ = 0;  ///< ending signals received, as bits
  bool stop_wanted_ = false;    ///< SIGTSTP was received; the guard stops after the workers
  int exit_code_ = exit_codes::launcher_failed;
  bool agent_is_gone_ = false;
  bool sweeper_is_gone_ = false;
};

/// Blocks until `child` has another parent, or is gone.
void wait_for_end_of_parent(pid_t child, pid_t parent) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, parent, 0)));
  constexpr int look_again_ms = 100;
  pollfd ended{pidfd.get(), POLLIN, 0};  // a negative descriptor is ignored
  while (true) {
    // Read after the pidfd was opened: if it is still the parent, the pid was not reused before.
    const auto stat = read_process_stat(child);
    if (!stat || stat->parent != parent) return;
    if (::poll(&ended, 1, pidfd ? -1 : look_again_ms) > 0) return;
  }
}

}  // namespace

void SharedState::begin_signal_handling(const std::set<int>& signals, Milliseconds grace) {
  grace_ms = static_cast<long>(grace.count());
  std::uint64_t ending = 0;
  for (const int signal : signals) ending |= signal_bit(signal);
  ending_signals = ending;
  agent_handles_signals = true;
}

bool SharedState::has_to_end() const { return ending || ::getppid() != sweeper_pid; }

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

void SharedState::set_mpi_segments(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < std::size(mpi_segments); ++i) {
    const std::size_t size = i < names.size() ? names[i].copy(mpi_segments[i], sizeof mpi_segments[i] - 1) : 0;
    mpi_segments[i][size] = '\0';
  }
}

void SharedState::remove_mpi_segments() {
  for (auto& name : mpi_segments) {
    if (name[0] != '\0') ::unlink(concat("/dev/shm/", name).c_str());
    name[0] = '\0';
  }
}

void SharedState::set_mpi_directory(std::string_view name) {
  mpi_directory[name.copy(mpi_directory, sizeof mpi_directory - 1)] = '\0';
}

void SharedState::remove_mpi_files() {
  remove_mpi_segments();
  std::error_code ignored;
  if (mpi_directory[0] != '\0') std::filesystem::remove_all(concat("/dev/shm/", mpi_directory), ignored);
  mpi_directory[0] = '\0';
}

void SharedState::wake_sweeper() const {
  if (::getppid() == sweeper_pid) ::kill(sweeper_pid, SIGCHLD);
}

void SharedState::wake_guard() const { signal_guard(SIGCHLD); }

void SharedState::signal_guard(int signal) const {
  const UniqueFd held(static_cast<int>(::syscall(SYS_pidfd_open, guard_pid.load(), 0)));
  // While it lives the guard is the parent of the sweeper or, if that is dead, of the agent.
  const auto sweeper = read_process_stat(sweeper_pid);
  if (::getppid() != guard_pid && (!sweeper || sweeper->parent != guard_pid)) return;
  // A sandbox may know one of the calls only.
  if (!held || ::syscall(SYS_pidfd_send_signal, held.get(), signal, nullptr, 0) != 0) ::kill(guard_pid, signal);
}

bool job_is_in_background() {
  const auto stat = read_process_stat(started_process);
  return stat && stat->foreground > 0 && stat->foreground != stat->group;
}

/// Removes the job's private directory, or names it if it has files of workers.
static void remove_private_directory(const SharedState& shared) {
  const char* const path = shared.private_directory;
  if (path[0] == '\0' || ::rmdir(path) == 0 || errno != ENOTEMPTY) return;
  say_error(concat("error files of workers are left in ", path));
}

ProgramEnd run_guarded(int argc, char** argv, const std::function<int(AgentContext&)>& agent_main) {
  open_missing_standard_streams();
  // Closed pipes and full files are reported by write().
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  // Inherited SIG_IGN would make the kernel reap children before their status can be read.
  ::signal(SIGCHLD, SIG_DFL);
  block_handled_signals();
  AgentContext context;
  context.stdin_usable = is_stdin_usable();
  started_process = ::getpid();
  const pid_t parent = ::getppid();
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
  shared->parent_pid = parent;
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

  // Processes that outlived agent and sweeper have been adopted by this one.
  JobCgroup cgroup{shared->cgroup};
  if (!cgroup.remove()) cgroup.kill();
  // The sweeper has already waited for those that it could not kill: wait less.
  const auto timeout = std::chrono::seconds(shared->unkillable != 0 ? 1 : 10);
  const std::optional<std::size_t> unkillable = kill_all_descendants(std::chrono::steady_clock::now() + timeout);
  cgroup.remove_with_retry();  // only now is it empty
  terminal.restore(end.code != exit_codes::success || shared->terminal_left_changed);
  shared->remove_mpi_files();
  if (shared->ending || shared->agent_killed_by != 0) set_ending();
  if (const int signal = shared->agent_killed_by; signal != 0) {
    say_error(concat("ddrun's own agent (pid ", static_cast<int>(shared->agent_pid), ") was killed by ",
                     signal_name(signal), unkillable == std::size_t{0} ? "; all workers have been ended" : ""));
  }
  remove_private_directory(*shared);
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
    ::prctl(PR_SET_DUMPABLE, 0);  // a core_pattern program ignores RLIMIT_CORE
    ::signal(end.by_signal, SIG_DFL);
    sigset_t just_this;
    ::sigemptyset(&just_this);
    ::sigaddset(&just_this, end.by_signal);
    ::sigprocmask(SIG_UNBLOCK, &just_this, nullptr);
    ::raise(end.by_signal);
  }
  // Nothing is buffered: destructors would only take time.
  ::_exit(end.code);
}

Result<void> end_with_parent(const SharedState& shared, int signal) {
  const pid_t parent = shared.parent_pid;
  if (parent == 0) {
    return fail(Errc::invalid_argument,
                "--end-with-parent: the parent process is outside of this PID namespace; leave the option out");
  }
  auto thread = TRY(start_thread_signals_blocked("ddrun-parent", [&shared, parent, signal] {
    wait_for_end_of_parent(shared.started_pid, parent);
    shared.signal_guard(signal);
  }));
  thread.detach();
  return {};
}

}  // namespace ddrun::process
