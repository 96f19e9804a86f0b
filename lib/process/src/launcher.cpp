#include "ddrun/process/launcher.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "clone_child.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/process_tree.hpp"

namespace ddrun::process {

namespace {

// ---- between clone and exec, in the child

/// The step at which a child failed.
enum class SpawnStep { none, session, parent_death, affinity, limits, descriptors, directory, standard_streams, exec };

const char* describe(SpawnStep step) {
  switch (step) {
    case SpawnStep::none: return "start";
    case SpawnStep::session: return "make a session for it";
    case SpawnStep::parent_death: return "set its parent-death signal";
    case SpawnStep::affinity: return "bind it to its CPUs";
    case SpawnStep::limits: return "restore its descriptor limit";
    case SpawnStep::descriptors: return "close our descriptors in it";
    case SpawnStep::directory: return "enter its working directory";
    case SpawnStep::standard_streams: return "connect its standard streams";
    case SpawnStep::exec: return "execute it";
  }
  return "start";
}

/// Input and result of the child, in the memory that it shares with the parent until exec.
struct ChildStart {
  SpawnPlan plan;
  pid_t parent;
  int standard_fds[3];      ///< reserved low descriptors that become 0, 1, 2; -1: inherit
  unsigned first_unused;    ///< descriptors from here on are closed in the child
  bool shared_descriptors;  ///< cloned with CLONE_FILES: unshare before anything is changed
  bool has_close_range;
  const rlimit* descriptor_limit;  ///< the user's, before ddrun raised it; null: unchanged
  const int* reset_signals;        ///< zero-terminated: those not at their default in the parent
  // Progress and result.
  bool has_own_descriptors = false;  ///< the parent may close those that it reserved for this start
  SpawnStep failed_step = SpawnStep::none;
  int error = 0;
};

[[noreturn]] __attribute__((no_sanitize("address", "thread", "undefined"))) void exit_with_error(ChildStart& start,
                                                                                                 SpawnStep step,
                                                                                                 long result) {
  start.failed_step = step;
  start.error = static_cast<int>(-result);
  while (true) raw_syscall(SYS_exit_group, 127);
}

/// struct sigaction of the kernel's interface; all zero: the default action.
struct KernelSigaction {
  void* handler;
  unsigned long flags;
  void* restorer;
  unsigned long mask;
};

/// Makes a terminal the controlling one. Unless it is stdin its foreground group becomes an empty one: that of a
/// process of this session which has exited. (The kernel also accepts the pid of a process that leads no group.)
__attribute__((always_inline, no_sanitize("address", "thread", "undefined"))) inline void set_controlling_terminal(
    int terminal) {
  if (raw_syscall(SYS_ioctl, terminal, TIOCSCTTY, 0) < 0 || terminal == STDIN_FILENO) return;
  // As vfork: it runs on this stack while the caller waits. No exit signal.
  const long passing = raw_syscall(SYS_clone, CLONE_VM | CLONE_VFORK, 0);
  if (passing == 0) {
    while (true) raw_syscall(SYS_exit, 0);
  }
  if (passing < 0) return;
  const int group = static_cast<int>(passing);
  raw_syscall(SYS_ioctl, terminal, TIOCSPGRP, &group);
  while (raw_syscall(SYS_wait4, passing, nullptr, __WALL, nullptr) == -EINTR) {
  }
}

/// The child, on its own stack but in the parent's memory while the parent runs, with all signals blocked. Does not
/// return. Only raw system calls: no allocation, no locks, no errno, nothing of the C or C++ libraries.
__attribute__((no_sanitize("address", "thread", "undefined"))) int run_child(void* child_start) {
  ChildStart& start = *static_cast<ChildStart*>(child_start);
  const SpawnPlan& plan = start.plan;
  long result;

  // Ignored or handled signals go back to their defaults. The table is not shared with the parent (no CLONE_SIGHAND).
  const KernelSigaction by_default{};
  for (const int* signal = start.reset_signals; *signal != 0; ++signal) {
    raw_syscall(SYS_rt_sigaction, *signal, &by_default, nullptr, sizeof by_default.mask);
  }

  // New session and process group: Ctrl-C reaches only ddrun, and a signal to the group reaches the worker's children.
  if ((result = raw_syscall(SYS_setsid)) < 0) exit_with_error(start, SpawnStep::session, result);

  // It dies with the agent. If the agent is dead already, no such signal will come.
  if ((result = raw_syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL)) < 0) {
    exit_with_error(start, SpawnStep::parent_death, result);
  }
  if (raw_syscall(SYS_getppid) != start.parent) raw_syscall(SYS_exit_group, 127);

