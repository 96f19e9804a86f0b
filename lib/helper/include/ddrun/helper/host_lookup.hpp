#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/helper/run.hpp"

// Resolves a host name to addresses, in the system's order; `unavailable` with a message that names the host, or
// `invalid_argument` for one that begins with '-'. Runs `getent`, part of every C library: the resolver of a static
// program would load modules of another C library, has no timeout and cannot be cancelled.

namespace ddrun::helper {

using OnFound = std::function<void(const Result<std::vector<std::string>>&)>;

/// Calls `on_found` once, later, on the executor. Dropping the returned handle cancels the lookup. Does not block.
[[nodiscard]] Running look_up_host(boost::asio::any_io_executor executor, const std::string& host,
                                   Clock::duration timeout, OnFound on_found);

/// The same; blocks until the result or the timeout.
[[nodiscard]] Result<std::vector<std::string>> look_up_host(const std::string& host, Clock::duration timeout);

}  // namespace ddrun::helper
