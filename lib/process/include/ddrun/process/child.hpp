#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <memory>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/launcher.hpp"

namespace ddrun::process {

/// A running child of ours that is one of a few: an ssh, the ddrun of a host. Where there is a pidfd it is a
/// `boost::process::v2::process` underneath, which then owns the pidfd; else just the process id. (Boost registers the
/// pidfd with Asio's reactor, beside ChildWatcher's own set; of workers there may be thousands, and they do without.)
///
/// Its end is reported by ChildWatcher, which reaps it (Boost's own wait would lose the resource usage). Destroying
/// a Child neither waits nor kills.
class Child {
 public:
  Child(boost::asio::any_io_executor executor, Spawned spawned);
  Child(Child&&) noexcept;
  Child& operator=(Child&&) noexcept;
  ~Child();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// -1 where there is none. Owned by this object.
  [[nodiscard]] int pidfd() const { return pidfd_; }

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
  pid_t pid_ = 0;
  int pidfd_ = -1;
};

}  // namespace ddrun::process
