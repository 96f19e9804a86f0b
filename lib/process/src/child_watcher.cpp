#include "ddrun/process/child_watcher.hpp"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include <utility>

#include "ddrun/base/io_context.hpp"
#include "ddrun/helper/run.hpp"

namespace ddrun::process {

ChildWatcher::ChildWatcher(boost::asio::any_io_executor executor, OnEnd on_end, std::function<void()> on_orphan)
    : epoll_(std::move(executor)), on_end_(std::move(on_end)), on_orphan_(std::move(on_orphan)) {}

Result<void> ChildWatcher::open() {
  const int err = assign_descriptor(epoll_, UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (err != 0) return fail_errno(Errc::unavailable, "cannot watch processes", err);
  wait_for_pidfds();
  return {};
}

void ChildWatcher::watch(pid_t pid, int pidfd) {
  if (pidfd >= 0) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<std::uint64_t>(pid);
    // Without an epoll watch (the user's limit) the exit is reported by SIGCHLD.
    if (::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, pidfd, &event) != 0) pidfd = -1;
  }
  watched_.insert_or_assign(pid, pidfd);
}

void ChildWatcher::unwatch(pid_t pid) {
  const auto found = watched_.find(pid);
  if (found == watched_.end()) return;
  if (found->second >= 0) ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, found->second, nullptr);
  watched_.erase(found);
}

void ChildWatcher::wait_for_pidfds() {
  epoll_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    process_pidfd_events();
    wait_for_pidfds();
  });
}

void ChildWatcher::process_pidfd_events() {
  epoll_event events[64];
  while (true) {
    const int count = ::epoll_wait(epoll_.native_handle(), events, 64, 0);
    if (count <= 0) return;
    for (int i = 0; i < count; ++i) reap_one(static_cast<pid_t>(events[i].data.u64));
    if (count < 64) return;
  }
}

void ChildWatcher::reap(pid_t first) {
  // Pidfds first: they become ready in the order of the exits, while waitid() finds the oldest child first.
  if (epoll_.is_open()) process_pidfd_events();
  if (first > 0) reap_one(first);
  bool orphans = false;
  while (true) {
    siginfo_t info{};
    // WNOWAIT: a watched child is reaped by reap_one(), which also reads its usage.
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (info.si_pid == 0) break;
    const auto found = watched_.find(info.si_pid);
    if (found == watched_.end()) {
      if (!helper::reap(info.si_pid)) ::waitpid(info.si_pid, nullptr, WNOHANG);
      orphans = true;
      continue;
    }
    // It has exited since the pidfds were read, and another one perhaps before it.
    if (found->second >= 0) process_pidfd_events();
    reap_one(info.si_pid);
  }
  if (orphans && on_orphan_) on_orphan_();
}

void ChildWatcher::reap_one(pid_t pid) {
  const auto found = watched_.find(pid);
  if (found == watched_.end()) return;
  int wait_status = 0;
  ChildEnd end;
  pid_t reaped;
  do {
    reaped = ::wait4(pid, &wait_status, WNOHANG, &end.use);
  } while (reaped < 0 && errno == EINTR);
  if (found->second >= 0) ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, found->second, nullptr);
  if (reaped == 0) {
    // A debugger has to reap it first; SIGCHLD follows. Its pidfd stays ready meanwhile and is not watched any more.
    found->second = -1;
    return;
  }
  watched_.erase(found);
  end.pid = pid;
  end.status = exit_status_from_wait(wait_status);
  on_end_(end);
}

}  // namespace ddrun::process
