#include "two_level/work.hpp"

#include <algorithm>

#include "copy.hpp"
#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

namespace {

/// Elements that are reduced to a wider type while they are in the first-level cache.
constexpr std::size_t kChunk = 2048;

/// Whether the outputs of two ranks differ.
bool own_outputs(Collective collective) {
  return collective == Collective::scatter || collective == Collective::reduce_scatter ||
         collective == Collective::all_to_all;
}

}  // namespace

bool LevelWork::reads(const Call& call, int rank) const {
  return (call.collective != Collective::broadcast && call.collective != Collective::scatter) || rank == call.root;
}

bool LevelWork::writes(const Call& call, int rank) const {
  return (call.collective != Collective::reduce && call.collective != Collective::gather) || rank == call.root;
}

Result<void> LevelWork::run(const Call& call, Deadline deadline) {
  TwoLevelTeam& team = *levels_.team;
  const std::size_t most_count = most(call);
  Piece piece{0, std::min(call.count, most_count)};
  // Before anybody can know whether it is needed, as the first meeting is the only one where nothing is private.
  show(call, piece);
  if (auto met = team.announce(call, deadline); !met) return met;
  const Sharing sharing = look(call);
  const bool any_private = sharing == Sharing::through_the_team;
  while (true) {
    if (auto worked = work(call, piece, deadline); !worked) return worked;
    const std::size_t end = piece.begin + piece.count;
    const bool last = end == call.count;
    // Nobody leaves while others still use its memory.
    if (any_private || (last && sharing != Sharing::none)) {
      if (auto met = team.meet(deadline); !met) return met;
    }
    take(call, piece);
    if (last) return {};
    piece = {end, std::min(call.count - end, most_count)};
    show(call, piece);
    if (any_private) {
      if (auto met = team.meet(deadline); !met) return met;
    }
  }
}

bool LevelWork::is_shown(const Call& call, int rank, const std::byte* in, const std::byte* out) const {
  return reads(call, rank) && (in == nullptr || (moves_at_once(call) && in == out));
}

LevelWork::Sharing LevelWork::look(const Call& call) {
  Sharing sharing = Sharing::none;
  for (int local = 0; local < levels_.team->size(); ++local) {
    const int rank = levels_.rank_at(levels_.host, local);
    const TwoLevelTeam::Reach its = levels_.team->reach(local);
    if (is_shown(call, rank, its.in, its.out) || (writes(call, rank) && its.out == nullptr)) {
      sharing = Sharing::through_the_team;
    } else if (sharing == Sharing::none && (reads(call, rank) || writes(call, rank))) {
      sharing = Sharing::where_it_is;
    }
    reach_[static_cast<std::size_t>(local)] = its;
  }
  return sharing;
}

/// Lets the others read a piece of private input.
void LevelWork::show(const Call& call, const Piece& piece) {
  const std::size_t blocks = blocks_of(call.collective, levels_.size).in;
  const bool shares = levels_.team->shares(call.in, call.bytes() * blocks);
  if (piece.count == 0 || !is_shown(call, levels_.rank, shares ? call.in : nullptr, call.out)) return;
  const std::size_t element = size_of(call.type);
  std::byte* const shown = levels_.team->shown(levels_.team->local_rank());
  for (std::size_t block = 0; block < blocks; ++block) {
    copy_bytes(shown + block * piece.count * element, call.in + block * call.bytes() + piece.begin * element,
               piece.count * element);
  }
}

/// Takes a piece of the results to private memory.
void LevelWork::take(const Call& call, const Piece& piece) {
  const std::size_t blocks = blocks_of(call.collective, levels_.size).out;
  if (piece.count == 0 || !writes(call, levels_.rank) || levels_.team->shares(call.out, call.bytes() * blocks)) {
    return;
  }
  const std::size_t bytes = piece.count * size_of(call.type);
  const std::size_t first =
      own_outputs(call.collective) ? static_cast<std::size_t>(levels_.team->local_rank()) * blocks : 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    copy_bytes(call.out + block * call.bytes() + piece.begin * size_of(call.type),
               levels_.team->results() + (first + block) * bytes, bytes);
  }
}

const std::byte* LevelWork::input(const Call& call, int local_rank, std::size_t block, const Piece& piece,
                                  std::size_t element) const {
  const TwoLevelTeam::Reach& its = reach(local_rank);
  const std::size_t width = size_of(call.type);
  if (!is_shown(call, levels_.rank_at(levels_.host, local_rank), its.in, its.out)) {
    return its.in + block * call.bytes() + element * width;
  }
  return levels_.team->shown(local_rank) + (block * piece.count + element - piece.begin) * width;
}

std::byte* LevelWork::output(const Call& call, int local_rank, std::size_t block, const Piece& piece,
                             std::size_t element) const {
  std::byte* const out = reach(local_rank).out;
  const std::size_t width = size_of(call.type);
  if (out != nullptr) return out + block * call.bytes() + element * width;
  if (own_outputs(call.collective)) {
    block += static_cast<std::size_t>(local_rank) * blocks_of(call.collective, levels_.size).out;
  }
  return levels_.team->results() + (block * piece.count + element - piece.begin) * width;
}

std::span<std::byte* const> LevelWork::outputs(const Call& call, std::size_t block, const Piece& piece,
                                               std::size_t element) {
  places_.clear();
  bool private_ones = false;
  for (int local = 0; local < levels_.team->size(); ++local) {
    if (!writes(call, levels_.rank_at(levels_.host, local))) continue;
    const bool is_private = reach(local).out == nullptr;
    // All of them take it from one place.
    if (!is_private || !private_ones) places_.push_back(output(call, local, block, piece, element));
    private_ones = private_ones || is_private;
  }
  return places_;
}

void LevelWork::reduce_here(const Call& call, std::size_t block, const Piece& piece, const Piece& part, std::byte* to) {
  const Kernels& loops = kernels(call.type, travelling_op(call));
  const std::size_t element = size_of(call.type);
  const std::size_t number = size_of(travelling_type(call));
  from_.clear();
  for (int local = 0; local < levels_.team->size(); ++local) {
    from_.push_back(input(call, local, block, piece, part.begin));
  }
  if (number == element) {
    void* const result = to;
    loops.reduce(from_.data(), from_.size(), &result, 1, 0, part.count, Stores::normal, levels_.size);
    return;
  }
  for (std::size_t begin = 0; begin < part.count; begin += kChunk) {
    const std::size_t count = std::min(kChunk, part.count - begin);
    std::byte* const chunk = to + begin * number;
    loops.load(chunk, static_cast<const std::byte*>(from_[0]) + begin * element, count);
    for (std::size_t i = 1; i < from_.size(); ++i) {
      loops.accumulate(chunk, static_cast<const std::byte*>(from_[i]) + begin * element, count);
    }
  }
}

}  // namespace ddrun::collectives
