#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <unordered_map>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::process {

struct ChildEnd {
  pid_t pid = 0;
  ExitStatus status;
  rusage use{};
};

/// Detects the exit of children and reaps them, workers and adopted orphans alike. Used on the executor's thread only;
/// nothing blocks.
///
/// The exit of a watched child is seen through its pidfd. All pidfds are in one epoll set, so that Asio watches one
/// descriptor, and become ready in the order of the exits. Children without a pidfd, and orphans that this process
/// adopts as a subreaper, are seen when the owner of SIGCHLD calls reap(). Of those without a pidfd the first that has
/// exited since the last SIGCHLD is reported first, and then the oldest: the kernel keeps no other order.
/// A helper (ddrun/helper/run.hpp) counts as an orphan; its status is forwarded to the caller that runs it.
class ChildWatcher {
 public:
  using OnEnd = std::function<void(const ChildEnd&)>;

  /// `on_end` is called once for each watched child, `on_orphan` after adopted ones were reaped.
  ChildWatcher(boost::asio::any_io_executor executor, OnEnd on_end, std::function<void()> on_orphan);

  /// Must be called once before watch(). Fails with `unavailable`.
  Result<void> open();
  /// Reports this child's exit. `pidfd` (-1: none) is borrowed and must stay open until then.
  void watch(pid_t pid, int pidfd);
  /// The child counts as an orphan from now on.
  void unwatch(pid_t pid);
  /// Called on SIGCHLD: reaps the children that have exited. `first`: the signal's sender; where one SIGCHLD stands for
  /// several exits, that is the first of them.
  void reap(pid_t first = 0);

 private:
  void wait_for_pidfds();
  void process_pidfd_events();
  void reap_one(pid_t pid);

  boost::asio::posix::stream_descriptor epoll_;
  OnEnd on_end_;
  std::function<void()> on_orphan_;
  std::unordered_map<pid_t, int> watched_;  // pid -> pidfd or -1
};

}  // namespace ddrun::process
