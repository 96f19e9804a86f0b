#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::helper {

/// A long-running helper program that exchanges lines over its stdin and stdout.
///
/// Started as a helper of run.hpp, in its own process group. The destructor kills that group; no callback runs
/// afterwards. Everything runs on the executor, which must be single-threaded. Blocks only to start the program and to
/// reap it after SIGKILL.
class Coprocess {
 public:
  /// Limit for a line in either direction.
  static constexpr std::size_t max_line_bytes = 64 * 1024;

  /// A line from its stdout, without the newline.
  using OnLine = std::function<void(std::string_view line)>;
  /// Called once, after the last line: it exited, closed its stdout, printed a line over the limit or does not read its
  /// stdin. `why` ends with the last line of its stderr. The program has been reaped.
  using OnEnd = std::function<void(std::string why)>;

  /// `argv[0]` is searched in PATH. `variable`: NAME=VALUE, added to this process's environment; may be empty. No
  /// callback runs before this returns. Errors: `not_found`, `unavailable`.
  [[nodiscard]] static Result<std::unique_ptr<Coprocess>> start(const boost::asio::any_io_executor& executor,
                                                                const std::vector<std::string>& argv,
                                                                const std::string& variable, OnLine on_line,
                                                                OnEnd on_end);
  ~Coprocess();
  Coprocess(const Coprocess&) = delete;
  Coprocess& operator=(const Coprocess&) = delete;

  [[nodiscard]] pid_t pid() const;
  /// Queues `line` and a newline for its stdin. Does not block.
  void send_line(std::string_view line);

 private:
  class Impl;
  explicit Coprocess(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddrun::helper
