#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "membership.hpp"

namespace ddrun::rendezvous {

/// What a coordinator knows of others of its job, before and after it: whether it may decide at present, and what
/// members claim of an earlier one's last round (PROTOCOL.md, section 10). Without a lease nothing here ever changes.
class Succession {
 public:
  // The lease.
  /// Another coordinator may lead from now on. False if that was known.
  bool suspend(Clock::time_point now);
  /// The lease is held again. False if it always was.
  bool resume();
  /// Since when no round may begin, and no verdict be sent; empty: both may.
  [[nodiscard]] const std::optional<Clock::time_point>& suspended_since() const { return suspended_since_; }
  [[nodiscard]] bool is_suspended() const { return suspended_since_.has_value(); }
  /// The next coordinator does not wait for members it does not know of, so their workers must end with the lease: once
  /// members of a round are lost without a lease, the rest get no grace.
  [[nodiscard]] bool must_kill() const { return is_suspended() && has_lost_members_; }

  // Rounds of this coordinator.
  void note_started();
  void note_lost(const Member& gone);
  /// A restart was decided that no START has carried yet.
  void owe_restart() { owes_restart_ = true; }
  [[nodiscard]] bool owes_restart() const { return owes_restart_ || must_kill(); }
  /// A member of the last round was lost. It may have continued under another coordinator.
  [[nodiscard]] bool has_lost_members() const { return has_lost_members_; }

  // Takeover: claims of members about an earlier coordinator's last round.
  /// Whether this claim is a reason to wait for others of the same round.
  [[nodiscard]] bool is_news(const RoundClaim& claim) const;
  /// Workers of that round run until `stopped_by` at most. `without_leader`: the former coordinator's machine runs
  /// none, so its claim is not awaited.
  void expect_claims(Clock::time_point now, Clock::time_point stopped_by, bool without_leader);
  /// A member that claims any round but the last one counts as a newcomer.
  void add_claim(Member& member, const RoundClaim& claim, Membership& members);
  [[nodiscard]] bool expects_claims() const { return claims_.has_value(); }
  /// Until when the claims are awaited; empty: no longer. `all_places_taken`: as many members as the job may have are
  /// there.
  [[nodiscard]] std::optional<Clock::time_point> wait_until(Clock::time_point now, bool all_places_taken) const;
  // A new job without a lease, whose coordinator's machine has just lost its power and another job with it.
  /// A machine of that job joins, whose own workers have ended. Those of the others may run until `stopped_by`.
  void note_orphan(const RoundClaim& claim, Clock::time_point stopped_by);
  /// Until when the rest of them, but the old coordinator's machine, is awaited; empty: no longer.
  [[nodiscard]] std::optional<Clock::time_point> awaits_orphans_until(Clock::time_point now) const;

  struct LastRound {
    RoundClaim claim;  ///< of the highest term and round; term 0: no round was claimed
    std::vector<LinkId> members;
    bool succeeded = false;  ///< all members of it claim success
  };
  /// Ends the wait; empty if no claim was expected.
  [[nodiscard]] std::optional<LastRound> take_claims();
  void forget_claims() { claims_.reset(); }
  /// The job is defined anew.
  void forget_former() { former_ = Former::unknown; }
  /// The highest round of any claim.
  [[nodiscard]] Round claimed() const { return claimed_; }

 private:
  /// Whether the job has had another coordinator.
  enum class Former { unknown, none, known };
  struct Claims {
    struct Of {
      int node_rank = -1;
      bool succeeded = false;
    };
    [[nodiscard]] Clock::time_point deadline() const { return former == Former::none ? first_by : by; }
    [[nodiscard]] bool all_there() const { return last.term != 0 && of.size() >= size(); }
    [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(last.node_count); }
    [[nodiscard]] bool complete() const;

    Clock::time_point first_by, by;
    bool without_leader;
    Former former = Former::none;  ///< no member knows of any
    RoundClaim last{};             ///< as in LastRound
    int leader_rank = -1;          ///< node rank of the coordinator's own machine in it; -1: none
    std::map<LinkId, Of> of{};     ///< of those that claim it
  };

  std::optional<Clock::time_point> suspended_since_;
  bool has_lost_members_ = false;  ///< since the last START
  bool owes_restart_ = false;
  struct Orphans {
    Round round = 0;
    std::size_t nodes = 0;
    std::set<int> node_ranks{};  ///< that have come
    Clock::time_point by{};
  };
  std::optional<Claims> claims_;
  Orphans orphans_;
  Former former_ = Former::unknown;
  Round claimed_ = 0;
};

}  // namespace ddrun::rendezvous
