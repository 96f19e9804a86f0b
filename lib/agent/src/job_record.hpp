#pragma once

#include <chrono>
#include <map>
#include <string>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "death_reason.hpp"
#include "group_machine.hpp"
#include "preparation.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Collects the result of a job: how each worker of each attempt ended, and why if known.
class JobRecord {
 public:
  explicit JobRecord(const LaunchSpec& spec);

  [[nodiscard]] JobResult& result() { return result_; }
  [[nodiscard]] Clock::time_point started_at() const { return started_at_; }

  /// To be called before an attempt's workers start.
  void begin_attempt(int workers);
  /// Its time counts from here, after what precedes the workers.
  void begin_spawn() { attempt_started_at_ = Clock::now(); }
  /// To be called before the group is stopped, after the workers' output was read: later output is a consequence. Only
  /// the first call of an attempt counts.
  void begin_stop();
  /// Sets `why` of a worker that SIGKILL has ended, which is known at once.
  void explain_kill(WorkerEnd& end, const Preparation& prepared);
  [[nodiscard]] bool has_stop_begun() const { return stop_begun_at_.has_value(); }
  /// Records the ends of an attempt's workers and the first failure, once its output is closed. Reads error files, and
  /// the kernel's counters if a worker was killed.
  void add_attempt(const GroupMachine& machine, WorkerGroup& group, const logs::Output& output,
                   const Preparation& prepared);

  /// "rank 0 timed out" if this worker, which has just ended badly, or, when it has only lost a peer, another one says
  /// that it waited in vain for others; "rank 0 aborted" if it gives no reason. Else empty. Reads output of all, and
  /// error files.
  [[nodiscard]] std::string describe_hang(const Worker& worker, WorkerGroup& group, logs::Output& output) const;
  /// Why this worker, which has just ended badly, has: "ValueError: no data", from its output and error file so far.
  /// Empty if that is not known yet, or if it only reports the failure of another rank.
  [[nodiscard]] static std::string describe_present_reason(const Worker& worker, const logs::Output& output);
  /// Its last words say that it waited in vain for others.
  [[nodiscard]] static bool has_given_up(const Worker& worker, logs::Output& output);
  /// Keeps the groups of the attempt's first page: later ones show ranks that are being stopped.
  void set_stacks(const inspect::StackPage& page);
  /// Of the ranks that have not timed out, the one that holds up the others on this page is the cause of the attempt.
  /// Only ranks of the world of the first failure, by slot; without one, of the first world where there is such a rank.
  void find_culprits(const inspect::StackPage& page, const Preparation& prepared, std::optional<int> first_failure,
                     WorkerGroup& group, logs::Output& output);

  /// Corrects the entry of a worker that ended after its attempt was recorded.
  void correct_late_exit(const WorkerEnd& end);

  /// A watchdog timer has signalled this worker of the present attempt, or a child of it.
  void note_timer(pid_t worker, bool its_child, std::string what);

  /// "rank 1 (pid 4711) exited with code 3 after 2.1 s; restarting all 4 workers (restart 1 of 3)", once, on one
  /// machine: another round is certain. Nothing if the last attempt had no failure.
  void announce_restart();
  /// "rank 1 (pid 4711) exited with code 3 after 2.1 s: ValueError: no data" if a worker of this machine failed in the
  /// last attempt with its own reason, which `announced` lacks; else empty. For several machines, where the coordinator
  /// announces a restart with what is known at once.
  [[nodiscard]] std::string describe_own_reason(const std::string& announced) const;

  /// The verdict of this machine, used if the coordinator sent none.
  void set_verdict(const GroupMachine& machine);
  /// ddrun has failed on this machine, whatever is known of the job.
  void fail(std::string message);
  /// The verdict of the coordinator.
  void set_verdict(const rendezvous::VerdictMessage& verdict, bool runs_coordinator);
  /// Number and ranks of the present round.
  void begin_round(rendezvous::Round round, const RankAssignment& ranks);
  void add_node_report(const rendezvous::Log& report);
  /// The line of --events: the coordinator's verdict, or this machine's own.
  [[nodiscard]] std::string verdict_event() const;

  /// STOPPED for the coordinator: the last attempt's first failure, and all its workers if `whole`.
  [[nodiscard]] rendezvous::Stopped stopped_message(bool whole) const;
  /// Updates lost bytes, log directory and run time.
  void update_totals(const logs::Output& output);
  /// The complete result, once all output is written. Copies the cause's error file for an outer launcher.
  [[nodiscard]] JobResult finish(const logs::Output& output, const Preparation& prepared);

 private:
  struct Timer {
    std::string what;
    bool of_child = false;
    std::chrono::system_clock::time_point at;
  };
  /// With its error file and its last words so far.
  [[nodiscard]] static WorkerEnd present_end(const Worker& worker, const logs::Output& output);
  /// Makes the culprit the cause, if ddrun has stopped it, and no other rank had failed before a stop without failure.
  void apply_culprits(AttemptResult& attempt) const;
  void read_evidence(Worker& worker, const logs::Output& output);
  [[nodiscard]] static std::string describe_python(const WorkerEnd& end, const PreparedProgram& prepared);
  [[nodiscard]] std::string explain_exit(const WorkerEnd& end, const Preparation& prepared);
  [[nodiscard]] std::string describe_last_failure() const;
  void trim_attempts();
  void forward_first_error(const Preparation& prepared) const;
  [[nodiscard]] JobCause read_cause(const rendezvous::VerdictMessage& verdict, bool runs_coordinator) const;

  const LaunchSpec& spec_;
  JobResult result_;
  std::optional<rendezvous::VerdictMessage> verdict_;
  Clock::time_point started_at_ = Clock::now();
  Clock::time_point attempt_started_at_;
  int announced_restart_ = 0;
  rendezvous::Round round_ = 0;
  int node_rank_ = 0;
  DeathReasons death_reasons_;
  std::map<pid_t, Timer> timers_;  ///< by the worker's pid
  std::optional<std::chrono::system_clock::time_point> stop_begun_at_;
  // Of the present attempt.
  inspect::HeldUp culprits_;
  std::string stacks_;  ///< groups_json() of its first page
  bool missing_report_warned_ = false;
};

}  // namespace ddrun::agent
