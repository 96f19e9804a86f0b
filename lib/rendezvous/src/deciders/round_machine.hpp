#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ending.hpp"
#include "job.hpp"
#include "membership.hpp"
#include "round_members.hpp"

namespace ddrun::rendezvous {

/// One round of a job, from OPEN until the last STOPPED: the states opening, running and stopping. Which members take
/// part, and what comes after, is decided by Coordinator.
class RoundMachine {
 public:
  explicit RoundMachine(Job& job) : job_(job) {}

  /// `members` in order of their node ranks.
  void begin(std::vector<Member*> members);

  // Messages of members. One of an earlier round, or that does not fit the state, is ignored.
  void on(Member& member, const Opened& message);
  void on(Member& member, const Failed& message);
  void on(Member& member, const Succeeded& message);
  void on(Member& member, const Stopped& message);
  void on(const Member& member, const PassSignal& message);

  /// `gone` was a member, and is removed. `since`: its last sign of life. `broken`: its connection has ended.
  void on_lost(const Member& gone, VerdictMessage cause, Clock::time_point since, bool broken);
  /// For the others this node is lost; its agent still answers, so its STOPPED is awaited, and its verdict is its own
  /// reason.
  void lose_orderly(Member& member, const Leave& message);
  void on_suspended();

  /// `signal` for the workers; 0: SIGTERM.
  void stop(Ending ending, int signal = 0);
  /// The job ends with this cause. `member` has its details; may be null.
  void stop_permanently(VerdictMessage cause, const Member* member, int signal = 0);
  void on_skew();

  // Newcomers: admitting one restarts all workers, so they are collected for a while.
  [[nodiscard]] bool has_free_place() const;
  void admit(Member& newcomer, bool spare);
  void admit_waiting();
  void schedule_admission();

  /// Why the round has ended, once it has: all members are finished, or stopped. The machine is idle then.
  [[nodiscard]] std::optional<Ending> take_ended();

  [[nodiscard]] RoundMembers& members() { return members_; }
  [[nodiscard]] bool has_workers() const;
  /// It is being stopped, and another round follows.
  [[nodiscard]] bool is_stopping_for_another() const { return ending_ && !ending_->is_final(); }
  [[nodiscard]] bool owes_restart() const { return ending_ && ending_->is_restart(); }
  [[nodiscard]] Clock::time_point started_at() const { return started_at_; }

 private:
  void start(std::uint16_t port);
  void stop_for_cause(VerdictMessage cause, LinkId cause_link, bool may_restart, const std::string& machine = "");
  void restart_for_newcomers(const std::vector<const Member*>& newcomers);
  void send_stop(int signal);
  void escalate_to_kill();
  void lost_while_stopping(VerdictMessage cause, Clock::time_point since, bool broken);
  void count_loss(VerdictMessage cause);
  [[nodiscard]] Clock::duration settle_time() const;
  [[nodiscard]] Clock::time_point admit_from() const;

  Job& job_;
  RoundMembers members_;
  bool any_succeeded_ = false;
  std::string address_;  ///< of node rank 0
  Clock::time_point started_at_;
  std::optional<Ending> ending_;                 ///< while stopping
  std::optional<VerdictMessage> lost_finished_;  ///< a finished member was lost: the cause, if it counts later
};

}  // namespace ddrun::rendezvous
