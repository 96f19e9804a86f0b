#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/launcher.hpp"

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

}  // namespace ddrun::agent
