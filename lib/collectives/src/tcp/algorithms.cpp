#include "tcp/algorithms.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "copy.hpp"
#include "describe.hpp"

namespace ddrun::collectives {

Accumulator::Accumulator(const Call& call, int ranks)
    : element_bytes_(size_of(call.type)),
      partial_bytes_(size_of(accumulator_type(call.type))),
      ranks_(ranks),
      kernels_(kernels(call.type, call.op)),
      partial_kernels_(kernels(accumulator_type(call.type), call.op == ReduceOp::avg ? ReduceOp::sum : call.op)) {}

void Accumulator::combine(void* out, const void* first, const void* second, std::size_t count) const {
  const std::array in{first, second};
  partial_kernels_.reduce(in.data(), in.size(), &out, 1, 0, count, Stores::normal, ranks_);
}

void Accumulator::reduce(void* out, const void* first, const void* second, std::size_t count, bool finished) const {
  const std::array in{first, second};
  (finished ? kernels_ : partial_kernels_).reduce(in.data(), in.size(), &out, 1, 0, count, Stores::normal, ranks_);
}

void ReduceOnRecv::consume(std::size_t offset, std::byte* data, std::size_t bytes) {
  std::byte* const mine = data_ + offset;
  const std::size_t count = bytes / acc_.partial_bytes();
  if (peer_first_) acc_.combine(mine, data, mine, count);
  else acc_.combine(mine, mine, data, count);
}

void ReduceAndForward::consume(std::size_t offset, std::byte* data, std::size_t bytes) {
  const std::size_t count = bytes / recv_bytes();
  const std::size_t first = offset / recv_bytes();
  const std::byte* const own = operands_.own + first * acc_.element_bytes();
  std::byte* const to = operands_.to + first * (operands_.last ? acc_.element_bytes() : acc_.partial_bytes());
  if (!acc_.types_differ()) return acc_.reduce(to, data, own, count, operands_.last);
  std::byte* numbers = data;
  if (!operands_.recv_partial) {
    numbers = operands_.last ? scratch_.at_least(count * acc_.partial_bytes()) : to;
    acc_.load(numbers, data, count);
  }
  acc_.accumulate(numbers, own, count);
  if (operands_.last) acc_.finish(to, numbers, count);
  else if (numbers != to) copy_bytes(to, numbers, count * acc_.partial_bytes());
}

namespace {

class Parts {
 public:
  /// As equal as possible.
  Parts(std::size_t count, int parts) : count_(count), parts_(parts) {}

