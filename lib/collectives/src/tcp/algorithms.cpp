#include "tcp/algorithms.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "copy.hpp"
#include "describe.hpp"

namespace ddrun::collectives {

Partial::Partial(const Call& call, int ranks)
    : element_(size_of(call.type)),
      number_(size_of(accumulator_type(call.type))),
      ranks_(ranks),
      loops_(kernels(call.type, call.op)),
      on_the_way_(kernels(accumulator_type(call.type), call.op == ReduceOp::avg ? ReduceOp::sum : call.op)) {}

void Partial::merge(void* out, const void* first, const void* second, std::size_t count) const {
  const std::array in{first, second};
  on_the_way_.reduce(in.data(), in.size(), &out, 1, 0, count, Stores::normal, ranks_);
}

void Partial::reduce(void* out, const void* first, const void* second, std::size_t count, bool finished) const {
  const std::array in{first, second};
  (finished ? loops_ : on_the_way_).reduce(in.data(), in.size(), &out, 1, 0, count, Stores::normal, ranks_);
}

void Merging::take(std::size_t offset, std::byte* data, std::size_t bytes) {
  std::byte* const mine = mine_ + offset;
  const std::size_t count = bytes / partial_.number();
  if (theirs_first_) partial_.merge(mine, data, mine, count);
  else partial_.merge(mine, mine, data, count);
}

void Passing::take(std::size_t offset, std::byte* data, std::size_t bytes) {
  const std::size_t count = bytes / arriving();
  const std::size_t first = offset / arriving();
  const std::byte* const own = places_.own + first * partial_.element();
  std::byte* const to = places_.to + first * (places_.last ? partial_.element() : partial_.number());
  if (!partial_.apart()) return partial_.reduce(to, data, own, count, places_.last);
  std::byte* numbers = data;
  if (!places_.numbers) {
    numbers = places_.last ? scratch_.at_least(count * partial_.number()) : to;
    partial_.load(numbers, data, count);
  }
  partial_.accumulate(numbers, own, count);
  if (places_.last) partial_.finish(to, numbers, count);
  else if (numbers != to) copy_bytes(to, numbers, count * partial_.number());
}

namespace {

/// n parts of an array, one per rank.
class Parts {
 public:
  /// As equal as can be.
  Parts(std::size_t count, int parts) : count_(count), parts_(parts) {}

  struct Range {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// Of elements. Indices go round.
  [[nodiscard]] Range operator[](int index) const;
  /// Elements of the largest.
  [[nodiscard]] std::size_t largest() const { return (*this)[0].count; }

