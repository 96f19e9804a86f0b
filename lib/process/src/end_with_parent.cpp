#include "ddrun/process/guard.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/proc.hpp"

namespace ddrun::process {

namespace {

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
