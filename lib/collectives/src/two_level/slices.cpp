#include "two_level/slices.hpp"

#include <algorithm>

#include "copy.hpp"
#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

std::size_t SliceWork::most(const Call& call) const { return TwoLevelTeam::kPiece / size_of(travelling_type(call)); }

/// This rank's slice of a piece, if its column has one.
Result<void> SliceWork::work(const Call& call, const Piece& piece, Deadline deadline) {
  const int local_rank = levels_.team->local_rank();
  const int columns = call.bytes() <= kSmallBetweenHosts ? 1 : levels_.hosts.columns();
  if (local_rank >= columns) return {};
  const auto parts = static_cast<std::size_t>(columns);
  const std::size_t apart = kApartBytes / size_of(call.type);
  const std::size_t each = ((piece.count + parts - 1) / parts + apart - 1) / apart * apart;
  const std::size_t in_piece = std::min(piece.count, each * static_cast<std::size_t>(local_rank));
  const Piece slice{piece.begin + in_piece, std::min(each, piece.count - in_piece)};
  if (slice.count == 0) return {};
  slice_.resize(slice.count * size_of(travelling_type(call)));
  gather_here(call, piece, slice);
  if (auto done = across(call, slice.count, deadline); !done) return done;
  spread(call, piece, slice);
  return {};
}

/// What the ranks of this host have of a slice becomes `slice_`.
void SliceWork::gather_here(const Call& call, const Piece& piece, const Piece& slice) {
  if (call.collective != Collective::broadcast) return reduce_here(call, 0, piece, slice, slice_.data());
  if (levels_.hosts.host_of(call.root) != levels_.host) return;
  const int root = levels_.hosts.local_rank_of(call.root);
  copy_bytes(slice_.data(), input(call, root, 0, piece, slice.begin), slice_.size());
}

Result<void> SliceWork::across(const Call& call, std::size_t count, Deadline deadline) {
  Call between;
  between.collective = call.collective;
  between.type = travelling_type(call);
  between.op = travelling_op(call);
  between.count = count;
  between.in = between.out = slice_.data();
  between.root = has_root(call.collective) ? levels_.hosts.host_of(call.root) : 0;
  return levels_.across(between, deadline);
}

/// `slice_` goes to all ranks of this host that get it.
void SliceWork::spread(const Call& call, const Piece& piece, const Piece& slice) {
  const std::span<std::byte* const> places = outputs(call, 0, piece, slice.begin);
  if (places.empty()) return;
  if (!reduces(call.collective)) return copy_to_all(places, slice_.data(), slice_.size(), Stores::normal);
  kernels(call.type, call.op).finish(places.front(), slice_.data(), slice.count, levels_.size);
  copy_to_all(places.subspan(1), places.front(), slice.count * size_of(call.type), Stores::normal);
}

}  // namespace ddrun::collectives
