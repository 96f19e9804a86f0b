#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// Collects the blobs of a round's members by tag (PROTOCOL.md, section 5). A member contributes to tag 0, 1, 2 … in
/// this order, to the next but one before the last is complete at most; what does not fit is ignored. Tags with the
/// highest bit have an order of their own: another object.
class Exchanges {
 public:
  static constexpr std::uint32_t other_order = 0x80000000U;

  /// Forgets the blobs of the round before.
  void begin(Round round, std::size_t members);
  /// The messages for all members, in order, if this was the last blob of its tag; else none. Fails with
  /// `unavailable` for more than can be sent.
  [[nodiscard]] Result<std::vector<Exchanged>> add(int node_rank, const Exchange& from);
  /// Others have contributed to the tag that is this member's next.
  [[nodiscard]] bool waits_for(int node_rank) const {
    const std::uint32_t next = next_.at(static_cast<std::size_t>(node_rank));
    return next - complete_ < open_.size() && open_[next % open_.size()].count > 0;
  }

 private:
  struct Open {
    std::vector<std::string> blobs;  ///< by node rank; empty before the first one
    std::size_t count = 0;
    std::size_t bytes = 0;
  };

  Round round_ = 0;
  std::vector<std::uint32_t> next_;  ///< tag of each member
  std::uint32_t complete_ = 0;       ///< number of complete tags
  std::array<Open, 2> open_;         ///< tags that are not complete, by their lowest bit
};

}  // namespace ddrun::rendezvous
