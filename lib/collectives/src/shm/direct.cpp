#include "shm/direct.hpp"

#include <algorithm>

#include "shm/staging.hpp"

namespace ddrun::collectives {

namespace {

/// The ranks whose buffer the peers access.
enum class BufferOwner { no_rank, root, all_ranks };
struct RemoteAccess {
  BufferOwner in = BufferOwner::no_rank;
  BufferOwner out = BufferOwner::no_rank;
};

RemoteAccess remote_access_of(Collective collective) {
  switch (collective) {
    case Collective::barrier: return {};
    case Collective::all_reduce: return {BufferOwner::all_ranks, BufferOwner::all_ranks};
    case Collective::broadcast: return {BufferOwner::root, BufferOwner::all_ranks};
    case Collective::reduce: return {BufferOwner::all_ranks, BufferOwner::root};
    case Collective::all_gather: return {BufferOwner::no_rank, BufferOwner::all_ranks};
    case Collective::gather: return {BufferOwner::no_rank, BufferOwner::root};
    case Collective::scatter: return {BufferOwner::root, BufferOwner::no_rank};
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::send_recv: return {BufferOwner::all_ranks, BufferOwner::no_rank};
  }
  return {};
}

/// Whether every rank both sends and overwrites a block, so that in place both are moved together.
bool is_exchange(Collective collective) {
  return collective == Collective::all_to_all || collective == Collective::send_recv;
}

/// A send_recv of a rank with itself.
bool is_self(const Call& call, int rank, const PeerBuffers& buffers) {
  return call.collective == Collective::send_recv && buffers.partners.to == rank;
}

}  // namespace

DirectTransfer::DirectTransfer(Mover& mover, int rank, int size)
    : mover_(mover),
      rank_(rank),
      size_(size),
      from_(static_cast<std::size_t>(size)),
      places_(static_cast<std::size_t>(size)) {}

bool DirectTransfer::is_private(const Call& call, int rank, const PeerBuffers& buffers) {
  if (is_self(call, rank, buffers)) return false;
  const auto needed = [&](BufferOwner owner) {
    return owner == BufferOwner::all_ranks || (owner == BufferOwner::root && rank == call.root);
  };
  const RemoteAccess access = remote_access_of(call.collective);
  return (needed(access.in) && !buffers.shared_in) || (needed(access.out) && !buffers.shared_out);
}

bool DirectTransfer::any_private(const Call& call, std::span<const PeerBuffers> buffers) const {
  for (int rank = 0; rank < size_; ++rank) {
    if (is_private(call, rank, buffers[static_cast<std::size_t>(rank)])) return true;
  }
  return false;
}

bool DirectTransfer::is_possible(const Call& call, std::span<const PeerBuffers> buffers) const {
  int in_place = 0;
  int out_of_place = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const PeerBuffers& one = buffers[static_cast<std::size_t>(rank)];
    if (!is_self(call, rank, one)) ++(one.in_place() ? in_place : out_of_place);
  }
  return !is_exchange(call.collective) || in_place == 0 || out_of_place == 0;
}

void DirectTransfer::run(const Call& call, std::span<const PeerBuffers> buffers, bool cross_process) {
  switch (call.collective) {
    case Collective::barrier: return;
    case Collective::all_reduce:
    case Collective::reduce: return reduce(call, buffers);
    case Collective::reduce_scatter: return reduce_scatter(call, buffers);
    case Collective::broadcast: return broadcast(call, buffers, cross_process);
    case Collective::all_gather: return all_gather(call, buffers);
    case Collective::gather:
    case Collective::scatter: return gather_or_scatter(call, buffers, cross_process);
    case Collective::all_to_all: return all_to_all(call, buffers);
    case Collective::send_recv: return send_recv(call, buffers);
  }
}

DirectTransfer::Share DirectTransfer::share_of(std::size_t elements, std::size_t element, std::size_t worker,
                                               std::size_t workers) const {
  const std::size_t share = round_up((elements + workers - 1) / workers, lines_apart / element);
  const std::size_t begin = std::min(elements, share * worker);
  return {begin, std::min(elements, begin + share)};
}

void DirectTransfer::reduce(const Call& call, std::span<const PeerBuffers> buffers) {
  const bool to_all = call.collective == Collective::all_reduce;
  bool in_place = false;
  std::size_t outputs = 0;
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    from_[rank] = buffers[rank].in;
    if (!to_all && static_cast<int>(rank) != call.root) continue;
    places_[outputs++] = buffers[rank].out;
    in_place = in_place || buffers[rank].in_place();
  }
  const std::size_t element = size_of(call.type);
  const Share share = share_of(call.count, element, static_cast<std::size_t>(rank_), buffers.size());
  mover_.reduce(kernels(call.type, call.op), from_, {places_.data(), outputs}, share.begin, share.end, element,
                stores_of(call, size_, in_place), size_);
}

void DirectTransfer::reduce_scatter(const Call& call, std::span<const PeerBuffers> buffers) {
  const auto rank = static_cast<std::size_t>(rank_);
  for (std::size_t other = 0; other < buffers.size(); ++other) from_[other] = buffers[other].in + rank * call.bytes();
  const RankAddress& out = buffers[rank].out;
  mover_.reduce(kernels(call.type, call.op), from_, {&out, 1}, 0, call.count, size_of(call.type),
                stores_of(call, size_, out == from_[rank]), size_);
}

