#pragma once

#include <map>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/coordinator.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// What a coordinator that takes over from another one hears of the last round, by the claims of its members:
/// PROTOCOL.md, section 10.
class Recovery {
 public:
  /// Members of a last round are waited for until `until`, and until `soon` for one of them to come at all.
  /// `without_leader`: the machine of the coordinator before runs no workers any more, so its claim is not waited for.
  Recovery(Clock::time_point first_claim_by, Clock::time_point claims_by, bool without_leader)
      : first_claim_by_(first_claim_by), claims_by_(claims_by), without_leader_(without_leader) {}

  /// Whether the claim is of the last round that is known of. `outdated` are those whose claims are of an earlier one,
  /// as this claim shows.
  struct AddedClaim {
    bool of_last_round = false;
    std::vector<LinkId> outdated;
  };
  AddedClaim add_claim(LinkId link, const RoundClaim& claim);
  /// It is gone, and its claim with it.
  void remove_claim(LinkId link) { claims_.erase(link); }

  /// All are there that may still run workers of the last round.
  [[nodiscard]] bool complete() const;
  /// All of the last round are there, and their workers have ended well.
  [[nodiscard]] bool all_succeeded() const;
  /// Who claims the last round.
  [[nodiscard]] std::vector<LinkId> members() const;
  /// Its term is 0 where no round is claimed.
  [[nodiscard]] const RoundClaim& last() const { return last_; }
  /// Nothing is known of any coordinator before: as far as can be seen the job is a new one.
  [[nodiscard]] bool is_new_job() const { return last_.term == 0 && !had_coordinator_; }
  /// Those that are missing then are not waited for any longer.
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
  int leader_rank_ = -1;  ///< the node rank that the coordinator's own machine had in it; -1: none
  std::map<LinkId, Claim> claims_;
};

}  // namespace ddrun::rendezvous
