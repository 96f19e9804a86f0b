#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "simulation_invariants.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

/// The exchanges of one simulated node, one after another in each round.
class SimulatedExchange {
 public:
  explicit SimulatedExchange(std::uint32_t exchanges) : exchanges_(exchanges) {}

  /// What it contributes first, if to anything.
  [[nodiscard]] std::optional<Exchange> begin(const Start& start) {
    start_ = start;
    tag_ = 0;
    blobs_.clear();
    return contribution();
  }
  /// What it contributes next. Throws a Violation for other blobs than the round's nodes have contributed.
  [[nodiscard]] std::optional<Exchange> take(const Exchanged& part) {
    const auto& ranks = start_.ranks;
    const bool fits = part.round == start_.round && part.tag == tag_ && part.first == blobs_.size() && !is_complete();
    if (!fits) throw Violation(concat("a part of tag ", part.tag, " of round ", part.round, " where none is due"));
    blobs_.insert(blobs_.end(), part.blobs.begin(), part.blobs.end());
    if (!part.last) return std::nullopt;
    std::vector<std::string> all;
    for (int node = 0; node < ranks.node_count; ++node) all.push_back(blob_of(node));
    if (std::exchange(blobs_, {}) != all) throw Violation(concat("other blobs of tag ", tag_, " than were sent"));
    ++tag_;
    return contribution();
  }
  [[nodiscard]] bool is_complete() const { return tag_ == exchanges_; }

 private:
  [[nodiscard]] std::string blob_of(int node) const {
    return concat(start_.term, ".", start_.round, ".", tag_, ".", node);
  }
  [[nodiscard]] std::optional<Exchange> contribution() const {
    if (is_complete()) return std::nullopt;
    return Exchange{start_.round, tag_, blob_of(start_.ranks.node_rank)};
  }

  std::uint32_t exchanges_;
  std::uint32_t tag_ = 0;
  Start start_;
  std::vector<std::string> blobs_;  ///< of the present tag
};

}  // namespace ddrun::test