 private:
  std::size_t count_;
  int parts_;
};

Parts::Range Parts::operator[](int index) const {
  const auto n = static_cast<std::size_t>(parts_);
  const auto i = static_cast<std::size_t>(((index % parts_) + parts_) % parts_);
  const std::size_t low = count_ / n;
  const std::size_t extra = count_ % n;
  return {i * low + std::min(i, extra), low + (i < extra ? 1 : 0)};
}

/// Each part is reduced on its way round the ring, in n - 1 steps, and is finished at rank `index + shift` for part
/// `index`. `finished` is where this rank's own finished part goes. Others' parts, unfinished, are kept where they
/// belong in `on_the_way`, or in the workspace if that is null or too narrow for numbers.
Result<void> ring_reduce_scatter(Peers& peers, Workspace& ws, const Partial& partial, const Parts& parts, int shift,
                                 const std::byte* in, std::byte* finished, std::byte* on_the_way) {
  const int n = peers.size();
  const std::size_t element = partial.element();
  const bool aside = on_the_way == nullptr || partial.apart();
  const std::size_t most = parts.largest() * partial.number();
  // Two in turn: one is sent while the other is being received.
  std::byte* const kept = aside && n > 2 ? ws.mine.at_least(2 * most) : nullptr;
  const std::byte* send = nullptr;
  for (int i = 0; i < n - 1; ++i) {
    const auto sent = parts[peers.rank() - shift + n - 1 - i];
    const auto received = parts[peers.rank() - shift + n - 2 - i];
    const bool first = i == 0;
    const bool last = i == n - 2;
    if (first) send = in + sent.begin * element;
    Passing::Places places{in + received.begin * element, nullptr, !first, last};
    if (last) places.to = finished;
    else places.to = aside ? kept + static_cast<std::size_t>(i % 2) * most : on_the_way + received.begin * element;
    Passing arrival(partial, ws.piece, places);
    const Outgoing out{peers.at(1), send, sent.count * (first ? element : partial.number())};
    const Incoming incoming{peers.at(-1), nullptr, received.count * arrival.arriving(), &arrival, arrival.arriving()};
    if (auto done = peers.exchange(out, incoming); !done) return done;
    send = places.to;
  }
  return {};
}

/// All parts go round in n - 1 steps. At the start rank r has part r - shift of `out`.
Result<void> ring_all_gather(Peers& peers, const Parts& parts, int shift, std::byte* out, std::size_t element) {
  for (int i = 0; i < peers.size() - 1; ++i) {
    const auto sent = parts[peers.rank() - shift - i];
    const auto received = parts[peers.rank() - shift - i - 1];
    auto done = peers.exchange({peers.at(1), out + sent.begin * element, sent.count * element},
                               {peers.at(-1), out + received.begin * element, received.count * element});
    if (!done) return done;
  }
  return {};
}

}  // namespace

Result<void> all_reduce_by_ring(Peers& peers, Workspace& ws, const Call& call) {
  const Partial partial(call, peers.size());
  const Parts parts(call.count, peers.size());
  // Rank r ends with part r + 1.
  const std::size_t own = parts[peers.rank() + 1].begin * partial.element();
  if (auto done = ring_reduce_scatter(peers, ws, partial, parts, -1, call.in, call.out + own, call.out); !done) {
    return done;
  }
  return ring_all_gather(peers, parts, -1, call.out, partial.element());
}

Result<void> reduce_scatter_by_ring(Peers& peers, Workspace& ws, const Call& call) {
  const Partial partial(call, peers.size());
  const Parts blocks(call.count * static_cast<std::size_t>(peers.size()), peers.size());
  return ring_reduce_scatter(peers, ws, partial, blocks, 0, call.in, call.out, nullptr);
}

Result<void> all_gather_by_ring(Peers& peers, const Call& call) {
  const std::size_t element = size_of(call.type);
  const Parts blocks(call.count * static_cast<std::size_t>(peers.size()), peers.size());
  std::byte* const own = call.out + blocks[peers.rank()].begin * element;
  if (call.in != own) copy_bytes(own, call.in, call.bytes());
  return ring_all_gather(peers, blocks, 0, call.out, element);
}

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

/// All ranks have everything reduced, as numbers in `ws.mine`; `in` has `count` elements.
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

}  // namespace

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

namespace {

/// A binomial tree whose root is the call's: places count from there, going round. A place's parent is it without its
/// lowest bit; its subtree are the places up to that bit further.
class Tree {
 public:
  Tree(const Peers& peers, int root)
      : size_(peers.size()), root_(root), place_((peers.rank() - root + size_) % size_) {}

  [[nodiscard]] int place() const { return place_; }
  [[nodiscard]] int rank_at(int place) const { return (place + root_) % size_; }
  [[nodiscard]] int parent() const { return rank_at(place_ & (place_ - 1)); }
  /// Of the root, a power of two that is not below the group's size.
  [[nodiscard]] int reach() const {
    return place_ == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size_))) : place_ & -place_;
  }
  /// Places of the subtree `distance` further.
  [[nodiscard]] int places_at(int distance) const { return std::min(distance, size_ - place_ - distance); }
  /// Places of this rank's own subtree.
  [[nodiscard]] int places() const { return std::min(reach(), size_ - place_); }

 private:
  int size_;
  int root_;
  int place_;
};

/// The pieces of an array, in elements.
struct Pieces {
  Pieces(const Call& call, std::size_t bytes)
      : most(std::max<std::size_t>(bytes / size_of(call.type), 1)), total(call.count) {}
  std::size_t most;
  std::size_t total;
  [[nodiscard]] std::size_t number() const { return (total + most - 1) / most; }
  [[nodiscard]] std::size_t begin(std::size_t piece) const { return piece * most; }
  [[nodiscard]] std::size_t count(std::size_t piece) const { return std::min(most, total - begin(piece)); }
};

