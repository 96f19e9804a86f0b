#include "two_level/messages.hpp"

#include "call_words.hpp"
#include "copy.hpp"

namespace ddrun::collectives {

std::size_t MessageWork::most(const Call& call) const { return TwoLevelTeam::kPiece / size_of(call.type); }

Result<void> MessageWork::work(const Call& call, const Piece& piece, Deadline deadline) {
  if (piece.begin == 0) {
    if (auto right = compare_partners(); !right) {
      partners_differ_ = true;
      return right;
    }
  }
  const std::size_t bytes = piece.count * size_of(call.type);
  std::byte* const to = call.out + piece.begin * size_of(call.type);
  Outgoing out;
  Incoming in;
  if (!is_here(call.to)) {
    out = {call.to, input(call, levels_.team->local_rank(), 0, piece, piece.begin), bytes};
  }
  if (!is_here(call.from)) in = {call.from, to, bytes};
  else copy_bytes(to, input(call, levels_.hosts.local_rank_of(call.from), 0, piece, piece.begin), bytes);
  Call part = call;
  part.count = piece.count;
  levels_.flat->begin(part, deadline);
  return levels_.flat->exchange(out, in);
}

/// Of this host's ranks, which all see the same.
Result<void> MessageWork::compare_partners() const {
  for (int local = 0; local < levels_.team->size(); ++local) {
    const int rank = levels_.rank_at(levels_.host, local);
    const Partners partners = reach(local).partners;
    if ((partners.to == rank) != (partners.from == rank)) return sends_to_itself(rank, partners.to, partners.from);
    if (!is_here(partners.from)) continue;
    const int to = reach(levels_.hosts.local_rank_of(partners.from)).partners.to;
    if (to != rank) return not_sent(rank, partners.from, to);
  }
  return {};
}

}  // namespace ddrun::collectives
