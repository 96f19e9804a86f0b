#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "membership.hpp"

namespace ddrun::rendezvous {

/// The members of a round with their Part in it, counted; also once the round is over.
class RoundMembers {
 public:
  /// In order of their node ranks, from 0.
  void begin(std::vector<Member*> members) {
    members_ = std::move(members);
    counts_ = {};
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      members_[rank]->node_rank = static_cast<int>(rank);
      members_[rank]->part = Part::chosen;
      ++count_of(Part::chosen);
    }
  }
  void set(Member& member, Part part) {
    --count_of(member.part);
    ++count_of(part);
    member.part = part;
  }
  /// They are in no round any more.
  void dissolve() {
    for (Member* member : members_) set(*member, Part::none);
  }
  /// For each member that is removed from the job, before that.
  void remove(const Member& member) {
    const auto at = std::lower_bound(members_.begin(), members_.end(), member.node_rank,
                                     [](const Member* one, int rank) { return one->node_rank < rank; });
    if (at == members_.end() || *at != &member) return;
    --count_of(member.part);
    members_.erase(at);
  }

  /// Those that were not removed, in order of node rank.
  [[nodiscard]] const std::vector<Member*>& all() const { return members_; }
  [[nodiscard]] std::size_t size() const { return members_.size(); }
  [[nodiscard]] std::size_t count(Part part) const { return counts_[static_cast<std::size_t>(part)]; }
  /// Members whose STOPPED is to come.
  [[nodiscard]] std::size_t to_stop() const { return count(Part::notified) + count(Part::succeeded); }
  /// The member with node rank 0; null if it was removed.
  [[nodiscard]] Member* first() const {
    return members_.empty() || members_.front()->node_rank != 0 ? nullptr : members_.front();
  }

 private:
  [[nodiscard]] std::size_t& count_of(Part part) { return counts_[static_cast<std::size_t>(part)]; }

  std::vector<Member*> members_;
  std::array<std::size_t, 6> counts_{};
};

}  // namespace ddrun::rendezvous