std::size_t blocks(const Call& call, int count) { return static_cast<std::size_t>(count) * call.bytes(); }

}  // namespace

Result<void> broadcast_by_tree(Peers& peers, const Call& call) {
  const Tree tree(peers, call.root);
  const std::byte* data = call.out;
  if (tree.place() == 0) {
    if (call.in != call.out) copy_bytes(call.out, call.in, call.bytes());
  } else if (auto got = peers.receive({tree.parent(), call.out, call.bytes()}); !got) {
    return got;
  }
  for (int distance = tree.reach() / 2; distance > 0; distance /= 2) {
    if (tree.places_at(distance) <= 0) continue;
    if (auto sent = peers.send({tree.rank_at(tree.place() + distance), data, call.bytes()}); !sent) return sent;
  }
  return {};
}

Result<void> broadcast_by_chain(Peers& peers, const Call& call, std::size_t piece_bytes) {
  const Tree tree(peers, call.root);
  const Pieces pieces(call, piece_bytes);
  const std::size_t element = size_of(call.type);
  const bool first = tree.place() == 0;
  const bool last = tree.place() == peers.size() - 1;
  const std::byte* const source = first ? call.in : call.out;
  // A piece is sent on while the next one comes in.
  for (std::size_t i = 0; i < pieces.number() + (first || last ? 0 : 1); ++i) {
    Outgoing out;
    Incoming in;
    const std::size_t sent = first ? i : i - 1;
    if (!last && (first || i > 0)) {
      out = {peers.at(1), source + pieces.begin(sent) * element, pieces.count(sent) * element};
    }
    if (!first && i < pieces.number()) {
      in = {peers.at(-1), call.out + pieces.begin(i) * element, pieces.count(i) * element};
    }
    if (auto done = peers.exchange(out, in); !done) return done;
  }
  if (first && call.in != call.out) copy_bytes(call.out, call.in, call.bytes());
  return {};
}

Result<void> reduce_by_tree(Peers& peers, Workspace& ws, const Call& call) {
  const Tree tree(peers, call.root);
  const Partial partial(call, peers.size());
  const std::size_t bytes = call.count * partial.number();
  std::byte* const mine = ws.mine.at_least(bytes);
  partial.load(mine, call.in, call.count);
  for (int distance = 1; distance < tree.reach(); distance *= 2) {
    if (tree.places_at(distance) <= 0) continue;
    Merging merging(partial, mine, false);
    const int child = tree.rank_at(tree.place() + distance);
    if (auto got = peers.receive({child, nullptr, bytes, &merging, partial.number()}); !got) return got;
  }
  if (tree.place() != 0) return peers.send({tree.parent(), mine, bytes});
  partial.finish(call.out, mine, call.count);
  return {};
}

/// From the rank after the root round to the root, which is the last to add its own.
Result<void> reduce_by_chain(Peers& peers, Workspace& ws, const Call& call, std::size_t piece_bytes) {
  const Tree tree(peers, call.root);
  const Partial partial(call, peers.size());
  const Pieces pieces(call, piece_bytes);
  const bool first = tree.place() == 1;
  const bool last = tree.place() == 0;
  const std::size_t element = partial.element();
  const std::size_t most = pieces.most * partial.number();
  // Two in turn: one is sent on while the other is being received.
  std::byte* const kept = first || last ? nullptr : ws.mine.at_least(2 * most);
  for (std::size_t i = 0; i < pieces.number() + (first || last ? 0 : 1); ++i) {
    const std::byte* const own = i < pieces.number() ? call.in + pieces.begin(i) * element : nullptr;
    if (first) {
      if (auto sent = peers.send({peers.at(1), own, pieces.count(i) * element}); !sent) return sent;
      continue;
    }
    // What comes from the first rank is its input.
    const bool numbers = tree.rank_at(1) != peers.at(-1);
    std::byte* const to = last ? call.out + pieces.begin(i) * element : kept + i % 2 * most;
    Passing arrival(partial, ws.piece, {own, to, numbers, last});
    Outgoing out;
    Incoming in;
    if (!last && i > 0) out = {peers.at(1), kept + (i - 1) % 2 * most, pieces.count(i - 1) * partial.number()};
    if (i < pieces.number()) {
      in = {peers.at(-1), nullptr, pieces.count(i) * arrival.arriving(), &arrival, arrival.arriving()};
    }
    if (auto done = peers.exchange(out, in); !done) return done;
  }
  return {};
}

