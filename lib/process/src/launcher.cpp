#include "ddrun/process/launcher.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"
#include "spawn_order.hpp"

namespace ddrun::process {

namespace {

constexpr std::size_t stack_bytes = 64 << 10;

/// Signals whose disposition here is not the default: a child must reset them.
std::vector<int> changed_signals() {
  std::vector<int> changed;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL) changed.push_back(signal);
  }
  changed.push_back(0);
  return changed;
}

/// Where close_range is missing, exec has to do the closing.
void mark_all_close_on_exec() {
  DIR* dir = ::opendir("/proc/self/fd");
  if (dir == nullptr) return;
  while (const dirent* entry = ::readdir(dir)) {
    const int fd = ::atoi(entry->d_name);
    if (fd > 2) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  ::closedir(dir);
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

Result<Launcher> Launcher::create(bool allow_pidfd) {
  Launcher launcher;
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return fail_errno(Errc::unavailable, "cannot open /dev/null", errno);
  launcher.null_ = UniqueFd(null);
  for (auto& slot : launcher.slots_) {
    auto copy = duplicate(null);
    if (!copy) return tl::unexpected(copy.error());
    slot = std::move(*copy);
    launcher.first_unused_ = std::max(launcher.first_unused_, static_cast<unsigned>(slot.get()) + 1);
  }
  // An empty range asks whether the call is there. (With CLOSE_RANGE_UNSHARE, as old as the call itself, this very
  // thread would leave the table that it shares with the other threads.)
  launcher.has_close_range_ = ::syscall(SYS_close_range, ~0U, ~0U, 0U) == 0;
  if (!launcher.has_close_range_) mark_all_close_on_exec();
  launcher.has_pidfd_ = allow_pidfd && ::getenv("DDRUN_NO_PIDFD") == nullptr;
  launcher.reset_signals_ = changed_signals();
  void* stack = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return fail_errno(Errc::unavailable, "cannot allocate a stack for new processes", errno);
  launcher.stack_ = static_cast<char*>(stack);
  return launcher;
}

Launcher::Launcher(Launcher&& other) noexcept
    : null_(std::move(other.null_)),
      first_unused_(other.first_unused_),
      has_close_range_(other.has_close_range_),
      has_pidfd_(other.has_pidfd_),
      stack_(std::exchange(other.stack_, nullptr)),
      reset_signals_(std::move(other.reset_signals_)),
      child_descriptor_limit_(other.child_descriptor_limit_) {
  std::move(std::begin(other.slots_), std::end(other.slots_), std::begin(slots_));
}

Launcher::~Launcher() {
  if (stack_ != nullptr) ::munmap(stack_, stack_bytes);
}

Result<void> Launcher::park(int slot, int fd) {
  if (::dup3(fd, slots_[slot].get(), O_CLOEXEC) < 0) {
    return fail_errno(Errc::unavailable, "cannot hand a descriptor to a new process", errno);
  }
  return {};
}

Result<Spawned> Launcher::spawn(const SpawnPlan& plan) {
  ChildStart start{};
  start.plan = &plan;
  start.parent = ::getpid();
  const int wanted[3] = {plan.standard_in, plan.standard_out, plan.standard_err};
  for (int i = 0; i < 3; ++i) {
    start.slots[i] = -1;
    if (wanted[i] < 0) continue;
    if (auto parked = park(i, wanted[i]); !parked) return tl::unexpected(parked.error());
    start.slots[i] = slots_[i].get();
  }
  start.first_unused = first_unused_;
  start.shared_descriptors = has_close_range_;
  start.has_close_range = has_close_range_;
  start.descriptor_limit = child_descriptor_limit_ ? &*child_descriptor_limit_ : nullptr;
  start.reset_signals = reset_signals_.data();

  // No handler of ours may run in the child, which still lives in our memory.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  int pidfd = -1;
  int flags = CLONE_VM | CLONE_VFORK | SIGCHLD | (start.shared_descriptors ? CLONE_FILES : 0);
  const bool ask_pidfd = has_pidfd_ && plan.want_pidfd;
  pid_t pid = ::clone(run_child, stack_ + stack_bytes, flags | (ask_pidfd ? CLONE_PIDFD : 0), &start, &pidfd);
  int error = errno;
  if (pid < 0 && ask_pidfd && (error == EINVAL || error == ENOSYS || error == EPERM)) {
    // A sandbox that knows no pidfd. (A kernel before 5.2 ignores the flag and leaves pidfd at -1.)
    has_pidfd_ = false;
    pid = ::clone(run_child, stack_ + stack_bytes, flags, &start, &pidfd);
    error = errno;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  // What stays parked would keep the other end from ever seeing end-of-file.
  for (int i = 0; i < 3; ++i) {
    if (start.slots[i] >= 0) ::dup3(null_.get(), slots_[i].get(), O_CLOEXEC);
  }

  if (pid < 0) {
    std::string hint = error == EAGAIN ? " (the limit of processes is reached: see 'ulimit -u' and pids.max)" : "";
    auto failure = fail_errno(Errc::unavailable, concat("cannot start ", plan.program), error);
    failure.value().message += hint;
    return failure;
  }
  if (start.failed_step != SpawnStep::none) {
    UniqueFd closing(pidfd);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return tl::unexpected(exec_error(plan, start));
  }
  if (pidfd < 0) has_pidfd_ = has_pidfd_ && !ask_pidfd;
  return Spawned{pid, UniqueFd(pidfd)};
}

}  // namespace ddrun::process