  struct Range {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// In elements. Indices wrap around.
  [[nodiscard]] Range operator[](int index) const;
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

/// Each part is reduced along the ring in n - 1 steps; rank `index + shift` ends with part `index`. `finished` receives
/// this rank's finished part. Other parts are kept unfinished at their positions in `partials`, or in the workspace if
/// that is null or the accumulator is wider than the element.
Result<void> ring_reduce_scatter(Peers& peers, Workspace& ws, const Accumulator& acc, const Parts& parts, int shift,
                                 const std::byte* in, std::byte* finished, std::byte* partials) {
  const int n = peers.size();
  const std::size_t element = acc.element_bytes();
  const bool in_workspace = partials == nullptr || acc.types_differ();
  const std::size_t most = parts.largest() * acc.partial_bytes();
  // Double-buffered: one is sent while the other is received.
  std::byte* const kept = in_workspace && n > 2 ? ws.mine.at_least(2 * most) : nullptr;
  const std::byte* send = nullptr;
  for (int i = 0; i < n - 1; ++i) {
    const auto sent = parts[peers.rank() - shift + n - 1 - i];
    const auto received = parts[peers.rank() - shift + n - 2 - i];
    const bool first = i == 0;
    const bool last = i == n - 2;
    if (first) send = in + sent.begin * element;
    ReduceAndForward::Operands operands{in + received.begin * element, nullptr, !first, last};
    if (last) operands.to = finished;
    else
      operands.to = in_workspace ? kept + static_cast<std::size_t>(i % 2) * most : partials + received.begin * element;
    ReduceAndForward sink(acc, ws.piece, operands);
    const Outgoing out{peers.at(1), send, sent.count * (first ? element : acc.partial_bytes())};
    const Incoming incoming{peers.at(-1), nullptr, received.count * sink.recv_bytes(), &sink, sink.recv_bytes()};
    TRY(peers.exchange(out, incoming));
    send = operands.to;
  }
  return {};
}

/// All parts travel the ring in n - 1 steps. At the start rank r has part r - shift of `out`.
Result<void> ring_all_gather(Peers& peers, const Parts& parts, int shift, std::byte* out, std::size_t element) {
  for (int i = 0; i < peers.size() - 1; ++i) {
    const auto sent = parts[peers.rank() - shift - i];
    const auto received = parts[peers.rank() - shift - i - 1];
    TRY(peers.exchange({peers.at(1), out + sent.begin * element, sent.count * element},
                       {peers.at(-1), out + received.begin * element, received.count * element}));
  }
  return {};
}

}  // namespace

Result<void> all_reduce_by_ring(Peers& peers, Workspace& ws, const Call& call) {
  const Accumulator acc(call, peers.size());
  const Parts parts(call.count, peers.size());
  // Rank r ends with part r + 1.
  const std::size_t own = parts[peers.rank() + 1].begin * acc.element_bytes();
  TRY(ring_reduce_scatter(peers, ws, acc, parts, -1, call.in, call.out + own, call.out));
  return ring_all_gather(peers, parts, -1, call.out, acc.element_bytes());
}

Result<void> reduce_scatter_by_ring(Peers& peers, Workspace& ws, const Call& call) {
  const Accumulator acc(call, peers.size());
  const Parts blocks(call.count * static_cast<std::size_t>(peers.size()), peers.size());
  return ring_reduce_scatter(peers, ws, acc, blocks, 0, call.in, call.out, nullptr);
}

Result<void> all_gather_by_ring(Peers& peers, const Call& call) {
  const std::size_t element = size_of(call.type);
  const Parts blocks(call.count * static_cast<std::size_t>(peers.size()), peers.size());
  std::byte* const own = call.out + blocks[peers.rank()].begin * element;
  if (call.in != own) copy_bytes(own, call.in, call.bytes());
  return ring_all_gather(peers, blocks, 0, call.out, element);
}

namespace {

/// Pairwise exchange needs a power of two. Of the first ranks, each even one sends its input to the odd one after it,
/// which acts for both (Thakur et al. 2005, 4.5).
class PowerOfTwoFold {
 public:
  explicit PowerOfTwoFold(const Peers& peers)
      : rank_(peers.rank()),
        size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(peers.size())))),
        extra_(peers.size() - size_) {}

  /// Sends its input and only receives the result.
  [[nodiscard]] bool is_folded() const { return rank_ < 2 * extra_ && rank_ % 2 == 0; }
  /// Acts for the previous rank too.
  [[nodiscard]] bool is_proxy() const { return rank_ < 2 * extra_ && rank_ % 2 == 1; }
  [[nodiscard]] int size() const { return size_; }
  /// Of a rank that is not folded.
  [[nodiscard]] int virtual_rank() const { return rank_ < 2 * extra_ ? rank_ / 2 : rank_ - extra_; }
  [[nodiscard]] int rank_of(int virtual_rank) const {
    return virtual_rank < extra_ ? 2 * virtual_rank + 1 : virtual_rank + extra_;
  }

