#include "recovery.hpp"

#include <algorithm>
#include <utility>

#include "job_state.hpp"

namespace ddrun::rendezvous {

Recovery::AddedClaim Recovery::add_claim(LinkId link, const RoundClaim& claim) {
  AddedClaim added;
  if (claim.term != 0) had_coordinator_ = true;
  if (claim.term == 0 || claim.node_count < 1) return added;
  const auto order_key = [](const RoundClaim& one) { return std::pair(one.term, one.round); };
  if (order_key(claim) < order_key(last_)) return added;
  if (order_key(claim) > order_key(last_)) {
    for (const auto& [other, claim_of] : std::exchange(claims_, {})) added.outdated.push_back(other);
    last_ = claim;
    JobState job;
    leader_rank_ = job.restore(claim.job_state, Clock::time_point{}) ? job.coordinator_node_rank : -1;
  }
  // All claims count: some members may have found the next coordinator before they were notified.
  last_.moved = last_.moved || claim.moved;
  claims_[link] = {claim.node_rank, claim.succeeded};
  added.of_last_round = true;
  return added;
}

bool Recovery::complete() const {
  if (last_.term == 0) return false;
  if (claims_.size() >= size()) return true;
  if (!without_leader_ || leader_rank_ < 0 || claims_.size() + 1 < size()) return false;
  return std::none_of(claims_.begin(), claims_.end(),
                      [this](const auto& one) { return one.second.node_rank == leader_rank_; });
}

std::vector<LinkId> Recovery::members() const {
  std::vector<LinkId> links;
  for (const auto& [link, claim_of] : claims_) links.push_back(link);
  return links;
}

bool Recovery::all_succeeded() const {
  return last_.term != 0 && claims_.size() >= size() &&
         std::all_of(claims_.begin(), claims_.end(), [](const auto& one) { return one.second.succeeded; });
}

}  // namespace ddrun::rendezvous