  if (plan.cpu_mask != nullptr &&
      (result = raw_syscall(SYS_sched_setaffinity, 0, plan.cpu_mask_bytes, plan.cpu_mask)) < 0) {
    exit_with_error(start, SpawnStep::affinity, result);
  }
  if (start.descriptor_limit != nullptr &&
      (result = raw_syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, start.descriptor_limit, nullptr)) < 0) {
    exit_with_error(start, SpawnStep::limits, result);
  }

  // Unshare the descriptor table and copy only its low end. An ordinary clone would copy all of it, with two pipes for
  // each worker that runs already: quadratic in the number of workers.
  if (start.shared_descriptors &&
      (result = raw_syscall(SYS_close_range, start.first_unused, ~0U, CLOSE_RANGE_UNSHARE)) < 0) {
    exit_with_error(start, SpawnStep::descriptors, result);
  }
  __atomic_store_n(&start.has_own_descriptors, true, __ATOMIC_RELEASE);

  if (plan.directory != nullptr && (result = raw_syscall(SYS_chdir, plan.directory)) < 0) {
    exit_with_error(start, SpawnStep::directory, result);
  }

  for (int fd = 0; fd < 3; ++fd) {
    if (start.standard_fds[fd] >= 0 && (result = raw_syscall(SYS_dup3, start.standard_fds[fd], fd, 0)) < 0) {
      exit_with_error(start, SpawnStep::standard_streams, result);
    }
  }
  if (plan.controlling_terminal >= 0) set_controlling_terminal(plan.controlling_terminal);
  // Without close_range, mark_all_close_on_exec() has marked everything from 3 up.
  if (start.has_close_range && (result = raw_syscall(SYS_close_range, 3U, ~0U, 0U)) < 0) {
    exit_with_error(start, SpawnStep::descriptors, result);
  }

  const unsigned long no_signals = 0;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, nullptr, sizeof no_signals);
  result = raw_syscall(SYS_execve, plan.program, plan.argv, plan.environment);
  exit_with_error(start, SpawnStep::exec, result);
}

// ---- the parent

constexpr std::size_t stack_bytes = 32 << 10;
/// The last slot is spawn()'s.
constexpr int all_slots = Spawner::slots + 1;
constexpr int spawn_slot = Spawner::slots;
/// How often /proc is read where the kernel does not say that a child has left the shared memory.
constexpr Milliseconds poll_interval{1};

/// Signals whose disposition is not the default, zero-terminated: a child must reset them.
std::vector<int> changed_signals() {
  std::vector<int> changed;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL) changed.push_back(signal);
  }
  changed.push_back(0);
  return changed;
}

/// For kernels without close_range: exec closes the descriptors.
void mark_all_close_on_exec() {
  DIR* dir = ::opendir("/proc/self/fd");
  if (dir == nullptr) return;
  while (const dirent* entry = ::readdir(dir)) {
    const int fd = ::atoi(entry->d_name);
    if (fd > 2) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  ::closedir(dir);
}

/// What /proc says of a child that has not cleared its word: whether it has executed a program or has ended. The
/// command line shows that a ddrun has executed ddrun. False where /proc cannot tell.
bool has_left_by_proc(pid_t pid) {
  if (has_ended(pid)) return true;
  std::error_code unreadable;
  const auto program = std::filesystem::read_symlink(concat("/proc/", pid, "/exe"), unreadable);
  const auto own_program = std::filesystem::read_symlink("/proc/self/exe", unreadable);
  if (!program.empty() && !own_program.empty() && program != own_program) return true;
  const auto arguments = read_small_file(concat("/proc/", pid, "/cmdline"));
  return arguments && !arguments->empty() && arguments != read_small_file("/proc/self/cmdline");
}

Error exec_error(const SpawnPlan& plan, const ChildStart& start) {
  const std::string reason = std::error_code(start.error, std::generic_category()).message();
  const std::error_code cause(start.error, std::generic_category());
  if (start.failed_step == SpawnStep::exec) {
    const bool missing = start.error == ENOENT || start.error == ENOTDIR;
    const bool not_executable = start.error == EACCES || start.error == ENOEXEC || start.error == EISDIR ||
                                start.error == ELIBBAD || start.error == EPERM;
    if (missing || not_executable) {
      return {missing ? Errc::not_found : Errc::not_executable, concat(plan.program, ": ", reason), cause};
    }
  }
  std::string object = start.failed_step == SpawnStep::directory ? plan.directory : plan.program;
  return {
      Errc::unavailable,
      concat("cannot start ", plan.program, ": failed to ", describe(start.failed_step), " (", object, "): ", reason),
      cause};
}

}  // namespace

struct Launcher::Slot {
  UniqueFd parked_fds[3];  ///< reserved low descriptors, which a child copies without the rest of the table
  char* stack = nullptr;
  ChildStart start{};
  pid_t pid = 0;
  int pidfd = -1;
  bool requested_pidfd = false;
  /// Not 0 until the child has left the shared memory by exec or exit: the kernel clears it and wakes the futex.
  int shares_memory = 0;
};

