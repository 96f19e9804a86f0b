#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/result.hpp"

/// Programs that ddrun asks something, or has something done by: getent, squeue, gnuplot. They live for a moment and
/// are nobody's workers.
namespace ddrun::helper {

struct Limits {
  Clock::duration time;              ///< then it is killed
  std::size_t output = 1024 * 1024;  ///< bytes on stdout, and as many on stderr; one that prints more dies of SIGXFSZ
};

struct Output {
  ExitStatus status;
  std::string out;  ///< what it wrote to stdout
  std::string err;  ///< and to stderr
  [[nodiscard]] bool succeeded() const { return status == ExitStatus(Exited{0}); }
};

using OnEnd = std::function<void(Result<Output>)>;

/// A helper that runs, with default signal dispositions and nothing blocked, `input` for its stdin and no descriptor of
/// ours. Blocks for its start and for the end of one that is killed, which is short. Used on the executor's thread.
///
/// Its end is waited for here, or taken by who reaps all children of this process and asks take_end() first: never by
/// both.
class Run {
 public:
  /// `argv[0]` is looked for in PATH. Calls `on_end` once, later, on the executor. Errors: `not_found` or `unavailable`
  /// if it cannot be started (`cause` says why), `timeout`. One that has failed is none: see Output::status.
  Run(boost::asio::any_io_executor executor, const std::vector<std::string>& argv, Limits limits, OnEnd on_end,
      const std::string& input = {});
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  /// Kills a helper that still runs and waits for it; `on_end` is not called then.
  ~Run();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// The same, waiting for it.
[[nodiscard]] Result<Output> run(const std::vector<std::string>& argv, Limits limits, const std::string& input = {});

/// True if `pid`, a child of this process that has ended and that nobody has waited for, is a helper. Its end has then
/// been taken, for the one that runs it.
bool take_end(pid_t pid);

}  // namespace ddrun::helper
