#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/helper/run.hpp"

// The addresses of a host in the system's order, or `unavailable` with a sentence that names the host. The program
// `getent` is asked, which every C library brings along, since the resolver within a static program is not the
// machine's (it would load modules of another C library), cannot be told to hurry and cannot be ended.

namespace ddrun::helper {

using OnFound = std::function<void(const Result<std::vector<std::string>>&)>;

/// Calls `on_found` once, later, on the executor, unless what it returns has been dropped by then. Does not block.
[[nodiscard]] Running look_up_host(boost::asio::any_io_executor executor, const std::string& host,
                                   Clock::duration timeout, OnFound on_found);

/// The same, waiting for it.
[[nodiscard]] Result<std::vector<std::string>> look_up_host(const std::string& host, Clock::duration timeout);

}  // namespace ddrun::helper
