#include "recovery.hpp"

#include <algorithm>
#include <utility>

#include "job_memory.hpp"

namespace ddrun::rendezvous {

Recovery::Noted Recovery::note(LinkId link, const RoundClaim& claim) {
  Noted noted;
  if (claim.term != 0) had_coordinator_ = true;
  if (claim.term == 0 || claim.node_count < 1) return noted;
  const auto place = [](const RoundClaim& one) { return std::pair(one.term, one.round); };
  if (place(claim) < place(last_)) return noted;
  if (place(claim) > place(last_)) {
    for (const auto& [other, part] : std::exchange(claims_, {})) noted.outdated.push_back(other);
    last_ = claim;
    JobMemory memory;
    leader_rank_ = memory.take(claim.memory, Clock::time_point{}) ? memory.coordinators_rank : -1;
  }
  // It tells all the same; some may have heard of the next one before they heard that.
  last_.moved = last_.moved || claim.moved;
  claims_[link] = {claim.node_rank, claim.succeeded};
  noted.of_last_round = true;
  return noted;
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
  for (const auto& [link, part] : claims_) links.push_back(link);
  return links;
}

bool Recovery::all_well() const {
  return last_.term != 0 && claims_.size() >= size() &&
         std::all_of(claims_.begin(), claims_.end(), [](const auto& one) { return one.second.succeeded; });
}

}  // namespace ddrun::rendezvous