/// A plan with memory that lives as long as the launcher.
struct Launcher::PlanCopy {
  std::string program, directory;
  std::vector<std::string> words;  ///< of argv, then of the environment
  std::vector<char*> pointers;

  SpawnPlan copy(const SpawnPlan& plan) {
    program = plan.program;
    directory = plan.directory != nullptr ? plan.directory : "";
    words.clear();
    pointers.clear();
    for (char* const* word = plan.argv; *word != nullptr; ++word) words.emplace_back(*word);
    const std::size_t count = words.size();
    for (char* const* entry = plan.environment; *entry != nullptr; ++entry) words.emplace_back(*entry);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i == count) pointers.push_back(nullptr);
      pointers.push_back(words[i].data());
    }
    pointers.resize(words.size() + 2);  // an empty environment has its end, too
    SpawnPlan copy = plan;
    copy.program = program.c_str();
    copy.argv = pointers.data();
    copy.environment = pointers.data() + count + 1;
    if (plan.directory != nullptr) copy.directory = directory.c_str();
    return copy;
  }
};

Launcher::Launcher() = default;

Result<Launcher> Launcher::create(bool allow_pidfd) {
  Launcher launcher;
  launcher.null_ = UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!launcher.null_) return fail_errno(Errc::unavailable, "cannot open /dev/null", errno);
  void* stacks =
      ::mmap(nullptr, stack_bytes * all_slots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stacks == MAP_FAILED) return fail_errno(Errc::unavailable, "cannot allocate stacks for new processes", errno);
  launcher.stacks_ = static_cast<char*>(stacks);
  for (int number = 0; number < all_slots; ++number) {
    auto slot = std::make_unique<Slot>();
    slot->stack = launcher.stacks_ + stack_bytes * static_cast<std::size_t>(number);
    for (auto& parked_fd : slot->parked_fds) {
      parked_fd = TRY(duplicate(launcher.null_.get()));
      launcher.first_unused_ = std::max(launcher.first_unused_, static_cast<unsigned>(parked_fd.get()) + 1);
    }
    launcher.slots_.push_back(std::move(slot));
  }
  // An empty range detects the call. (CLOSE_RANGE_UNSHARE, as old as the call, would unshare this thread's table.)
  launcher.has_close_range_ = ::syscall(SYS_close_range, ~0U, ~0U, 0U) == 0;
  if (!launcher.has_close_range_) mark_all_close_on_exec();
  launcher.has_pidfd_ = allow_pidfd && ::getenv("DDRUN_NO_PIDFD") == nullptr;
  launcher.reset_signals_ = changed_signals();
  return launcher;
}

Launcher::Launcher(Launcher&& other) noexcept
    : null_(std::move(other.null_)),
      cgroup_(std::move(other.cgroup_)),
      slots_(std::move(other.slots_)),
      spawn_plan_(std::move(other.spawn_plan_)),
      first_unused_(other.first_unused_),
      has_close_range_(other.has_close_range_),
      has_pidfd_(other.has_pidfd_),
      clears_at_exec_(other.clears_at_exec_),
      stacks_(std::exchange(other.stacks_, nullptr)),
      reset_signals_(std::move(other.reset_signals_)),
      child_descriptor_limit_(other.child_descriptor_limit_) {}

Launcher::~Launcher() {
  if (stacks_ != nullptr) ::munmap(stacks_, stack_bytes * all_slots);
}