 private:
  int rank_;
  int size_;
  int extra_;
};

/// Folded ranks send their input; proxies combine it with theirs.
Result<void> fold_in(Peers& peers, const PowerOfTwoFold& fold, const Accumulator& acc, std::byte* mine,
                     std::size_t count) {
  const std::size_t bytes = count * acc.partial_bytes();
  if (fold.is_folded()) return peers.send({peers.rank() + 1, mine, bytes});
  if (!fold.is_proxy()) return {};
  ReduceOnRecv sink(acc, mine, true);
  return peers.receive({peers.rank() - 1, nullptr, bytes, &sink, acc.partial_bytes()});
}

/// Folded ranks receive the result.
Result<void> fold_out(Peers& peers, const PowerOfTwoFold& fold, std::byte* result, std::size_t bytes) {
  if (fold.is_proxy()) return peers.send({peers.rank() - 1, result, bytes});
  if (fold.is_folded()) return peers.receive({peers.rank() + 1, result, bytes});
  return {};
}

/// Leaves the reduction of all ranks' inputs, as partial results, in `ws.mine`; `in` has `count` elements.
Result<void> reduce_by_doubling(Peers& peers, Workspace& ws, const Accumulator& acc, const std::byte* in,
                                std::size_t count) {
  const PowerOfTwoFold fold(peers);
  const std::size_t bytes = count * acc.partial_bytes();
  std::byte* const mine = ws.mine.at_least(bytes);
  std::byte* const theirs = ws.theirs.at_least(bytes);
  acc.load(mine, in, count);
  TRY(fold_in(peers, fold, acc, mine, count));
  for (int mask = 1; mask < fold.size() && !fold.is_folded(); mask *= 2) {
    const int other = fold.virtual_rank() ^ mask;
    const int partner = fold.rank_of(other);
    TRY(peers.exchange({partner, mine, bytes}, {partner, theirs, bytes}));
    // Both partners combine in rank order.
    if (other < fold.virtual_rank()) acc.combine(mine, theirs, mine, count);
    else acc.combine(mine, mine, theirs, count);
  }
  return fold_out(peers, fold, mine, bytes);
}

}  // namespace

Result<void> all_reduce_by_doubling(Peers& peers, Workspace& ws, const Call& call) {
  const Accumulator acc(call, peers.size());
  TRY(reduce_by_doubling(peers, ws, acc, call.in, call.count));
  acc.finish(call.out, ws.mine.at_least(0), call.count);
  return {};
}

Result<void> reduce_scatter_by_doubling(Peers& peers, Workspace& ws, const Call& call) {
  const Accumulator acc(call, peers.size());
  const std::size_t own = call.count * static_cast<std::size_t>(peers.rank());
  const std::size_t all = call.count * static_cast<std::size_t>(peers.size());
  TRY(reduce_by_doubling(peers, ws, acc, call.in, all));
  acc.finish(call.out, ws.mine.at_least(0) + own * acc.partial_bytes(), call.count);
  return {};
}

Result<void> all_reduce_by_halving(Peers& peers, Workspace& ws, const Call& call) {
  const Accumulator acc(call, peers.size());
  const PowerOfTwoFold fold(peers);
  const std::size_t number = acc.partial_bytes();
  const std::size_t element = acc.element_bytes();
  std::byte* const mine = ws.mine.at_least(call.count * number);
  acc.load(mine, call.in, call.count);
  TRY(fold_in(peers, fold, acc, mine, call.count));

  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Range> kept{{0, call.count}};
  if (!fold.is_folded()) {
    for (int mask = fold.size() / 2; mask > 0; mask /= 2) {
      const auto [begin, end] = kept.back();
      const std::size_t middle = begin + (end - begin) / 2;
      const bool upper = (fold.virtual_rank() & mask) != 0;
      const Range keep = upper ? Range{middle, end} : Range{begin, middle};
      const Range give = upper ? Range{begin, middle} : Range{middle, end};
      const int partner = fold.rank_of(fold.virtual_rank() ^ mask);
      ReduceOnRecv sink(acc, mine + keep.begin * number, upper);
      TRY(peers.exchange({partner, mine + give.begin * number, (give.end - give.begin) * number},
                         {partner, nullptr, (keep.end - keep.begin) * number, &sink, number}));
      kept.push_back(keep);
    }
    const Range own = kept.back();
    acc.finish(call.out + own.begin * element, mine + own.begin * number, own.end - own.begin);
    // The way back: each step's partner has the other half, finished.
    for (int mask = 1; mask < fold.size(); mask *= 2) {
      const Range half = kept.back();
      kept.pop_back();
      const Range whole = kept.back();
      const bool upper = (fold.virtual_rank() & mask) != 0;
      const Range other = upper ? Range{whole.begin, half.begin} : Range{half.end, whole.end};
      const int partner = fold.rank_of(fold.virtual_rank() ^ mask);
      TRY(peers.exchange({partner, call.out + half.begin * element, (half.end - half.begin) * element},
                         {partner, call.out + other.begin * element, (other.end - other.begin) * element}));
    }
  }
  return fold_out(peers, fold, call.out, call.count * element);
}

