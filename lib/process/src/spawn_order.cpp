// What a new process does between clone and exec, and in which order.

#include "spawn_order.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "clone_child.hpp"

namespace ddrun::process {

const char* describe(SpawnStep step) {
  switch (step) {
    case SpawnStep::none: return "start";
    case SpawnStep::session: return "make a session for it";
    case SpawnStep::parent_death: return "tie its life to ours";
    case SpawnStep::affinity: return "bind it to its CPUs";
    case SpawnStep::limits: return "restore its descriptor limit";
    case SpawnStep::descriptors: return "close our descriptors in it";
    case SpawnStep::directory: return "enter its working directory";
    case SpawnStep::standard_streams: return "connect its standard streams";
    case SpawnStep::exec: return "execute it";
  }
  return "start";
}

namespace {

[[noreturn]] __attribute__((no_sanitize("address", "thread", "undefined"))) void give_up(ChildStart& start,
                                                                                         SpawnStep step, long result) {
  start.failed_step = step;
  start.error = static_cast<int>(-result);
  while (true) raw_syscall(SYS_exit_group, 127);
}

/// As the kernel wants it, all zero: the default action.
struct KernelSigaction {
  void* handler;
  unsigned long flags;
  void* restorer;
  unsigned long mask;
};

/// Makes a terminal the controlling one, with no process in its foreground. That takes a group which is in this session
/// and then is no more: the kernel also takes the pid of a process that leads no group.
__attribute__((always_inline, no_sanitize("address", "thread", "undefined"))) inline void be_controlled_by(
    int terminal) {
  if (raw_syscall(SYS_ioctl, terminal, TIOCSCTTY, 0) < 0) return;
  // As vfork: it runs on our stack while we wait. No signal tells of its end.
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

}  // namespace

__attribute__((no_sanitize("address", "thread", "undefined"))) int run_child(void* child_start) {
  ChildStart& start = *static_cast<ChildStart*>(child_start);
  const SpawnPlan& plan = start.plan;
  long result;

  // Signals are all blocked here. Ours that are ignored or handled go back to their defaults; the table is the
  // child's own (no CLONE_SIGHAND).
  const KernelSigaction by_default{};
  for (const int* signal = start.reset_signals; *signal != 0; ++signal) {
    raw_syscall(SYS_rt_sigaction, *signal, &by_default, nullptr, sizeof by_default.mask);
  }

  // Own session and process group: Ctrl-C reaches only ddrun, and a signal to the group reaches what the worker starts.
  if ((result = raw_syscall(SYS_setsid)) < 0) give_up(start, SpawnStep::session, result);

  // It dies with the agent. The agent may be gone already: then no process is left to send that signal.
  if ((result = raw_syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL)) < 0) {
    give_up(start, SpawnStep::parent_death, result);
  }
  if (raw_syscall(SYS_getppid) != start.parent) raw_syscall(SYS_exit_group, 127);

  if (plan.cpu_mask != nullptr &&
      (result = raw_syscall(SYS_sched_setaffinity, 0, plan.cpu_mask_bytes, plan.cpu_mask)) < 0) {
    give_up(start, SpawnStep::affinity, result);
  }
  if (start.descriptor_limit != nullptr &&
      (result = raw_syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, start.descriptor_limit, nullptr)) < 0) {
    give_up(start, SpawnStep::limits, result);
  }

  // Leave the shared descriptor table and take along only its low end. An ordinary clone would copy all of it, with two
  // pipes for each worker that is there already: quadratic in the number of workers.
  if (start.shared_descriptors &&
      (result = raw_syscall(SYS_close_range, start.first_unused, ~0U, CLOSE_RANGE_UNSHARE)) < 0) {
    give_up(start, SpawnStep::descriptors, result);
  }

  if (plan.directory != nullptr && (result = raw_syscall(SYS_chdir, plan.directory)) < 0) {
    give_up(start, SpawnStep::directory, result);
  }

  for (int fd = 0; fd < 3; ++fd) {
    if (start.slots[fd] >= 0 && (result = raw_syscall(SYS_dup3, start.slots[fd], fd, 0)) < 0) {
      give_up(start, SpawnStep::standard_streams, result);
    }
  }
  if (plan.controlling_terminal >= 0) be_controlled_by(plan.controlling_terminal);
  // Without close_range everything from 3 up is close-on-exec (the launcher saw to that).
  if (start.has_close_range && (result = raw_syscall(SYS_close_range, 3U, ~0U, 0U)) < 0) {
    give_up(start, SpawnStep::descriptors, result);
  }

  const unsigned long no_signals = 0;
  raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, nullptr, sizeof no_signals);
  result = raw_syscall(SYS_execve, plan.program, plan.argv, plan.environment);
  give_up(start, SpawnStep::exec, result);
}

}  // namespace ddrun::process