Result<void> gather_by_tree(Peers& peers, Workspace& ws, const Call& call) {
  const Tree tree(peers, call.root);
  const std::byte* data = call.in;
  if (tree.places() > 1) {
    std::byte* const all = ws.mine.at_least(blocks(call, tree.places()));
    copy_bytes(all, call.in, call.bytes());
    for (int distance = 1; distance < tree.reach(); distance *= 2) {
      const int places = tree.places_at(distance);
      if (places <= 0) continue;
      const int child = tree.rank_at(tree.place() + distance);
      if (auto got = peers.receive({child, all + blocks(call, distance), blocks(call, places)}); !got) return got;
    }
    data = all;
  }
  if (tree.place() != 0) return peers.send({tree.parent(), data, blocks(call, tree.places())});
  const int end = peers.size() - call.root;
  copy_bytes(call.out + blocks(call, call.root), data, blocks(call, end));
  copy_bytes(call.out, data + blocks(call, end), blocks(call, call.root));
  return {};
}

Result<void> scatter_by_tree(Peers& peers, Workspace& ws, const Call& call) {
  const Tree tree(peers, call.root);
  std::byte* data = call.out;
  if (tree.places() > 1) data = ws.mine.at_least(blocks(call, tree.places()));
  if (tree.place() == 0) {
    const int end = peers.size() - call.root;
    copy_bytes(data, call.in + blocks(call, call.root), blocks(call, end));
    copy_bytes(data + blocks(call, end), call.in, blocks(call, call.root));
  } else if (auto got = peers.receive({tree.parent(), data, blocks(call, tree.places())}); !got) {
    return got;
  }
  for (int distance = tree.reach() / 2; distance > 0; distance /= 2) {
    const int places = tree.places_at(distance);
    if (places <= 0) continue;
    const int child = tree.rank_at(tree.place() + distance);
    if (auto sent = peers.send({child, data + blocks(call, distance), blocks(call, places)}); !sent) return sent;
  }
  if (data != call.out) copy_bytes(call.out, data, call.bytes());
  return {};
}

Result<void> gather_directly(Peers& peers, const Call& call) {
  if (peers.rank() != call.root) return peers.send({call.root, call.in, call.bytes()});
  std::byte* const own = call.out + blocks(call, call.root);
  if (call.in != own) copy_bytes(own, call.in, call.bytes());
  for (int i = 1; i < peers.size(); ++i) {
    const int from = peers.at(i);
    if (auto got = peers.receive({from, call.out + blocks(call, from), call.bytes()}); !got) return got;
  }
  return {};
}

Result<void> scatter_directly(Peers& peers, const Call& call) {
  if (peers.rank() != call.root) return peers.receive({call.root, call.out, call.bytes()});
  for (int i = 1; i < peers.size(); ++i) {
    const int to = peers.at(i);
    if (auto sent = peers.send({to, call.in + blocks(call, to), call.bytes()}); !sent) return sent;
  }
  const std::byte* const own = call.in + blocks(call, call.root);
  if (call.out != own) copy_bytes(call.out, own, call.bytes());
  return {};
}

namespace {

/// What is sent from the place where something else is received is copied first, this much at a time. On all ranks
/// alike, as the two sides of a message must name the same length.
constexpr std::size_t swap_piece = 4 << 20;

/// Sends `bytes` of `in` and receives as many at `out`, which may be the same place.
Result<void> swap(Peers& peers, Workspace& ws, int to, const std::byte* in, int from, std::byte* out,
                  std::size_t bytes) {
  std::size_t at = 0;
  do {
    const std::size_t now = std::min(swap_piece, bytes - at);
    const std::byte* data = in + at;
    if (in == out) {
      std::byte* const kept = ws.mine.at_least(now);
      copy_bytes(kept, data, now);
      data = kept;
    }
    if (auto done = peers.exchange({to, data, now}, {from, out + at, now}); !done) return done;
    at += now;
  } while (at < bytes);
  return {};
}

}  // namespace

