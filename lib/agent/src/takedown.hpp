#pragma once

#include <signal.h>

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <set>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "group_machine.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// While killing, what was missed is looked for again after this time.
inline constexpr Milliseconds resweep_interval{50};
/// A process that survives SIGKILL for this long hangs in the kernel.
inline constexpr std::chrono::seconds kill_timeout{10};

/// Takes the group down, as GroupMachine says: sends signals, counts the grace time, kills, and finds out when nothing
/// is left. Remembers what was sent, to tell who has ended by itself.
class Takedown {
 public:
  using Dispatch = std::function<void(const Event&)>;

  /// All is borrowed. `dispatch` is also called from within check_gone() and on_child_exit().
  Takedown(boost::asio::any_io_executor executor, WorkerGroup& group, process::ChildWatcher& watcher,
           const GroupMachine& machine, process::JobCgroup& cgroup, Dispatch dispatch);

  /// Of the one before nothing is left, and what it was sent means nothing any more.
  void begin_attempt() {
    sent_.clear();
    signaled_strays_.clear();
    survivors_reported_ = recheck_scheduled_ = false;
  }

  void signal(int number);
  /// Says GraceExpired after this time.
  void start_grace(Milliseconds grace);
  void kill();
  /// Says GroupGone, now or as soon as it is true; while killing KillExpired if that takes too long.
  void check_gone();
  /// A worker has ended, or an orphan was reaped.
  void on_child_exit();
  /// The grace time does not pass while the workers are stopped. What is killed is killed all the same.
  void set_paused(bool still) {
    if (still && machine_.state() != State::stopping) return;
    timer_.set_paused(still);
    survivor_report_.set_paused(still);
    strays_timer_.set_paused(still);
  }
  /// No time is counted any more.
  void cancel() {
    timer_.cancel();
    survivor_report_.cancel();
    strays_timer_.cancel();
  }

  /// SIGKILL was sent in the present attempt.
  [[nodiscard]] bool has_killed() const { return sent_.count(SIGKILL) != 0; }
  /// Has a worker that ended just now, with this status, been stopped by us?
  [[nodiscard]] bool has_caused(const ExitStatus& status) const;

 private:
  /// Before the group hears of its end from us: a worker that is dead by now has ended by itself.
  void reap_earlier_exits();
  void kill_all();
  /// SIGTERM to each process outside the workers' groups that has not got it in this attempt.
  void stop_strays() { group_.stop_strays(signaled_strays_); }
  void schedule_stray_check(Deadline time);
  /// Who is still there though all workers have ended.
  void report_survivors();
  /// "rank 0 pid 4711 (python), pid 4712 (sh) and 3 more"
  [[nodiscard]] std::string describe_survivors() const;

  WorkerGroup& group_;
  process::ChildWatcher& watcher_;
  const GroupMachine& machine_;
  process::JobCgroup& cgroup_;
  Dispatch dispatch_;
  Alarm timer_;         ///< of the grace time, then for looking again
  std::set<int> sent_;  ///< signals by which the present attempt was taken down
  Deadline grace_ends_{};
  Alarm strays_timer_;  ///< when strays are looked for, while stopping
  WorkerGroup::Strays signaled_strays_;
  Alarm survivor_report_;  ///< of those that are waited for
  bool survivors_reported_ = false;
  bool recheck_scheduled_ = false;  ///< the timer of the strays runs because one of them has ended
  bool checking_ = false;
  Deadline kill_deadline_{};
};

}  // namespace ddrun::agent
