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

/// A program that is talked to as long as it runs, a line at a time, both ways.
///
/// It starts as a helper of run.hpp does, in a process group of its own. Dropping the conversation kills that group and
/// calls nothing any more. All is done on the executor, which must run one thread at a time; nothing blocks but the
/// start, and the moment in which a killed program is waited for.
class Coprocess {
 public:
  /// No line of either side may be longer.
  static constexpr std::size_t max_line_bytes = 64 * 1024;

  /// A line that it printed, without its end.
  using OnLine = std::function<void(std::string_view line)>;
  /// It has ended, has closed its stdout, printed a line that is too long or reads nothing: why in words, with the last
  /// line of its stderr. It is gone by then. Nothing is called afterwards.
  using OnEnd = std::function<void(std::string why)>;

  /// `argv[0]` is looked for in PATH. `variable`: NAME=VALUE, beside what this process has; may be empty. Nothing is
  /// called before this returns. Errors: `not_found`, `unavailable`.
  [[nodiscard]] static Result<std::unique_ptr<Coprocess>> start(const boost::asio::any_io_executor& executor,
                                                                const std::vector<std::string>& argv,
                                                                const std::string& variable, OnLine on_line,
                                                                OnEnd on_end);
  ~Coprocess();
  Coprocess(const Coprocess&) = delete;
  Coprocess& operator=(const Coprocess&) = delete;

  [[nodiscard]] pid_t pid() const;
  /// `line` goes to its stdin, with an end of line, as soon as there is room.
  void send_line(std::string_view line);
  /// After all that was said its stdin is at an end.
  void close_stdin();

 private:
  class Impl;
  explicit Coprocess(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddrun::helper