Result<void> all_gather_by_doubling(Peers& peers, Workspace& ws, const Call& call) {
  const int n = peers.size();
  const std::size_t bytes = call.bytes();
  const auto blocks = [bytes](int count) { return static_cast<std::size_t>(count) * bytes; };
  // Blocks in order from this rank's own, wrapping around.
  std::byte* const rotated = ws.mine.at_least(blocks(n));
  copy_bytes(rotated, call.in, bytes);
  for (int have = 1; have < n; have *= 2) {
    const std::size_t more = blocks(std::min(have, n - have));
    TRY(peers.exchange({peers.at(-have), rotated, more}, {peers.at(have), rotated + blocks(have), more}));
  }
  const int end = n - peers.rank();
  copy_bytes(call.out + blocks(peers.rank()), rotated, blocks(end));
  copy_bytes(call.out, rotated + blocks(end), blocks(peers.rank()));
  return {};
}

Result<void> dissemination_barrier(Peers& peers) {
  for (int distance = 1; distance < peers.size(); distance *= 2) {
    TRY(peers.exchange({peers.at(distance)}, {peers.at(-distance)}));
  }
  return {};
}

namespace {

/// A binomial tree over ranks relative to the call's root. A rank's parent is its relative rank without the lowest set
/// bit; its subtree contains the ranks up to that bit further.
class Tree {
 public:
  Tree(const Peers& peers, int root)
      : size_(peers.size()), root_(root), relative_rank_((peers.rank() - root + size_) % size_) {}

  [[nodiscard]] int relative_rank() const { return relative_rank_; }
  [[nodiscard]] int rank_of(int relative_rank) const { return (relative_rank + root_) % size_; }
  [[nodiscard]] int parent() const { return rank_of(relative_rank_ & (relative_rank_ - 1)); }
  /// For the root, the power of two that is at least the group's size.
  [[nodiscard]] int subtree_span() const {
    return relative_rank_ == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size_)))
                               : relative_rank_ & -relative_rank_;
  }
  /// Size of the child subtree at `distance`.
  [[nodiscard]] int subtree_size_at(int distance) const {
    return std::min(distance, size_ - relative_rank_ - distance);
  }
  /// Size of this rank's own subtree.
  [[nodiscard]] int subtree_size() const { return std::min(subtree_span(), size_ - relative_rank_); }

 private:
  int size_;
  int root_;
  int relative_rank_;
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
  if (tree.relative_rank() == 0) {
    if (call.in != call.out) copy_bytes(call.out, call.in, call.bytes());
  } else {
    TRY(peers.receive({tree.parent(), call.out, call.bytes()}));
  }
  for (int distance = tree.subtree_span() / 2; distance > 0; distance /= 2) {
    if (tree.subtree_size_at(distance) <= 0) continue;
    TRY(peers.send({tree.rank_of(tree.relative_rank() + distance), data, call.bytes()}));
  }
  return {};
}

