#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/result.hpp"

/// Short-lived helper programs, not workers: getent, squeue, gnuplot.
namespace ddrun::helper {

struct Limits {
  Clock::duration time;              ///< timeout, after which it is killed
  std::size_t output = 1024 * 1024;  ///< limit in bytes for stdout and for stderr; exceeding it causes SIGXFSZ
};

struct Output {
  ExitStatus status;
  std::string out;  ///< its stdout
  std::string err;  ///< its stderr
  [[nodiscard]] bool succeeded() const { return status == ExitStatus(Exited{0}); }
};

using OnEnd = std::function<void(Result<Output>)>;

/// A handle of a running helper. Dropping it kills and reaps the helper; `on_end` is then not called.
using Running = std::shared_ptr<void>;

/// Starts a helper with default signal dispositions, an empty signal mask, `input` as its stdin and no inherited
/// descriptor. `argv[0]` is searched in PATH. Blocks only for the start; calls `on_end` once, later, on the executor.
/// Errors: `not_found` or `unavailable` if it cannot be started (with `cause`), `timeout`. A failing program is not an
/// error: see Output::status.
///
/// Helpers are reaped by this module, or through reap() by the code that reaps all children of this process.
[[nodiscard]] Running start(boost::asio::any_io_executor executor, const std::vector<std::string>& argv, Limits limits,
                            OnEnd on_end, const std::string& input = {});

/// The same; blocks until the helper has ended.
[[nodiscard]] Result<Output> run(const std::vector<std::string>& argv, Limits limits, const std::string& input = {});

/// Reaps `pid`, an unreaped zombie child, if it is a helper; its `on_end` will report the status. False if it is no
/// helper. Thread-safe.
bool reap(pid_t pid);

/// All running helpers, including coprocesses (coprocess.hpp) and registered children. Thread-safe.
[[nodiscard]] std::vector<pid_t> running_helpers();

/// Keeps running_helpers() in `slots` too, 0 for a free one, for a process that shares this memory; those for which no
/// slot is free are missing. Once, before the first helper.
void mirror_running(std::span<std::atomic<pid_t>> slots);

/// Declares a process that another module has started, a child now or soon, for no worker until unregister_child(), or
/// until reap() has reaped it; then the pid is free. Thread-safe.
void register_child(pid_t pid);
void unregister_child(pid_t pid);
[[nodiscard]] std::vector<pid_t> registered_children();

}  // namespace ddrun::helper
