#include "two_level/straight.hpp"

#include "copy.hpp"

namespace ddrun::collectives {

bool StraightWork::reads(const Call& call, int rank) const {
  return call.collective == Collective::all_to_all || (call.collective == Collective::scatter && rank == call.root);
}

bool StraightWork::writes(const Call& call, int rank) const {
  return call.collective == Collective::gather && rank == call.root;
}

std::size_t StraightWork::most(const Call& call) const {
  return TwoLevelTeam::kPiece / size_of(call.type) / index_of(levels_.size);
}

Result<void> StraightWork::work(const Call& call, const Piece& piece, Deadline deadline) {
  Call part = call;
  part.count = piece.count;
  levels_.flat->begin(part, deadline);
  if (call.collective == Collective::all_to_all) return with_all(call, piece);
  return levels_.hosts.host_of(call.root) == levels_.host ? for_root(call, piece) : with_root(call, piece);
}

/// This rank's block, to or from the rank that stands for the root.
Result<void> StraightWork::with_root(const Call& call, const Piece& piece) {
  const int stands = levels_.team->local_rank() % levels_.hosts.columns();
  const int peer = levels_.rank_at(levels_.hosts.host_of(call.root), stands);
  const std::size_t begin = piece.begin * size_of(call.type);
  const std::size_t bytes = piece.count * size_of(call.type);
  if (call.collective == Collective::gather) return levels_.flat->exchange({peer, call.in + begin, bytes}, {});
  return levels_.flat->exchange({}, {peer, call.out + begin, bytes});
}

/// On the root's host: this rank's own block, and those of the ranks for which it stands for the root.
Result<void> StraightWork::for_root(const Call& call, const Piece& piece) {
  const bool gathers = call.collective == Collective::gather;
  const int root = levels_.hosts.local_rank_of(call.root);
  const int columns = levels_.hosts.columns();
  const std::size_t begin = piece.begin * size_of(call.type);
  const std::size_t bytes = piece.count * size_of(call.type);
  const auto theirs = [&](int rank) { return input(call, root, index_of(rank), piece, piece.begin); };
  const auto place = [&](int rank) { return output(call, root, index_of(rank), piece, piece.begin); };
  if (gathers) copy_bytes(place(levels_.rank), call.in + begin, bytes);
  else copy_bytes(call.out + begin, theirs(levels_.rank), bytes);
  if (levels_.team->local_rank() >= columns) return {};
  for (int host = 0; host < static_cast<int>(levels_.hosts.hosts.size()); ++host) {
    if (host == levels_.host) continue;
    const int ranks = static_cast<int>(levels_.hosts.hosts[index_of(host)].size());
    for (int local = levels_.team->local_rank(); local < ranks; local += columns) {
      const int peer = levels_.rank_at(host, local);
      Outgoing out;
      Incoming in;
      if (gathers) in = {peer, place(peer), bytes};
      else out = {peer, theirs(peer), bytes};
      if (auto done = levels_.flat->exchange(out, in); !done) return done;
    }
  }
  return {};
}

/// Pairs, in rounds that have every rank in one pair at most.
Result<void> StraightWork::with_all(const Call& call, const Piece& piece) {
  const int mine = levels_.team->local_rank();
  const std::size_t bytes = piece.count * size_of(call.type);
  for (int round = 0; round < levels_.size; ++round) {
    const int partner = (round - levels_.rank + levels_.size) % levels_.size;
    const int host = levels_.hosts.host_of(partner);
    std::byte* const to = call.out + index_of(partner) * call.bytes() + piece.begin * size_of(call.type);
    if (host == levels_.host) {
      const int local = levels_.hosts.local_rank_of(partner);
      copy_bytes(to, input(call, local, index_of(levels_.rank), piece, piece.begin), bytes);
    } else {
      const std::byte* const from = input(call, mine, index_of(partner), piece, piece.begin);
      if (auto done = levels_.flat->exchange({partner, from, bytes}, {partner, to, bytes}); !done) return done;
    }
  }
  return {};
}

}  // namespace ddrun::collectives
