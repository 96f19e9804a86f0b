#include "shm/direct.hpp"

#include <algorithm>

#include "shm/staging.hpp"

namespace ddrun::collectives {

namespace {

/// Whose memory the others have to reach.
enum class Whose { no_rank, root, all_ranks };
struct Reach {
  Whose in = Whose::no_rank;
  Whose out = Whose::no_rank;
};

Reach reach_of(Collective collective) {
  switch (collective) {
    case Collective::barrier: return {};
    case Collective::all_reduce: return {Whose::all_ranks, Whose::all_ranks};
    case Collective::broadcast: return {Whose::root, Whose::all_ranks};
    case Collective::reduce: return {Whose::all_ranks, Whose::root};
    case Collective::all_gather: return {Whose::no_rank, Whose::all_ranks};
    case Collective::gather: return {Whose::no_rank, Whose::root};
    case Collective::scatter: return {Whose::root, Whose::no_rank};
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::send_recv: return {Whose::all_ranks, Whose::no_rank};
  }
  return {};
}

/// Whether each rank overwrites what it gives to another one, so that both must be moved at the same time.
bool exchanges(Collective collective) {
  return collective == Collective::all_to_all || collective == Collective::send_recv;
}

/// A rank that a send_recv leaves alone.
bool alone(const Call& call, int rank, const Seen& seen) {
  return call.collective == Collective::send_recv && seen.peers.to == rank;
}

}  // namespace

DirectWork::DirectWork(Mover& mover, int rank, int size)
    : mover_(mover),
      rank_(rank),
      size_(size),
      from_(static_cast<std::size_t>(size)),
      places_(static_cast<std::size_t>(size)) {}

bool DirectWork::is_private(const Call& call, int rank, const Seen& seen) {
  if (alone(call, rank, seen)) return false;
  const auto needed = [&](Whose whose) {
    return whose == Whose::all_ranks || (whose == Whose::root && rank == call.root);
  };
  const Reach reach = reach_of(call.collective);
  return (needed(reach.in) && !seen.shared_in) || (needed(reach.out) && !seen.shared_out);
}

bool DirectWork::any_private(const Call& call, std::span<const Seen> seen) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (is_private(call, rank, seen[static_cast<std::size_t>(rank)])) return true;
  }
  return false;
}

bool DirectWork::possible(const Call& call, std::span<const Seen> seen) const {
  int in_place = 0;
  int out_of_place = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const Seen& one = seen[static_cast<std::size_t>(rank)];
    if (!alone(call, rank, one)) ++(one.in_place() ? in_place : out_of_place);
  }
  return !exchanges(call.collective) || in_place == 0 || out_of_place == 0;
}

void DirectWork::work(const Call& call, std::span<const Seen> seen, bool across) {
  switch (call.collective) {
    case Collective::barrier: return;
    case Collective::all_reduce:
    case Collective::reduce: return reduce(call, seen);
    case Collective::reduce_scatter: return reduce_scatter(call, seen);
    case Collective::broadcast: return broadcast(call, seen, across);
    case Collective::all_gather: return all_gather(call, seen);
    case Collective::gather:
    case Collective::scatter: return between_root_and_others(call, seen, across);
    case Collective::all_to_all: return all_to_all(call, seen);
    case Collective::send_recv: return send_recv(call, seen);
  }
}

DirectWork::Share DirectWork::share_of(std::size_t elements, std::size_t element, std::size_t worker,
                                       std::size_t workers) const {
  const std::size_t share = round_up((elements + workers - 1) / workers, lines_apart / element);
  const std::size_t begin = std::min(elements, share * worker);
  return {begin, std::min(elements, begin + share)};
}

void DirectWork::reduce(const Call& call, std::span<const Seen> seen) {
  const bool to_all = call.collective == Collective::all_reduce;
  bool in_place = false;
  std::size_t outputs = 0;
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    from_[rank] = seen[rank].in;
    if (!to_all && static_cast<int>(rank) != call.root) continue;
    places_[outputs++] = seen[rank].out;
    in_place = in_place || seen[rank].in_place();
  }
  const std::size_t element = size_of(call.type);
  const Share share = share_of(call.count, element, static_cast<std::size_t>(rank_), seen.size());
  mover_.reduce(kernels(call.type, call.op), from_, {places_.data(), outputs}, share.begin, share.end, element,
                stores_of(call, size_, in_place), size_);
}

void DirectWork::reduce_scatter(const Call& call, std::span<const Seen> seen) {
  const auto rank = static_cast<std::size_t>(rank_);
  for (std::size_t other = 0; other < seen.size(); ++other) from_[other] = seen[other].in + rank * call.bytes();
  const Place& out = seen[rank].out;
  mover_.reduce(kernels(call.type, call.op), from_, {&out, 1}, 0, call.count, size_of(call.type),
                stores_of(call, size_, out == from_[rank]), size_);
}

