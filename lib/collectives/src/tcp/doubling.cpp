#include <algorithm>
#include <bit>
#include <vector>

#include "copy.hpp"
#include "tcp/algorithms.hpp"

namespace ddrun::collectives {

namespace {

/// Pairs need a power of two. What is above it joins: of the first ranks, each even one gives its part to the odd one
/// after it, which acts for both (Thakur et al. 2005, 4.5).
class Pairs {
 public:
  explicit Pairs(const Peers& peers)
      : rank_(peers.rank()),
        places_(static_cast<int>(std::bit_floor(static_cast<unsigned>(peers.size())))),
        extra_(peers.size() - places_) {}

  /// Gives its part away and gets the result.
  [[nodiscard]] bool gives() const { return rank_ < 2 * extra_ && rank_ % 2 == 0; }
  /// Acts for the rank before it as well.
  [[nodiscard]] bool takes() const { return rank_ < 2 * extra_ && rank_ % 2 == 1; }
  [[nodiscard]] int places() const { return places_; }
  /// Of a rank that does not give.
  [[nodiscard]] int place() const { return rank_ < 2 * extra_ ? rank_ / 2 : rank_ - extra_; }
  [[nodiscard]] int rank_at(int place) const { return place < extra_ ? 2 * place + 1 : place + extra_; }

 private:
  int rank_;
  int places_;
  int extra_;
};

/// Those who give part with `ws.mine`, those who take have it merged into theirs.
Result<void> join_power(Peers& peers, const Pairs& pairs, const Partial& partial, std::byte* mine, std::size_t count) {
  const std::size_t bytes = count * partial.number();
  if (pairs.gives()) return peers.send({peers.rank() + 1, mine, bytes});
  if (!pairs.takes()) return {};
  Merging merging(partial, mine, true);
  return peers.receive({peers.rank() - 1, nullptr, bytes, &merging, partial.number()});
}

/// Those who gave get the result.
Result<void> give_back(Peers& peers, const Pairs& pairs, std::byte* result, std::size_t bytes) {
  if (pairs.takes()) return peers.send({peers.rank() - 1, result, bytes});
  if (pairs.gives()) return peers.receive({peers.rank() + 1, result, bytes});
  return {};
}

}  // namespace

Result<void> reduce_by_doubling(Peers& peers, Workspace& ws, const Partial& partial, const std::byte* in,
                                std::size_t count) {
  const Pairs pairs(peers);
  const std::size_t bytes = count * partial.number();
  std::byte* const mine = ws.mine.at_least(bytes);
  std::byte* const theirs = ws.theirs.at_least(bytes);
  partial.load(mine, in, count);
  if (auto joined = join_power(peers, pairs, partial, mine, count); !joined) return joined;
  for (int mask = 1; mask < pairs.places() && !pairs.gives(); mask *= 2) {
    const int other = pairs.place() ^ mask;
    const int partner = pairs.rank_at(other);
    if (auto done = peers.exchange({partner, mine, bytes}, {partner, theirs, bytes}); !done) return done;
    // The same order at both: that of the ranks.
    if (other < pairs.place()) partial.merge(mine, theirs, mine, count);
    else partial.merge(mine, mine, theirs, count);
  }
  return give_back(peers, pairs, mine, bytes);
}

Result<void> all_reduce_by_doubling(Peers& peers, Workspace& ws, const Call& call) {
  const Partial partial(call, peers.size());
  if (auto done = reduce_by_doubling(peers, ws, partial, call.in, call.count); !done) return done;
  partial.finish(call.out, ws.mine.at_least(0), call.count);
  return {};
}

Result<void> reduce_scatter_by_doubling(Peers& peers, Workspace& ws, const Call& call) {
  const Partial partial(call, peers.size());
  const std::size_t own = call.count * static_cast<std::size_t>(peers.rank());
  const std::size_t all = call.count * static_cast<std::size_t>(peers.size());
  if (auto done = reduce_by_doubling(peers, ws, partial, call.in, all); !done) return done;
  partial.finish(call.out, ws.mine.at_least(0) + own * partial.number(), call.count);
  return {};
}

Result<void> all_reduce_by_halving(Peers& peers, Workspace& ws, const Call& call) {
  const Partial partial(call, peers.size());
  const Pairs pairs(peers);
  const std::size_t number = partial.number();
  const std::size_t element = partial.element();
  std::byte* const mine = ws.mine.at_least(call.count * number);
  partial.load(mine, call.in, call.count);
  if (auto joined = join_power(peers, pairs, partial, mine, call.count); !joined) return joined;

  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Range> kept{{0, call.count}};
  if (!pairs.gives()) {
    for (int mask = pairs.places() / 2; mask > 0; mask /= 2) {
      const auto [begin, end] = kept.back();
      const std::size_t middle = begin + (end - begin) / 2;
      const bool upper = (pairs.place() & mask) != 0;
      const Range keep = upper ? Range{middle, end} : Range{begin, middle};
      const Range give = upper ? Range{begin, middle} : Range{middle, end};
      const int partner = pairs.rank_at(pairs.place() ^ mask);
      Merging merging(partial, mine + keep.begin * number, upper);
      auto done = peers.exchange({partner, mine + give.begin * number, (give.end - give.begin) * number},
                                 {partner, nullptr, (keep.end - keep.begin) * number, &merging, number});
      if (!done) return done;
      kept.push_back(keep);
    }
    const Range own = kept.back();
    partial.finish(call.out + own.begin * element, mine + own.begin * number, own.end - own.begin);
    // The way back: the partner of each step has the other half, finished.
    for (int mask = 1; mask < pairs.places(); mask *= 2) {
      const Range half = kept.back();
      kept.pop_back();
      const Range whole = kept.back();
      const bool upper = (pairs.place() & mask) != 0;
      const Range other = upper ? Range{whole.begin, half.begin} : Range{half.end, whole.end};
      const int partner = pairs.rank_at(pairs.place() ^ mask);
      auto done = peers.exchange({partner, call.out + half.begin * element, (half.end - half.begin) * element},
                                 {partner, call.out + other.begin * element, (other.end - other.begin) * element});
      if (!done) return done;
    }
  }
  return give_back(peers, pairs, call.out, call.count * element);
}

Result<void> all_gather_by_doubling(Peers& peers, Workspace& ws, const Call& call) {
  const int n = peers.size();
  const std::size_t bytes = call.bytes();
  const auto blocks = [bytes](int count) { return static_cast<std::size_t>(count) * bytes; };
  // From this rank's own block on, going round.
  std::byte* const turned = ws.mine.at_least(blocks(n));
  copy_bytes(turned, call.in, bytes);
  for (int have = 1; have < n; have *= 2) {
    const std::size_t more = blocks(std::min(have, n - have));
    auto done = peers.exchange({peers.at(-have), turned, more}, {peers.at(have), turned + blocks(have), more});
    if (!done) return done;
  }
  const int end = n - peers.rank();
  copy_bytes(call.out + blocks(peers.rank()), turned, blocks(end));
  copy_bytes(call.out, turned + blocks(end), blocks(peers.rank()));
  return {};
}

Result<void> meet(Peers& peers) {
  for (int distance = 1; distance < peers.size(); distance *= 2) {
    if (auto done = peers.exchange({peers.at(distance)}, {peers.at(-distance)}); !done) return done;
  }
  return {};
}

}  // namespace ddrun::collectives
