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

/// Learns of the end of children and reaps them, workers and adopted orphans alike.
///
/// A watched child's end is seen through its pidfd, all of which sit in one epoll set of our own, so that Asio has one
/// descriptor to look at, and become ready in the order of the ends. Children without a pidfd, and orphans that this
/// process adopts as a subreaper, are seen when the owner of SIGCHLD calls reap(). Of those without a pidfd the first
/// that has ended since the last SIGCHLD is told first, and then the oldest: the kernel keeps no other order.
/// A helper (ddrun/helper/run.hpp) counts as an orphan here, and its end is told to the one that runs it.
/// Everything happens on the executor's thread; nothing blocks.
class ChildWatcher {
 public:
  using OnEnd = std::function<void(const ChildEnd&)>;

  /// `on_end` is called for watched children, `on_orphan` after an adopted one was reaped.
  ChildWatcher(boost::asio::any_io_executor executor, OnEnd on_end, std::function<void()> on_orphan);

  /// Must be called once before watch().
  Result<void> open();
  /// From now on the end of this child is reported, in the order in which children with a pidfd end. `pidfd` (-1: none)
  /// must stay open until that report.
  void watch(pid_t pid, int pidfd);
  /// SIGCHLD has come: reap the children that have ended. `first`: whose end it told of, if known; when SIGCHLD comes
  /// for several ends at once, that is the first of them.
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
