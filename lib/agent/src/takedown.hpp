#pragma once

#include <signal.h>

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "group_machine.hpp"
#include "participant.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Interval of repeated SIGKILL while processes are left.
inline constexpr Milliseconds resweep_interval{50};

/// Takes the group down for GroupMachine: sends signals, runs the grace timer, kills, and detects when no process is
/// left. Knows who has signalled workers, to tell a stopped worker from one that ended by itself.
class Takedown : public Participant {
 public:
  using Dispatch = std::function<void(const Event&)>;

  /// All is borrowed. `dispatch` is also called from within check_gone() and on_child_exit().
  Takedown(boost::asio::any_io_executor executor, WorkerGroup& group, process::ChildWatcher& watcher,
           const GroupMachine& machine, process::JobCgroup& cgroup, const process::SharedState& shared,
           Dispatch dispatch);

  /// Forgets the signals of the attempt before.
  void begin_attempt() override {
    sent_.clear();
    seen_kills_ = noted_kills_ = kills_from_outside();
    signaled_strays_.clear();
    survivors_reported_ = recheck_scheduled_ = false;
    grace_ends_ = Deadline::max();
  }

  void signal(int number);
  /// Dispatches GraceExpired after this time. Shortens a grace time that runs already, and never extends it.
  void start_grace(Milliseconds grace);
  void kill();
  /// Dispatches GroupGone, now or as soon as it is true; while killing KillExpired after kill_timeout.
  void check_gone();
  /// To be called when a worker has ended or an orphan was reaped.
  void on_child_exit();
  /// The grace timer stands still while the workers are stopped; timers for SIGKILL do not.
  void set_paused(bool still) override {
    if (still && machine_.state() != GroupState::stopping) return;
    timer_.set_paused(still);
    survivor_report_.set_paused(still);
    strays_timer_.set_paused(still);
  }
  /// Cancels all timers.
  void cancel() {
    timer_.cancel();
    survivor_report_.cancel();
    strays_timer_.cancel();
  }

  /// SIGKILL was sent in the present attempt.
  [[nodiscard]] bool has_killed() const { return sent_.count(SIGKILL) != 0; }
  /// The link's thread or the sweeper has killed workers of this attempt, because this thread stood still.
  [[nodiscard]] bool were_workers_killed() const { return kills_from_outside() != seen_kills_; }
  /// Dispatches WorkersKilled once if they were.
  void note_kills();
  /// Whether a worker that just ended with this status was stopped by ddrun; also notes kills.
  [[nodiscard]] bool has_caused(const ExitStatus& status);

 private:
  /// By the sweeper and by the link's thread, so far.
  using Kills = std::pair<std::uint32_t, std::uint32_t>;
  [[nodiscard]] Kills kills_from_outside() const { return {shared_.overdue.kills, shared_.link_kills}; }
  /// Before the first signal: workers that are dead by now ended by themselves.
  void reap_earlier_exits();
  void kill_all();
  /// SIGTERM, once per attempt, to each descendant outside the workers' groups.
  void stop_strays() { group_.stop_strays(signaled_strays_); }
  void schedule_stray_check(Deadline time);
  /// Logs the processes that are left after all workers have ended.
  void report_survivors();
  /// "rank 0 pid 4711 (python), pid 4712 (sh) and 3 more"
  [[nodiscard]] std::string describe_survivors() const;

  WorkerGroup& group_;
  process::ChildWatcher& watcher_;
  const GroupMachine& machine_;
  process::JobCgroup& cgroup_;
  const process::SharedState& shared_;
  Dispatch dispatch_;
  Alarm timer_;         ///< of the grace time, then of the next SIGKILL
  std::set<int> sent_;  ///< signals of the present attempt's stop
  Kills seen_kills_;    ///< before this attempt
  Kills noted_kills_;   ///< that were dispatched
  Clock::time_point grace_begun_;
  Deadline grace_ends_ = Deadline::max();
  Alarm strays_timer_;  ///< until strays are signalled, while stopping
  WorkerGroup::Strays signaled_strays_;
  Alarm survivor_report_;
  bool survivors_reported_ = false;
  bool recheck_scheduled_ = false;  ///< strays_timer_ runs because a stray has ended
  bool checking_ = false;
  Deadline kill_deadline_{};
};

}  // namespace ddrun::agent
