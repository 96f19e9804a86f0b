#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "host_command.hpp"
#include "job.hpp"

namespace ddrun::agent {

/// --before and --after on this machine: their environment, label and report file, and what their ends mean for the
/// job's result. One runs at a time, and only while no worker does. All is borrowed.
class JobCommands {
 public:
  JobCommands(Job& job, logs::Output& output, process::ChildWatcher& watcher, process::JobCgroup& cgroup);

  /// `on_end` is called once, later. Fails as HostCommand::start() does.
  Result<void> start_before(std::function<void(const ExitStatus&)> on_end);
  /// False if there is no --after or nothing was started on this machine; also, with a warning, if it cannot start.
  /// `on_end` is called once, later; the result has its end by then.
  bool start_after(std::function<void()> on_end);
  /// SIGTERM to --after; `why` and the exit code become the result if the job had succeeded.
  void stop_after(const std::string& why, int code);

  // See HostCommand.
  [[nodiscard]] bool is_running() const { return command_.is_running(); }
  void stop(int signal) { command_.stop(signal); }
  void on_child_exit(const process::ChildEnd& end) { command_.on_child_exit(end); }
  void check_gone() { command_.check_gone(); }
  /// Also of a command that starts while the job is suspended.
  void set_suspended(bool suspended);

 private:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  Result<void> start(std::string_view name, const std::string& command, const Variables& variables,
                     HostCommand::OnEnd on_end);
  void record_after(const CommandEnd& end);

  Job& job_;
  logs::Output& output_;
  process::JobCgroup& cgroup_;
  HostCommand command_;
  bool suspended_ = false;
  std::string after_stopped_by_;  ///< empty: --after was not stopped
  int after_stopped_code_ = 0;    ///< the exit code then
};

}  // namespace ddrun::agent
