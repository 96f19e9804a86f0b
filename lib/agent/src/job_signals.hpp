#pragma once

#include <sys/types.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ddrun/base/alarm.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/signals.hpp"
#include "job.hpp"
#include "job_commands.hpp"
#include "participant.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// The terminal from which a worker reads; 0: none.
[[nodiscard]] dev_t input_terminal(const LaunchSpec& spec);

/// Signals to ddrun: one that ends the job becomes an event, the others go to the workers; Ctrl-Z pauses workers and
/// participants. All is borrowed.
class JobSignals : public Participant {
 public:
  struct Parts {
    Job& job;
    logs::Output& output;
    process::ChildWatcher& watcher;
    WorkerGroup& group;
    JobCommands& commands;
    const GroupMachine& machine;
    const std::vector<Participant*>& participants;
  };
  JobSignals(const Parts& parts, std::function<void(const Event&)> dispatch);

  /// As SignalReceiver::open().
  Result<void> open();
  void begin_attempt() override { stopped_readers_.clear(); }
  /// By Ctrl-Z.
  [[nodiscard]] bool is_suspended() const { return suspended_; }
  /// From now on the console is waited for only as long as it takes some output each second.
  void bound_console_wait();

 private:
  void on_signal(const process::SignalMessage& message);
  void pass_on(const process::SignalMessage& message);
  void end_job(const process::SignalMessage& message);
  void on_late_signal(const std::string& what, bool at_once);
  void on_parent_lost(const char* process, pid_t pid);
  void set_suspended(bool still);
  /// While the job is in the background, stops processes that read from the terminal, as SIGTTIN would. (One that reads
  /// from a pseudo-terminal waits.)
  void stop_background_readers();
  void signal_stopped_readers(int number) const;

  const Parts parts_;
  std::function<void(const Event&)> dispatch_;
  process::SignalReceiver receiver_;
  Alarm background_poll_;
  const dev_t terminal_;
  bool suspended_ = false;
  std::set<pid_t> stopped_readers_;  ///< process groups stopped because they read in the background
};

}  // namespace ddrun::agent
