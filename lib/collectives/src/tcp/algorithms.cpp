#include "tcp/algorithms.hpp"

#include <algorithm>

#include "call_words.hpp"
#include "copy.hpp"

namespace ddrun::collectives {

namespace {

/// What is sent from the place where something else is received is copied first, this much at a time. On all ranks
/// alike, as the two sides of a message must name the same length.
constexpr std::size_t kSwapPiece = 4 << 20;

/// Sends `bytes` of `in` and receives as many at `out`, which may be the same place.
Result<void> swap(Peers& peers, Workspace& ws, int to, const std::byte* in, int from, std::byte* out,
                  std::size_t bytes) {
  std::size_t at = 0;
  do {
    const std::size_t now = std::min(kSwapPiece, bytes - at);
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
      return broadcast_by_chain(peers, call, plan.piece(bytes, peers.size()));
    case Collective::reduce:
      if (bytes <= plan.tree) return reduce_by_tree(peers, ws, call);
      return reduce_by_chain(peers, ws, call, plan.piece(bytes, peers.size()));
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
