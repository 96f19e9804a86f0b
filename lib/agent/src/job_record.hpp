#pragma once

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "death_reason.hpp"
#include "group_machine.hpp"
#include "preparation.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Collects what is to be told about a job: how every worker of every attempt ended, and why if that can be known.
class JobRecord {
 public:
  explicit JobRecord(const LaunchSpec& spec);

  [[nodiscard]] JobResult& result() { return result_; }
  [[nodiscard]] bool has_verdict() const { return verdict_is_known_; }
  [[nodiscard]] Clock::time_point started_at() const { return started_at_; }

  /// An attempt begins: so many workers are about to start.
  void begin_attempt(int workers);
  /// ddrun has seen a worker fail or is about to stop the group, and what workers had written was read before: what
  /// they write from now on is a consequence. Only the first call of an attempt counts.
  void begin_stop();
  [[nodiscard]] bool has_stop_begun() const { return stop_begun_at_.has_value(); }
  /// The attempt is over and its output is closed: take down how its workers ended, and who failed first. Reads error
  /// files, and the kernel's counters if a worker was killed.
  void add_attempt(const GroupMachine& machine, WorkerGroup& group, const logs::Output& output,
                   const Preparation& prepared, Clock::time_point attempt_started_at);

  /// A worker has ended: corrects what is known of it if its attempt was over before.
  void correct_late_exit(const WorkerEnd& end);

  /// A watchdog timer has ended this worker of the present attempt, or a child of it.
  void note_timer(pid_t worker, bool its_child, std::string what);

  /// "rank 1 (pid 4711) exited with code 3 after 2.1 s; restarting all 4 workers (restart 1 of 3)"; empty if the last
  /// attempt had no failure.
  [[nodiscard]] std::string describe_restart(int restart) const;
  /// Several machines, whose coordinator speaks of a restart before anybody can know why: "rank 1 (pid 4711) exited
  /// with code 3 after 2.1 s: ValueError: no data" if a worker of this machine failed in the last attempt and gave a
  /// reason that is no complaint about others; else empty.
  [[nodiscard]] std::string describe_own_reason() const;

  /// How the job ended for this machine: used unless the coordinator has said it.
  void set_verdict(const GroupMachine& machine);
  /// How the job ended, as the coordinator said it.
  void set_verdict(const rendezvous::VerdictMessage& verdict, bool runs_coordinator);
  /// Of the present round: which one it is and how large the job is in it.
  void begin_round(rendezvous::Round round, const RankAssignment& ranks);
  void add_node_report(const rendezvous::NodeReport& report);

  /// What the last attempt has for the coordinator: its first failure, and all its workers if `whole`.
  [[nodiscard]] rendezvous::Stopped stopped_message(bool whole) const;
  /// What is known besides of what was lost, and of the time, up to now.
  void update_totals(const logs::Output& output);
  /// The end of it all, when everything has been written. Hands the cause on to a launcher around us that asked for it.
  [[nodiscard]] JobResult finish(const logs::Output& output, const Preparation& prepared);

 private:
  struct Timer {
    std::string what;
    bool of_child = false;
    std::chrono::system_clock::time_point at;
  };
  void read_evidence(Worker& worker, const logs::Output& output);
  [[nodiscard]] std::string explain_exit(const WorkerEnd& end, const Preparation& prepared);
  [[nodiscard]] std::string describe_last_failure() const;
  void trim_attempts();
  void forward_first_error(const Preparation& prepared) const;
  [[nodiscard]] JobCause read_cause(const rendezvous::VerdictMessage& verdict, bool runs_coordinator) const;
  [[nodiscard]] bool writes_logs() const;

  const LaunchSpec& spec_;
  JobResult result_;
  bool verdict_is_known_ = false;
  Clock::time_point started_at_ = Clock::now();
  rendezvous::Round round_ = 0;
  int node_rank_ = 0;
  DeathReasons death_reasons_;
  std::map<pid_t, Timer> timers_;  ///< by the worker's pid
  std::optional<std::chrono::system_clock::time_point> stop_begun_at_;
  bool missing_report_warned_ = false;
};

}  // namespace ddrun::agent
