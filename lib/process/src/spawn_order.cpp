// What a new process does between clone and exec, and in which order.

#include "spawn_order.hpp"

#include <errno.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

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

[[noreturn]] void give_up(ChildStart& start, SpawnStep step) {
  start.failed_step = step;
  start.error = errno;
  ::_exit(127);
}

}  // namespace

__attribute__((no_sanitize("address", "thread", "undefined"))) int run_child(void* child_start) {
  ChildStart& start = *static_cast<ChildStart*>(child_start);
  const SpawnPlan& plan = *start.plan;

  // Signals are all blocked here. Ours that are ignored or handled go back to their defaults; the table is the
  // child's own (no CLONE_SIGHAND).
  for (const int* signal = start.reset_signals; *signal != 0; ++signal) ::signal(*signal, SIG_DFL);

  // Own session and process group: Ctrl-C reaches only ddrun, and a signal to the group reaches what the worker starts.
  if (::setsid() < 0) give_up(start, SpawnStep::session);

  // It dies with the agent. The agent may be gone already: then nobody is left to send that signal.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(start, SpawnStep::parent_death);
  if (::getppid() != start.parent) ::_exit(127);

  if (plan.cpu_mask != nullptr && ::syscall(SYS_sched_setaffinity, 0, plan.cpu_mask_bytes, plan.cpu_mask) < 0) {
    give_up(start, SpawnStep::affinity);
  }
  if (start.descriptor_limit != nullptr && ::setrlimit(RLIMIT_NOFILE, start.descriptor_limit) != 0) {
    give_up(start, SpawnStep::limits);
  }

  // Leave the shared descriptor table and take along only its low end. An ordinary clone would copy all of it, with two
  // pipes for each worker that is there already: quadratic in the number of workers.
  if (start.shared_descriptors && ::syscall(SYS_close_range, start.first_unused, ~0U, CLOSE_RANGE_UNSHARE) != 0) {
    give_up(start, SpawnStep::descriptors);
  }

  if (plan.directory != nullptr && ::chdir(plan.directory) != 0) give_up(start, SpawnStep::directory);

  for (int fd = 0; fd < 3; ++fd) {
    if (start.slots[fd] >= 0 && ::dup2(start.slots[fd], fd) < 0) give_up(start, SpawnStep::standard_streams);
  }
  // Without close_range everything from 3 up is close-on-exec (the launcher saw to that).
  if (start.has_close_range && ::syscall(SYS_close_range, 3U, ~0U, 0U) != 0) {
    give_up(start, SpawnStep::descriptors);
  }

  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(plan.program, plan.argv, plan.environment);
  give_up(start, SpawnStep::exec);
}

}  // namespace ddrun::process
