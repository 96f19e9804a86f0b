#include <algorithm>
#include <bit>

#include "copy.hpp"
#include "tcp/algorithms.hpp"

namespace ddrun::collectives {

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

}  // namespace ddrun::collectives
