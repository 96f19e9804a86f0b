#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::rendezvous {

/// Asks the system for the addresses of a host, without waiting for it: by the program `getent`, which every C library
/// brings along, since the resolver within a static program is not the machine's (it would load modules of another C
/// library), cannot be told to hurry and cannot be ended.
class HostLookup : public std::enable_shared_from_this<HostLookup> {
 public:
  using OnFound = std::function<void(Result<std::vector<std::string>>)>;

  explicit HostLookup(boost::asio::any_io_executor executor);
  ~HostLookup();

  /// Calls `on_found` once, later, on the executor, unless it is cancelled: addresses in the system's order, or
  /// `unavailable` with a sentence that names the host. One at a time.
  void start(const std::string& host, Clock::duration patience, OnFound on_found);
  void cancel();

 private:
  void read();
  void finish(Result<std::vector<std::string>> found);
  void end_child();

  boost::asio::posix::stream_descriptor output_;
  boost::asio::steady_timer timer_;
  OnFound on_found_;
  std::string host_;
  std::string text_;
  char buffer_[1024];
  pid_t child_ = -1;
};

/// The first words of getent's lines, without doubles.
[[nodiscard]] std::vector<std::string> addresses_in(const std::string& text);

}  // namespace ddrun::rendezvous