Result<void> broadcast_by_chain(Peers& peers, const Call& call, std::size_t piece_bytes) {
  const Tree tree(peers, call.root);
  const Pieces pieces(call, piece_bytes);
  const std::size_t element = size_of(call.type);
  const bool first = tree.relative_rank() == 0;
  const bool last = tree.relative_rank() == peers.size() - 1;
  const std::byte* const source = first ? call.in : call.out;
  // A piece is forwarded while the next one is received.
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
    TRY(peers.exchange(out, in));
  }
  if (first && call.in != call.out) copy_bytes(call.out, call.in, call.bytes());
  return {};
}

Result<void> reduce_by_tree(Peers& peers, Workspace& ws, const Call& call) {
  const Tree tree(peers, call.root);
  const Accumulator acc(call, peers.size());
  const std::size_t bytes = call.count * acc.partial_bytes();
  std::byte* const mine = ws.mine.at_least(bytes);
  acc.load(mine, call.in, call.count);
  for (int distance = 1; distance < tree.subtree_span(); distance *= 2) {
    if (tree.subtree_size_at(distance) <= 0) continue;
    ReduceOnRecv sink(acc, mine, false);
    const int child = tree.rank_of(tree.relative_rank() + distance);
    TRY(peers.receive({child, nullptr, bytes, &sink, acc.partial_bytes()}));
  }
  if (tree.relative_rank() != 0) return peers.send({tree.parent(), mine, bytes});
  acc.finish(call.out, mine, call.count);
  return {};
}

/// From the rank after the root along the ring to the root, which adds its own input last.
Result<void> reduce_by_chain(Peers& peers, Workspace& ws, const Call& call, std::size_t piece_bytes) {
  const Tree tree(peers, call.root);
  const Accumulator acc(call, peers.size());
  const Pieces pieces(call, piece_bytes);
  const bool first = tree.relative_rank() == 1;
  const bool last = tree.relative_rank() == 0;
  const std::size_t element = acc.element_bytes();
  const std::size_t most = pieces.most * acc.partial_bytes();
  // Double-buffered: one is forwarded while the other is received.
  std::byte* const kept = first || last ? nullptr : ws.mine.at_least(2 * most);
  for (std::size_t i = 0; i < pieces.number() + (first || last ? 0 : 1); ++i) {
    const std::byte* const own = i < pieces.number() ? call.in + pieces.begin(i) * element : nullptr;
    if (first) {
      TRY(peers.send({peers.at(1), own, pieces.count(i) * element}));
      continue;
    }
    // The first rank of the chain sends its input, not partial results.
    const bool numbers = tree.rank_of(1) != peers.at(-1);
    std::byte* const to = last ? call.out + pieces.begin(i) * element : kept + i % 2 * most;
    ReduceAndForward sink(acc, ws.piece, {own, to, numbers, last});
    Outgoing out;
    Incoming in;
    if (!last && i > 0) out = {peers.at(1), kept + (i - 1) % 2 * most, pieces.count(i - 1) * acc.partial_bytes()};
    if (i < pieces.number()) {
      in = {peers.at(-1), nullptr, pieces.count(i) * sink.recv_bytes(), &sink, sink.recv_bytes()};
    }
    TRY(peers.exchange(out, in));
  }
  return {};
}

Result<void> gather_by_tree(Peers& peers, Workspace& ws, const Call& call) {
  const Tree tree(peers, call.root);
  const std::byte* data = call.in;
  if (tree.subtree_size() > 1) {
    std::byte* const all = ws.mine.at_least(blocks(call, tree.subtree_size()));
    copy_bytes(all, call.in, call.bytes());
    for (int distance = 1; distance < tree.subtree_span(); distance *= 2) {
      const int ranks = tree.subtree_size_at(distance);
      if (ranks <= 0) continue;
      const int child = tree.rank_of(tree.relative_rank() + distance);
      TRY(peers.receive({child, all + blocks(call, distance), blocks(call, ranks)}));
    }
    data = all;
  }
  if (tree.relative_rank() != 0) return peers.send({tree.parent(), data, blocks(call, tree.subtree_size())});
  const int end = peers.size() - call.root;
  copy_bytes(call.out + blocks(call, call.root), data, blocks(call, end));
  copy_bytes(call.out, data + blocks(call, end), blocks(call, call.root));
  return {};
}

