#pragma once

#include <optional>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "job.hpp"
#include "membership.hpp"

namespace ddrun::rendezvous {

/// Between rounds: what the next one waits for. Whether it then begins, and with which members, is decided by
/// Coordinator.
class Gathering {
 public:
  explicit Gathering(Job& job) : job_(job) {}

  /// The job is defined anew.
  void reset();
  // Called in this order whenever members, or what the round waits for, have changed; they arm its deadlines.
  /// True while members of an earlier coordinator's last round may still join.
  [[nodiscard]] bool awaits_claims();
  /// That round is over: the job continues from there. The verdict, if the job is over as well.
  [[nodiscard]] std::optional<VerdictMessage> recover(const Succession::LastRound& round);
  /// True if a round can begin.
  [[nodiscard]] bool is_complete();

  void note_last_call_over() { last_call_over_ = true; }
  /// A round is over, or did not begin, for this reason. `had_started`: the join timeout begins anew.
  void note_ended(VerdictMessage cause, bool had_started);
  /// The next round is a restart, after the configured pause.
  void spend_restart(const std::string& why);
  /// Workers of a lost member may still run. If its agent ended, the kernel closed the connection and the guard killed
  /// the workers. A silent one gives up the coordinator within the heartbeat timeout and stops its workers within their
  /// grace; of one that is blocked, its WorkerKiller kills them.
  void fence(const Member& gone, Clock::time_point since);

  /// What waiting members wait for.
  [[nodiscard]] std::string wait_reason() const;
  [[nodiscard]] bool is_held_up() const {
    return job_.deadlines.is_armed(Due::fence) || job_.succession.is_suspended();
  }
  /// `turned_away`: as of TurnedAway.
  [[nodiscard]] VerdictMessage too_few_verdict(const std::string& turned_away) const;

 private:
  Job& job_;
  /// Its time goes on beside a round that is not started.
  std::optional<Clock::time_point> join_until_;
  bool last_call_over_ = false;
  std::string fenced_;                        ///< the lost member whose workers the fence waits for
  std::optional<VerdictMessage> last_cause_;  ///< of the last round, if the job continued
};

}  // namespace ddrun::rendezvous
