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

/// Programs that ddrun asks something, or has something done by: getent, squeue, gnuplot. Workers they are not.
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

/// A helper that runs. Dropping it kills one that has not ended and waits for that; its `on_end` is not called then.
using Running = std::shared_ptr<void>;

/// Starts a helper: default signal dispositions and nothing blocked, `input` for its stdin and no descriptor of ours.
/// `argv[0]` is looked for in PATH. Blocks for the start only; calls `on_end` once, later, on the executor. Errors:
/// `not_found` or `unavailable` if it cannot be started (`cause` says why), `timeout`. One that has failed is none: see
/// Output::status.
///
/// This module waits for its end, or the one that reaps all children of this process does so by take_end(); never both.
[[nodiscard]] Running start(boost::asio::any_io_executor executor, const std::vector<std::string>& argv, Limits limits,
                            OnEnd on_end, const std::string& input = {});

/// The same, waiting for it.
[[nodiscard]] Result<Output> run(const std::vector<std::string>& argv, Limits limits, const std::string& input = {});

/// True if `pid`, a child of this process that has ended and was not waited for, is a helper: its end has been taken
/// then, and its `on_end` will tell it.
bool reap(pid_t pid);

/// The helpers that run now, conversations (coprocess.hpp) among them.
[[nodiscard]] std::vector<pid_t> running_helpers();

}  // namespace ddrun::helper
