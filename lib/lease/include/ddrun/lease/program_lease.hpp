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

/// A lease program, see lib/lease/PROTOCOL.md. argv[0] is searched in PATH.
struct ProgramOptions {
  std::vector<std::string> argv;
  std::string environment{};  ///< one NAME=VALUE in addition to this process's environment; empty: none
  /// Called with the pid each time the program is started. On the executor; may be empty.
  std::function<void(pid_t)> on_start{};
};

/// Does not start the program yet. Errors: `invalid_argument`, with a sentence for the user.
[[nodiscard]] Result<std::shared_ptr<Lease>> make_program_lease(const boost::asio::any_io_executor& executor,
                                                                const LeaseOptions& options,
                                                                const ProgramOptions& program, Callbacks callbacks);

}  // namespace ddrun::lease
