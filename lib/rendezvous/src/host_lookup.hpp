#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/helper/run.hpp"

namespace ddrun::rendezvous {

/// Asks the system for the addresses of a host, without waiting for it: by the program `getent`, which every C library
/// brings along, since the resolver within a static program is not the machine's (it would load modules of another C
/// library), cannot be told to hurry and cannot be ended.
class HostLookup {
 public:
  using OnFound = std::function<void(Result<std::vector<std::string>>)>;

  explicit HostLookup(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  /// Calls `on_found` once, later, on the executor, unless it is cancelled: addresses in the system's order, or
  /// `unavailable` with a sentence that names the host. One at a time.
  void start(const std::string& host, Clock::duration patience, OnFound on_found);
  void cancel() { getent_.reset(); }

 private:
  boost::asio::any_io_executor executor_;
  helper::Running getent_;
};

}  // namespace ddrun::rendezvous
