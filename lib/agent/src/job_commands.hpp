#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/launcher.hpp"
#include "job.hpp"
#include "participant.hpp"

namespace ddrun::agent {

/// Runs --before and --after: `sh -c COMMAND` in a new session, one at a time and only while no worker runs, so that
/// all descendants of this process are the command's. Background processes that it leaves are stopped too: SIGTERM, the
/// grace time, SIGKILL. Blocks for the start only. All is borrowed.
class HostCommand {
 public:
  using OnEnd = std::function<void(const CommandEnd&)>;

  HostCommand(boost::asio::any_io_executor executor, process::Launcher& launcher, process::ChildWatcher& watcher,
              logs::Output& output, Milliseconds grace)
      : launcher_(launcher), watcher_(watcher), output_(output), grace_(grace), timer_(std::move(executor)) {}

  /// `label` precedes each output line. `directory`: null for this process's. `on_end` is called once, later, when no
  /// process of it is left and the console has its output. Fails as Launcher::spawn() does.
  Result<void> start(std::string label, std::string command, const char* directory,
                     std::vector<std::string> environment, OnEnd on_end);
  [[nodiscard]] bool is_running() const { return on_end_ != nullptr; }
  [[nodiscard]] Clock::time_point started_at() const { return started_at_; }

  /// To be called with each end that the watcher reports, and when an orphan was reaped.
  void on_child_exit(const process::ChildEnd& end);
  void check_gone();

  /// SIGTERM, and after the grace time SIGKILL, repeated until no process is left. A second SIGTERM is not sent.
  void stop(int signal);
  void set_paused(bool still);

 private:
  void finish();

  process::Launcher& launcher_;
  process::ChildWatcher& watcher_;
  logs::Output& output_;
  Milliseconds grace_;
  Alarm timer_;
  OnEnd on_end_;
  std::optional<process::Spawned> child_;
  Clock::time_point started_at_;
  CommandEnd end_;
  bool stopping_ = false;
  bool exited_ = false;
  std::optional<Deadline> kill_deadline_;
};

/// --before and --after on this machine: their environment, label and report file, and what their ends mean for the
/// job's result. One runs at a time, and only while no worker does. As a step it is --before. All is borrowed.
class JobCommands : public Participant, public StartStep {
 public:
  JobCommands(Job& job, logs::Output& output, process::ChildWatcher& watcher, process::JobCgroup& cgroup);

  void begin(Done done) override;
  void cancel(int signal) override { command_.stop(signal); }
  /// False if there is no --after or nothing was started on this machine; also, with a warning, if it cannot start.
  /// `on_end` is called once, later; the result has its end by then.
  bool start_after(std::function<void()> on_end);
  /// SIGTERM to --after, or SIGKILL `at_once`; `why` and the exit code become the result if the job had succeeded.
  /// False if it does not run.
  bool stop_after(const std::string& why, int code, bool at_once = false);

  // See HostCommand.
  [[nodiscard]] bool is_running() const { return command_.is_running(); }
  /// "runs --before (./prepare.sh, 12 s)"; empty: none.
  [[nodiscard]] std::string describe_wait() const;
  void stop(int signal) override { command_.stop(signal); }
  void on_child_exit(const process::ChildEnd& end) { command_.on_child_exit(end); }
  void check_gone() { command_.check_gone(); }
  /// Also of a command that starts while the job is suspended.
  void set_paused(bool still) override;

 private:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  Result<void> start(std::string_view name, const std::string& command, const Variables& variables,
                     HostCommand::OnEnd on_end);
  void record_after(const CommandEnd& end);

  Job& job_;
  logs::Output& output_;
  process::JobCgroup& cgroup_;
  HostCommand command_;
  std::string what_;  ///< "runs --before (./prepare.sh": the last one
  bool paused_ = false;
  bool before_done_ = false;
  std::string after_stopped_by_;  ///< empty: --after was not stopped
  int after_stopped_code_ = 0;    ///< the exit code then
};

}  // namespace ddrun::agent