void DirectTransfer::broadcast(const Call& call, std::span<const PeerBuffers> buffers, bool cross_process) {
  const PeerBuffers& root = buffers[static_cast<std::size_t>(call.root)];
  const Stores stores = stores_of(call, size_, false);
  // A root with a separate output spends as long on its own copy as each other rank on its share.
  const bool root_copies_own = cross_process && !root.in_place();
  if (root_copies_own && rank_ == call.root) return mover_.copy(root.out, root.in, call.bytes(), stores);
  const std::size_t workers = buffers.size() - (root_copies_own ? 1 : 0);
  const Share share =
      share_of(call.bytes(), 1, static_cast<std::size_t>(rank_) - (root_copies_own && rank_ > call.root), workers);
  std::size_t places = 0;
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    if (root_copies_own && static_cast<int>(rank) == call.root) continue;
    places_[places++] = buffers[rank].out + share.begin;
  }
  mover_.copy_to_all({places_.data(), places}, root.in + share.begin, share.end - share.begin, stores);
}

void DirectTransfer::all_gather(const Call& call, std::span<const PeerBuffers> buffers) {
  const auto rank = static_cast<std::size_t>(rank_);
  std::transform(buffers.begin(), buffers.end(), places_.begin(),
                 [&](const PeerBuffers& one) { return one.out + rank * call.bytes(); });
  mover_.copy_to_all(places_, buffers[rank].in, call.bytes(), stores_of(call, size_, false));
}

void DirectTransfer::gather_or_scatter(const Call& call, std::span<const PeerBuffers> buffers, bool cross_process) {
  const PeerBuffers& root = buffers[static_cast<std::size_t>(call.root)];
  const bool to_root = call.collective == Collective::gather;
  const Stores stores = stores_of(call, size_, false);
  const auto its_block = [&](int rank) {
    return (to_root ? root.out : root.in) + static_cast<std::size_t>(rank) * call.bytes();
  };
  // A root with its own block to copy spends as long on it as each other rank on its block. Otherwise it takes the last
  // share of each block that it can access.
  const bool root_is_free = its_block(call.root) == (to_root ? root.in : root.out);
  for (int other = 0; other < size_; ++other) {
    if (rank_ != call.root && rank_ != other) continue;
    const PeerBuffers& other_buffers = buffers[static_cast<std::size_t>(other)];
    const RankAddress& theirs = to_root ? other_buffers.in : other_buffers.out;
    Share share{0, call.bytes()};
    if (other != call.root) {
      const bool shared =
          root_is_free && (cross_process || (to_root ? other_buffers.shared_in : other_buffers.shared_out));
      const Share roots = share_of(call.bytes(), 1, buffers.size() - 1, buffers.size());
      if (rank_ == call.root) share = shared ? roots : Share{};
      else if (shared) share.end = roots.begin;
    }
    if (share.end <= share.begin) continue;
    const RankAddress from = (to_root ? theirs : its_block(other)) + share.begin;
    const RankAddress to = (to_root ? its_block(other) : theirs) + share.begin;
    mover_.copy(to, from, share.end - share.begin, stores);
  }
}

void DirectTransfer::all_to_all(const Call& call, std::span<const PeerBuffers> buffers) {
  const auto mine = static_cast<std::size_t>(rank_);
  const Stores stores = stores_of(call, size_, false);
  // Each rank starts with a different peer, to spread the load on memory.
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::size_t other = (mine + i) % buffers.size();
    const RankAddress to = buffers[mine].out + other * call.bytes();
    const RankAddress from = buffers[other].in + mine * call.bytes();
    if (!buffers[mine].in_place()) {
      mover_.copy(to, from, call.bytes(), stores);
    } else if (other != mine) {
      const Share half = share_of(call.bytes(), 1, mine < other ? 0 : 1, 2);
      const RankAddress places[] = {to + half.begin, from + half.begin};
      mover_.rotate(places, half.end - half.begin);
    }
  }
}

void DirectTransfer::send_recv(const Call& call, std::span<const PeerBuffers> buffers) {
  const auto mine = static_cast<std::size_t>(rank_);
  if (call.to == rank_) return mover_.copy(buffers[mine].out, buffers[mine].in, call.bytes(), Stores::normal);
  const Stores stores = stores_of(call, size_, false);
  if (!buffers[mine].in_place()) {
    return mover_.copy(buffers[mine].out, buffers[static_cast<std::size_t>(call.from)].in, call.bytes(), stores);
  }
  // The cycle of ranks along which blocks are rotated, starting with its lowest rank. Each member rotates its share of
  // the bytes of all.
  std::size_t members = 0;
  int first = rank_;
  int at = rank_;
  do {
    first = std::min(first, at);
    at = buffers[static_cast<std::size_t>(at)].partners.to;
  } while (at != rank_);
  std::size_t position = 0;
  at = first;
  do {
    if (at == rank_) position = members;
    places_[members++] = buffers[static_cast<std::size_t>(at)].in;
    at = buffers[static_cast<std::size_t>(at)].partners.to;
  } while (at != first);
  const Share share = share_of(call.bytes(), 1, position, members);
  for (std::size_t i = 0; i < members; ++i) places_[i] = places_[i] + share.begin;
  mover_.rotate({places_.data(), members}, share.end - share.begin);
}

}  // namespace ddrun::collectives