void DirectWork::broadcast(const Call& call, std::span<const Seen> seen, bool across) {
  const Seen& root = seen[static_cast<std::size_t>(call.root)];
  const Stores stores = stores_of(call, size_, false);
  // A root that has to copy everything to its own output has as much to do with that as each of the others.
  const bool root_is_busy = across && !root.in_place();
  if (root_is_busy && rank_ == call.root) return mover_.copy(root.out, root.in, call.bytes(), stores);
  const std::size_t workers = seen.size() - (root_is_busy ? 1 : 0);
  const Share share =
      share_of(call.bytes(), 1, static_cast<std::size_t>(rank_) - (root_is_busy && rank_ > call.root), workers);
  std::size_t places = 0;
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    if (root_is_busy && static_cast<int>(rank) == call.root) continue;
    places_[places++] = seen[rank].out + share.begin;
  }
  mover_.copy_to_all({places_.data(), places}, root.in + share.begin, share.end - share.begin, stores);
}

void DirectWork::all_gather(const Call& call, std::span<const Seen> seen) {
  const auto rank = static_cast<std::size_t>(rank_);
  std::transform(seen.begin(), seen.end(), places_.begin(),
                 [&](const Seen& one) { return one.out + rank * call.bytes(); });
  mover_.copy_to_all(places_, seen[rank].in, call.bytes(), stores_of(call, size_, false));
}

void DirectWork::between_root_and_others(const Call& call, std::span<const Seen> seen, bool across) {
  const Seen& root = seen[static_cast<std::size_t>(call.root)];
  const bool to_root = call.collective == Collective::gather;
  const Stores stores = stores_of(call, size_, false);
  const auto its_block = [&](int rank) {
    return (to_root ? root.out : root.in) + static_cast<std::size_t>(rank) * call.bytes();
  };
  // A root that has a block of its own to copy has as much to do with it as each of the others with theirs. Else it
  // does its share of each block that it reaches, the last.
  const bool root_is_free = its_block(call.root) == (to_root ? root.in : root.out);
  for (int other = 0; other < size_; ++other) {
    if (rank_ != call.root && rank_ != other) continue;
    const Seen& its = seen[static_cast<std::size_t>(other)];
    const Place& theirs = to_root ? its.in : its.out;
    Share share{0, call.bytes()};
    if (other != call.root) {
      const bool shared = root_is_free && (across || (to_root ? its.shared_in : its.shared_out));
      const Share roots = share_of(call.bytes(), 1, seen.size() - 1, seen.size());
      if (rank_ == call.root) share = shared ? roots : Share{};
      else if (shared) share.end = roots.begin;
    }
    if (share.end <= share.begin) continue;
    const Place from = (to_root ? theirs : its_block(other)) + share.begin;
    const Place to = (to_root ? its_block(other) : theirs) + share.begin;
    mover_.copy(to, from, share.end - share.begin, stores);
  }
}

void DirectWork::all_to_all(const Call& call, std::span<const Seen> seen) {
  const auto mine = static_cast<std::size_t>(rank_);
  const Stores stores = stores_of(call, size_, false);
  // Each begins with another one, so that they do not all read the same rank's memory at a time.
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const std::size_t other = (mine + i) % seen.size();
    const Place to = seen[mine].out + other * call.bytes();
    const Place from = seen[other].in + mine * call.bytes();
    if (!seen[mine].in_place()) {
      mover_.copy(to, from, call.bytes(), stores);
    } else if (other != mine) {
      const Share half = share_of(call.bytes(), 1, mine < other ? 0 : 1, 2);
      const Place places[] = {to + half.begin, from + half.begin};
      mover_.rotate(places, half.end - half.begin);
    }
  }
}

void DirectWork::send_recv(const Call& call, std::span<const Seen> seen) {
  const auto mine = static_cast<std::size_t>(rank_);
  if (call.to == rank_) return mover_.copy(seen[mine].out, seen[mine].in, call.bytes(), Stores::normal);
  const Stores stores = stores_of(call, size_, false);
  if (!seen[mine].in_place()) {
    return mover_.copy(seen[mine].out, seen[static_cast<std::size_t>(call.from)].in, call.bytes(), stores);
  }
  // The ranks that what this one sends would come through, if it were sent on and on. All begin with the least of
  // them, and each has its share of the bytes of all.
  std::size_t members = 0;
  int first = rank_;
  int at = rank_;
  do {
    first = std::min(first, at);
    at = seen[static_cast<std::size_t>(at)].peers.to;
  } while (at != rank_);
  std::size_t position = 0;
  at = first;
  do {
    if (at == rank_) position = members;
    places_[members++] = seen[static_cast<std::size_t>(at)].in;
    at = seen[static_cast<std::size_t>(at)].peers.to;
  } while (at != first);
  const Share share = share_of(call.bytes(), 1, position, members);
  for (std::size_t i = 0; i < members; ++i) places_[i] = places_[i] + share.begin;
  mover_.rotate({places_.data(), members}, share.end - share.begin);
}

}  // namespace ddrun::collectives