Result<Spawned> Launcher::begin(int number, const SpawnPlan& plan) {
  Slot& slot = *slots_[static_cast<std::size_t>(number)];
  if (!has_left(slot, Milliseconds(0))) {
    return fail(Errc::unavailable, concat("cannot start ", plan.program, ": an earlier start (pid ", slot.pid,
                                          ") hangs in the kernel; does the file system of its program answer?"));
  }
  ChildStart& start = slot.start;
  start = ChildStart{};
  start.plan = plan;
  start.parent = ::getpid();
  const int wanted[3] = {plan.standard_in, plan.standard_out, plan.standard_err};
  for (int i = 0; i < 3; ++i) {
    start.standard_fds[i] = -1;
    if (wanted[i] < 0) continue;
    if (::dup3(wanted[i], slot.parked_fds[i].get(), O_CLOEXEC) < 0) {
      return fail_errno(Errc::unavailable, "cannot hand a descriptor to a new process", errno);
    }
    start.standard_fds[i] = slot.parked_fds[i].get();
  }
  start.first_unused = first_unused_;
  start.shared_descriptors = has_close_range_;
  start.has_close_range = has_close_range_;
  start.descriptor_limit = child_descriptor_limit_ ? &*child_descriptor_limit_ : nullptr;
  start.reset_signals = reset_signals_.data();

  // No signal handler may run in the child, which shares this memory.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  slot.pidfd = -1;
  slot.shares_memory = 1;
  const int flags = CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD | (start.shared_descriptors ? CLONE_FILES : 0);
  slot.requested_pidfd = has_pidfd_ && plan.want_pidfd;
  long result = clone_into(slot, flags | (slot.requested_pidfd ? CLONE_PIDFD : 0));
  if (slot.requested_pidfd && (result == -EINVAL || result == -ENOSYS || result == -EPERM)) {
    // A sandbox without pidfds. (A kernel before 5.2 ignores the flag and leaves pidfd at -1.)
    has_pidfd_ = false;
    slot.requested_pidfd = false;
    result = clone_into(slot, flags);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  slot.pid = static_cast<pid_t>(result);
  if (result >= 0) {
    if (slot.pidfd < 0) has_pidfd_ = has_pidfd_ && !slot.requested_pidfd;
    return Spawned{slot.pid, UniqueFd(slot.pidfd)};
  }
  const int error = static_cast<int>(-result);

  slot.shares_memory = 0;
  release_fds(number);
  auto failure = fail_errno(Errc::unavailable, concat("cannot start ", plan.program), error);
  if (error == EAGAIN) {
    failure.value().message += " (the limit of processes is reached: see 'ulimit -u' and pids.max)";
  }
  return failure;
}

long Launcher::clone_into(Slot& slot, int flags) {
  ChildClone child;
  child.flags = static_cast<unsigned>(flags);
  child.stack = slot.stack;
  child.stack_bytes = stack_bytes;
  child.pidfd = &slot.pidfd;
  child.child_tid = &slot.shares_memory;
  child.cgroup = cgroup_.get();
  long result = clone_child(child, run_child, &slot.start);
  // A sandbox, a kernel before 5.7, or a cgroup that was removed or may hold no process.
  if (result < 0 && cgroup_ && result != -EAGAIN && result != -ENOMEM) {
    cgroup_.reset();
    child.cgroup = -1;
    result = clone_child(child, run_child, &slot.start);
  }
  return result;
}

void Launcher::release_fds(int number) {
  Slot& slot = *slots_[static_cast<std::size_t>(number)];
  // A copy of a pipe that stays here would keep its reader from seeing end-of-file.
  for (int i = 0; i < 3; ++i) {
    if (slot.start.standard_fds[i] >= 0) ::dup3(null_.get(), slot.parked_fds[i].get(), O_CLOEXEC);
  }
}

bool Launcher::has_left(Slot& slot, Milliseconds limit) {
  const auto cleared = [&] { return __atomic_load_n(&slot.shares_memory, __ATOMIC_ACQUIRE) == 0; };
  const Deadline deadline = Clock::now() + limit;
  while (!cleared()) {
    const auto left = std::chrono::nanoseconds(deadline - Clock::now()).count();
    if ((left <= 0 || !clears_at_exec_) && has_left_by_proc(slot.pid) && !cleared()) {
      clears_at_exec_ = false;
      slot.shares_memory = 0;
    } else if (left <= 0) {
      return cleared();
    } else {
      const auto wait =
          clears_at_exec_ ? left : std::min<long long>(left, std::chrono::nanoseconds(poll_interval).count());
      const timespec time{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
      // No FUTEX_PRIVATE_FLAG: the kernel's wake is not private.
      ::syscall(SYS_futex, &slot.shares_memory, FUTEX_WAIT, 1, &time, nullptr, 0);
    }
  }
  return true;
}

Result<bool> Launcher::confirm(int number, Milliseconds limit, Spawned& /*child*/) {
  Slot& slot = *slots_[static_cast<std::size_t>(number)];
  const bool left = has_left(slot, limit);
  if (left || __atomic_load_n(&slot.start.has_own_descriptors, __ATOMIC_ACQUIRE)) release_fds(number);
  if (!left) return false;
  if (slot.start.failed_step != SpawnStep::none) return tl::unexpected(exec_error(slot.start.plan, slot.start));
  return true;
}

void Launcher::abandon(int number) {
  ::kill(slots_[static_cast<std::size_t>(number)]->pid, SIGKILL);
  release_fds(number);
}

Result<Spawned> Launcher::spawn(const SpawnPlan& plan, Milliseconds limit) {
  auto copy = std::make_unique<PlanCopy>();
  auto child = TRY(begin(spawn_slot, copy->copy(plan)));
  spawn_plan_ = std::move(copy);  // of the start before: its child has left
  auto executed = confirm(spawn_slot, limit, child);
  if (executed) return child;
  while (::waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return tl::unexpected(executed.error());
}

}  // namespace ddrun::process