Result<void> all_to_all_by_pairs(Peers& peers, Workspace& ws, const Call& call) {
  const std::size_t bytes = call.bytes();
  for (int round = 0; round < peers.size(); ++round) {
    const int partner = (round - peers.rank() + peers.size()) % peers.size();
    const std::byte* const in = call.in + static_cast<std::size_t>(partner) * bytes;
    std::byte* const out = call.out + static_cast<std::size_t>(partner) * bytes;
    if (partner == peers.rank()) {
      if (in != out) copy_bytes(out, in, bytes);
    } else if (auto done = swap(peers, ws, partner, in, partner, out, bytes); !done) {
      return done;
    }
  }
  return {};
}

Result<void> send_and_receive(Peers& peers, Workspace& ws, const Call& call) {
  const bool to_itself = call.to == peers.rank();
  if (to_itself != (call.from == peers.rank())) return sends_to_itself(peers.rank(), call.to, call.from);
  if (!to_itself) return swap(peers, ws, call.to, call.in, call.from, call.out, call.bytes());
  if (call.in != call.out) copy_bytes(call.out, call.in, call.bytes());
  return {};
}

Plan plan_for(int ranks) {
  // Medians of where the algorithms cost the same by the model of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization
  // of Collective Communication Operations in MPICH", Int. J. of High Performance Computing Applications 19(1), 2005,
  // with costs measured over the loopback and between two hosts of one machine, 2 to 16 ranks. Ranks beyond a power of
  // two take two more steps in doubling and halving.
  const bool power = std::has_single_bit(static_cast<unsigned>(ranks));
  Plan plan;
  plan.doubling = ranks == 2 ? 256 << 10 : power ? 32 << 10 : 16 << 10;
  plan.halving = power && ranks > 2 ? 1 << 20 : 0;
  plan.tree = ranks == 2 ? Plan::unlimited : power ? 128 << 10 : 32 << 10;
  plan.block_tree = ranks < 7 ? 0 : 128 << 10;
  plan.all_gather = ranks < 4 ? 0 : 256 << 10;
  return plan;
}

Result<void> perform(Peers& peers, Workspace& ws, const Plan& plan, const Call& call) {
  const std::size_t bytes = call.bytes();
  const std::size_t all = bytes * static_cast<std::size_t>(peers.size());
  switch (call.collective) {
    case Collective::barrier: return meet(peers);
    case Collective::all_reduce:
      if (bytes <= plan.doubling) return all_reduce_by_doubling(peers, ws, call);
      if (bytes <= plan.halving) return all_reduce_by_halving(peers, ws, call);
      return all_reduce_by_ring(peers, ws, call);
    case Collective::broadcast:
      if (bytes <= plan.tree) return broadcast_by_tree(peers, call);
      return broadcast_by_chain(peers, call, plan.chain_piece);
    case Collective::reduce:
      if (bytes <= plan.tree) return reduce_by_tree(peers, ws, call);
      return reduce_by_chain(peers, ws, call, plan.chain_piece);
    case Collective::all_gather:
      if (bytes <= plan.all_gather) return all_gather_by_doubling(peers, ws, call);
      return all_gather_by_ring(peers, call);
    case Collective::reduce_scatter:
      if (all <= plan.doubling) return reduce_scatter_by_doubling(peers, ws, call);
      return reduce_scatter_by_ring(peers, ws, call);
    case Collective::gather:
      if (bytes <= plan.block_tree) return gather_by_tree(peers, ws, call);
      return gather_directly(peers, call);
    case Collective::scatter:
      if (bytes <= plan.block_tree) return scatter_by_tree(peers, ws, call);
      return scatter_directly(peers, call);
    case Collective::all_to_all: return all_to_all_by_pairs(peers, ws, call);
    case Collective::send_recv: return send_and_receive(peers, ws, call);
  }
  return fail(Errc::invalid_argument, "unknown collective");
}

}  // namespace ddrun::collectives