Result<void> scatter_by_tree(Peers& peers, Workspace& ws, const Call& call) {
  const Tree tree(peers, call.root);
  std::byte* data = call.out;
  if (tree.subtree_size() > 1) data = ws.mine.at_least(blocks(call, tree.subtree_size()));
  if (tree.relative_rank() == 0) {
    const int end = peers.size() - call.root;
    copy_bytes(data, call.in + blocks(call, call.root), blocks(call, end));
    copy_bytes(data + blocks(call, end), call.in, blocks(call, call.root));
  } else {
    TRY(peers.receive({tree.parent(), data, blocks(call, tree.subtree_size())}));
  }
  for (int distance = tree.subtree_span() / 2; distance > 0; distance /= 2) {
    const int ranks = tree.subtree_size_at(distance);
    if (ranks <= 0) continue;
    const int child = tree.rank_of(tree.relative_rank() + distance);
    TRY(peers.send({child, data + blocks(call, distance), blocks(call, ranks)}));
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
    TRY(peers.receive({from, call.out + blocks(call, from), call.bytes()}));
  }
  return {};
}

Result<void> scatter_directly(Peers& peers, const Call& call) {
  if (peers.rank() != call.root) return peers.receive({call.root, call.out, call.bytes()});
  for (int i = 1; i < peers.size(); ++i) {
    const int to = peers.at(i);
    TRY(peers.send({to, call.in + blocks(call, to), call.bytes()}));
  }
  const std::byte* const own = call.in + blocks(call, call.root);
  if (call.out != own) copy_bytes(call.out, own, call.bytes());
  return {};
}

namespace {

/// In place, data is copied in pieces of this size before the same memory receives. On all ranks, as both ends of a
/// message must use the same length.
constexpr std::size_t exchange_piece = 4 << 20;

/// Sends `bytes` of `in` and receives as many at `out`, which may be the same memory.
Result<void> exchange_in_pieces(Peers& peers, Workspace& ws, int to, const std::byte* in, int from, std::byte* out,
                                std::size_t bytes) {
  std::size_t at = 0;
  do {
    const std::size_t now = std::min(exchange_piece, bytes - at);
    const std::byte* data = in + at;
    if (in == out) {
      std::byte* const kept = ws.mine.at_least(now);
      copy_bytes(kept, data, now);
      data = kept;
    }
    TRY(peers.exchange({to, data, now}, {from, out + at, now}));
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
    } else {
      TRY(exchange_in_pieces(peers, ws, partner, in, partner, out, bytes));
    }
  }
  return {};
}

Result<void> send_and_receive(Peers& peers, Workspace& ws, const Call& call) {
  const bool to_itself = call.to == peers.rank();
  if (to_itself != (call.from == peers.rank())) return self_send_mismatch(peers.rank(), call.to, call.from);
  if (!to_itself) return exchange_in_pieces(peers, ws, call.to, call.in, call.from, call.out, call.bytes());
  if (call.in != call.out) copy_bytes(call.out, call.in, call.bytes());
  return {};
}

Plan plan_for(int ranks) {
  // Medians of the break-even sizes by the model of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
  // Communication Operations in MPICH", Int. J. of High Performance Computing Applications 19(1), 2005, with costs
  // measured over the loopback and between two hosts of one machine, 2 to 16 ranks. Ranks beyond a power of two need
  // two more steps in doubling and halving.
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
    case Collective::barrier: return dissemination_barrier(peers);
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
