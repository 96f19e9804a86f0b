#pragma once

#include <map>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/link_id.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// Collects the claims of members about the last round, for a coordinator that takes over: PROTOCOL.md, section 10.
class Recovery {
 public:
  /// Waits for the first claim until `first_claim_by`, for the rest until `claims_by`. `without_leader`: the former
  /// coordinator's machine runs no workers, so its claim is not awaited.
  Recovery(Clock::time_point first_claim_by, Clock::time_point claims_by, bool without_leader)
      : first_claim_by_(first_claim_by), claims_by_(claims_by), without_leader_(without_leader) {}

  /// `outdated`: links whose claims are superseded by this one.
  struct AddedClaim {
    bool of_last_round = false;
    std::vector<LinkId> outdated;
  };
  AddedClaim add_claim(LinkId link, const RoundClaim& claim);
  /// The member is lost.
  void remove_claim(LinkId link) { claims_.erase(link); }

  /// All members that may still run workers of the last round have claimed it.
  [[nodiscard]] bool complete() const;
  /// All members of the last round have claimed it, with success.
  [[nodiscard]] bool all_succeeded() const;
  /// Links that claim the last round.
  [[nodiscard]] std::vector<LinkId> members() const;
  /// Term 0: no round was claimed.
  [[nodiscard]] const RoundClaim& last() const { return last_; }
  /// No member knows an earlier coordinator.
  [[nodiscard]] bool is_new_job() const { return last_.term == 0 && !had_coordinator_; }
  /// After this, missing members are not awaited.
  [[nodiscard]] Clock::time_point deadline() const { return is_new_job() ? first_claim_by_ : claims_by_; }

 private:
  struct Claim {
    int node_rank = -1;
    bool succeeded = false;
  };
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(last_.node_count); }

  Clock::time_point first_claim_by_, claims_by_;
  bool without_leader_;
  bool had_coordinator_ = false;
  RoundClaim last_;       ///< of the highest term and round
  int leader_rank_ = -1;  ///< node rank of the coordinator's own machine in it; -1: none
  std::map<LinkId, Claim> claims_;
};

}  // namespace ddrun::rendezvous
