#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/lease/lease.hpp"

namespace ddrun::lease {

/// A program as lib/lease/PROTOCOL.md describes it. Its first word is looked for in PATH.
struct ProgramOptions {
  std::vector<std::string> argv;
  std::string environment{};  ///< NAME=VALUE, beside what this process has; empty: nothing
  /// It runs as this process, each time that it is started. On the executor; may be empty.
  std::function<void(pid_t)> on_start{};
};

/// Starts nothing yet. Errors: `invalid_argument`, with a sentence that says what is wrong.
[[nodiscard]] Result<std::shared_ptr<Lease>> make_program_lease(const boost::asio::any_io_executor& executor,
                                                                const LeaseOptions& options,
                                                                const ProgramOptions& program, Callbacks callbacks);

}  // namespace ddrun::lease
