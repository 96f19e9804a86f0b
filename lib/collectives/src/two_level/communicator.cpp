#include "two_level/communicator.hpp"

#include <algorithm>
#include <bit>
#include <ctime>
#include <functional>

#include "copy.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "ddrun/store/store.hpp"
#include "describe.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

TwoLevelPlan plan_levels(const Costs& costs, const HostGroups& hosts) {
  const double a = costs.latency;
  const double c = costs.per_byte_reduced;
  double n = 0;
  for (const auto& ranks : hosts.hosts) n += static_cast<double>(ranks.size());
  const auto others = static_cast<double>(hosts.hosts.size()) - 1;
  const double most = hosts.most();
  const int rounds = (hosts.most() + hosts.columns() - 1) / hosts.columns();
  const double tree_steps = std::bit_width(static_cast<unsigned>(hosts.hosts.size()) - 1);

  // What has to pass the network is the same either way. A message to or from the root's host costs its handling, about
  // half a latency; what travels together is copied before and after.
  TwoLevelPlan plan;
  plan.rooted = crossover([&](double s) { return tree_steps * a + n * s * c; },
                          [&](double) { return a + (rounds * others - 1) * a / 2; });
  plan.all_to_all =
      crossover([&](double s) { return others * a + 2 * n * s * c; }, [&](double) { return others * most * a; });
  return plan;
}

std::string TwoLevelPlan::in_words() const {
  const auto both = [](std::size_t to) {
    return in_steps({{"blocks of a host together", to}, {"straight", Plan::unlimited}});
  };
  return concat(
      "all_reduce, reduce, broadcast: slices; all_gather, reduce_scatter: blocks of a host together; gather, scatter: ",
      both(rooted), "; all_to_all: ", both(all_to_all), "; send_recv: straight");
}

Call Levels::between_hosts(const Call& call, std::size_t count) const {
  Call between;
  between.collective = call.collective;
  between.type = travelling_type(call);
  between.op = travelling_op(call);
  between.count = count;
  between.root = has_root(call.collective) ? hosts.host_of(call.root) : 0;
  return between;
}

Result<void> Levels::across(const Call& between, Deadline deadline) const {
  auto done = column->perform(between, deadline);
  if (!done) return tl::unexpected(with_ranks(done.error(), column_ranks));
  return done;
}

std::optional<Error> Levels::trouble() const {
  if (auto known = team->trouble()) return known;
  if (column) {
    if (auto lost = column->trouble()) return with_ranks(std::move(*lost), column_ranks);
  }
  return flat ? flat->trouble() : std::nullopt;
}

DataType travelling_type(const Call& call) {
  return reduces(call.collective) ? accumulator_type(call.type) : call.type;
}

ReduceOp travelling_op(const Call& call) { return call.op == ReduceOp::avg ? ReduceOp::sum : call.op; }

namespace {

/// Elements that are reduced to a wider type while they are in the first-level cache.
constexpr std::size_t chunk_elements = 2048;

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
  const std::size_t max_count = most(call);
  Piece piece{0, std::min(call.count, max_count)};
  // Before a rank can know whether it is needed, as the first meeting is the only one where nothing is private.
  show(call, piece);
  if (auto met = team.announce(call, deadline); !met) return met;
  const Sharing sharing = look(call);
  const bool any_private = sharing == Sharing::through_the_team;
  while (true) {
    if (auto worked = work(call, piece, deadline); !worked) return worked;
    const std::size_t end = piece.begin + piece.count;
    const bool last = end == call.count;
    // A rank does not leave while others still use its memory.
    if (any_private || (last && sharing != Sharing::none)) {
      if (auto met = team.meet(deadline); !met) return met;
    }
    take(call, piece);
    if (last) return {};
    piece = {end, std::min(call.count - end, max_count)};
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
  for (std::size_t begin = 0; begin < part.count; begin += chunk_elements) {
    const std::size_t count = std::min(chunk_elements, part.count - begin);
    std::byte* const chunk = to + begin * number;
    loops.load(chunk, static_cast<const std::byte*>(from_[0]) + begin * element, count);
    for (std::size_t i = 1; i < from_.size(); ++i) {
      loops.accumulate(chunk, static_cast<const std::byte*>(from_[i]) + begin * element, count);
    }
  }
}

std::size_t SliceWork::most(const Call& call) const {
  return TwoLevelTeam::team_piece / size_of(travelling_type(call));
}

/// This rank's slice of a piece, if its column has one.
Result<void> SliceWork::work(const Call& call, const Piece& piece, Deadline deadline) {
  const int local_rank = levels_.team->local_rank();
  const int columns = call.bytes() <= small_between_hosts ? 1 : levels_.hosts.columns();
  if (local_rank >= columns) return {};
  const auto parts = static_cast<std::size_t>(columns);
  const std::size_t apart = pieces_apart / size_of(call.type);
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
  Call between = levels_.between_hosts(call, count);
  between.in = between.out = slice_.data();
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

/// A piece of the blocks of all ranks fits into the place of one rank; of an all_to_all, all outputs of a host do.
std::size_t BlockWork::most(const Call& call) const {
  const std::size_t outputs = call.collective == Collective::all_to_all ? index_of(levels_.hosts.most()) : 1;
  const std::size_t count =
      TwoLevelTeam::team_piece / size_of(travelling_type(call)) / (index_of(levels_.size) * outputs);
  const std::size_t apart = pieces_apart / size_of(call.type);
  return count < apart ? count : count / apart * apart;
}

void BlockWork::deal(const Call& call, const Piece& piece) {
  const int most = levels_.hosts.most();
  const int each = call.collective == Collective::all_to_all ? most : 1;  // blocks of a host for one rank
  const bool small = call.bytes() * index_of(most) * index_of(each) <= small_between_hosts;
  columns_ = small ? 1 : levels_.hosts.columns();
  rounds_ = (most + columns_ - 1) / columns_;
  slots_ = rounds_ * each;
  slot_bytes_ = piece.count * size_of(travelling_type(call));
}

Result<void> BlockWork::work(const Call& call, const Piece& piece, Deadline deadline) {
  if (piece.count == 0) return {};
  deal(call, piece);
  const bool carries = levels_.team->local_rank() < columns_;
  if (carries) pack(call, piece);
  // Who works in place overwrites what others may not have read yet.
  if (call.collective == Collective::all_to_all) {
    bool in_place = false;
    for (int local = 0; local < levels_.team->size(); ++local) {
      in_place = in_place || (reach(local).in != nullptr && reach(local).in == reach(local).out);
    }
    if (in_place) {
      if (auto met = levels_.team->meet(deadline); !met) return met;
    }
  }
  if (!carries) return {};
  if (auto done = across(call, piece, deadline); !done) return done;
  spread(call, piece);
  return {};
}

template <class Body>
void BlockWork::for_dealt(int host, const Body& body) {
  const std::vector<int>& ranks = levels_.hosts.hosts[index_of(host)];
  int round = 0;
  for (std::size_t local = index_of(levels_.team->local_rank()); local < ranks.size(); local += index_of(columns_)) {
    body(index_of(ranks[local]), slot(packed_, host, round++), static_cast<int>(local));
  }
}

std::byte* BlockWork::slot(std::vector<std::byte>& slots, int host, int of_host) const {
  return slots.data() + (index_of(host) * index_of(slots_) + index_of(of_host)) * slot_bytes_;
}

void BlockWork::pack(const Call& call, const Piece& piece) {
  const int hosts = static_cast<int>(levels_.hosts.hosts.size());
  packed_.resize(index_of(hosts) * index_of(slots_) * slot_bytes_);
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather:
      return for_dealt(levels_.host, [&](std::size_t, std::byte* place, int local) {
        copy_bytes(place, input(call, local, 0, piece, piece.begin), slot_bytes_);
      });
    case Collective::scatter:
      if (levels_.hosts.host_of(call.root) != levels_.host) return;
      for (int host = 0; host < hosts; ++host) {
        for_dealt(host, [&](std::size_t block, std::byte* place, int) {
          copy_bytes(place, input(call, levels_.hosts.local_rank_of(call.root), block, piece, piece.begin),
                     slot_bytes_);
        });
      }
      return;
    case Collective::reduce_scatter:
      for (int host = 0; host < hosts; ++host) {
        for_dealt(host,
                  [&](std::size_t block, std::byte* place, int) { reduce_here(call, block, piece, piece, place); });
      }
      return;
    default: return pack_all_to_all(call, piece);
  }
}

/// For each rank that was dealt to this column, a block of each rank of this host.
void BlockWork::pack_all_to_all(const Call& call, const Piece& piece) {
  received_.resize(packed_.size());
  const std::size_t step = index_of(levels_.hosts.most()) * slot_bytes_;
  for (int host = 0; host < static_cast<int>(levels_.hosts.hosts.size()); ++host) {
    std::byte* to = slot(packed_, host, 0);
    for_dealt(host, [&](std::size_t block, std::byte*, int) {
      for (int local = 0; local < levels_.team->size(); ++local) {
        copy_bytes(to + index_of(local) * slot_bytes_, input(call, local, block, piece, piece.begin), slot_bytes_);
      }
      to += step;
    });
  }
}

Result<void> BlockWork::across(const Call& call, const Piece& piece, Deadline deadline) {
  Call between = levels_.between_hosts(call, piece.count * index_of(slots_));
  std::byte* const all = slot(packed_, 0, 0);
  std::byte* const mine = slot(packed_, levels_.host, 0);
  // In place, but for all_to_all.
  const bool from_mine = call.collective == Collective::all_gather || call.collective == Collective::gather;
  between.in = from_mine ? mine : all;
  between.out = from_mine ? all : mine;
  if (call.collective == Collective::all_to_all) between.out = received_.data();
  return levels_.across(between, deadline);
}

void BlockWork::spread(const Call& call, const Piece& piece) {
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather:
      if (call.collective == Collective::gather && levels_.hosts.host_of(call.root) != levels_.host) return;
      for (int host = 0; host < static_cast<int>(levels_.hosts.hosts.size()); ++host) {
        for_dealt(host, [&](std::size_t block, std::byte* place, int) {
          copy_to_all(outputs(call, block, piece, piece.begin), place, slot_bytes_, Stores::normal);
        });
      }
      return;
    case Collective::scatter:
      return for_dealt(levels_.host, [&](std::size_t, std::byte* place, int local) {
        copy_bytes(output(call, local, 0, piece, piece.begin), place, slot_bytes_);
      });
    case Collective::reduce_scatter:
      return for_dealt(levels_.host, [&](std::size_t, std::byte* place, int local) {
        kernels(call.type, call.op)
            .finish(output(call, local, 0, piece, piece.begin), place, piece.count, levels_.size);
      });
    default: return spread_all_to_all(call, piece);
  }
}

/// What each rank of a host had for those of this one that were dealt to this column.
void BlockWork::spread_all_to_all(const Call& call, const Piece& piece) {
  const std::size_t step = index_of(levels_.hosts.most()) * slot_bytes_;
  for (int host = 0; host < static_cast<int>(levels_.hosts.hosts.size()); ++host) {
    const std::vector<int>& theirs = levels_.hosts.hosts[index_of(host)];
    const std::byte* from = slot(received_, host, 0);
    for_dealt(levels_.host, [&](std::size_t, std::byte*, int local) {
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        copy_bytes(output(call, local, index_of(theirs[i]), piece, piece.begin), from + i * slot_bytes_, slot_bytes_);
      }
      from += step;
    });
  }
}

bool StraightWork::reads(const Call& call, int rank) const {
  return call.collective == Collective::all_to_all || (call.collective == Collective::scatter && rank == call.root);
}

bool StraightWork::writes(const Call& call, int rank) const {
  return call.collective == Collective::gather && rank == call.root;
}

std::size_t StraightWork::most(const Call& call) const {
  return TwoLevelTeam::team_piece / size_of(call.type) / index_of(levels_.size);
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

std::size_t MessageWork::most(const Call& call) const { return TwoLevelTeam::team_piece / size_of(call.type); }

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

namespace {

using namespace std::chrono_literals;

/// Deadlines of ranks that began together are this close to each other, on a machine with too much to do.
constexpr auto together_within = 1s;

void pause() {
  const timespec time{0, 5'000'000};
  nanosleep(&time, nullptr);
}

/// Where a rank that has failed says what it was called for.
std::string key_of(const Group& group, std::uint64_t call_number, int rank) {
  return concat(group.prefix, "failed/", call_number, '/', rank);
}

bool is_there(const Group& group, const std::string& key) {
  return group.store->check({&key, 1}, Clock::now() + 1s).value_or(false);
}

/// What `mine` really is, as far as those that have failed in the same call can tell.
Error compare_with_others(Error mine, const Group& group, const Call& call, std::uint64_t call_number) {
  store::Store& store = *group.store;
  const Deadline until = Clock::now() + together_within;
  std::vector<int> missing;
  for (int rank = 0; rank < group.size; ++rank) missing.push_back(rank);
  while (true) {
    std::vector<int> still;
    for (const int rank : missing) {
      const std::string their_key = key_of(group, call_number, rank);
      const auto there = store.check({&their_key, 1}, until);
      if (!there) return mine;
      if (!*there) {
        still.push_back(rank);
        continue;
      }
      const auto said = store.get(their_key, until);
      if (!said) return mine;
      const std::size_t blank = said->find(' ');
      const auto kind = parse_integer(std::string_view(*said).substr(0, blank), 0, 0xffff'ffffLL);
      const auto count = parse_integer(std::string_view(*said).substr(blank + 1), 0, INT64_MAX);
      if (!kind || !count) return mine;
      if (static_cast<std::uint32_t>(*kind) != kind_of(call) || static_cast<std::uint64_t>(*count) != call.count) {
        return different_calls(rank, static_cast<std::uint32_t>(*kind), static_cast<std::uint64_t>(*count), group.rank,
                               call)
            .value();
      }
    }
    missing = std::move(still);
    if (missing.empty() || Clock::now() >= until) break;
    pause();
  }
  // They may have failed and left before: then that is the cause, and known.
  if (mine.code == Errc::timeout && !missing.empty()) mine.message = missing_in_words(missing);
  return mine;
}

/// Finds what all ranks are to say about a failure that each of them sees in its own way: some see the cause, others
/// only that a neighbour has given up. A rank that fails says so, in its team's memory and in the store, before it
/// leaves.
///
/// Of calls that differ, and of ranks that did not come, each rank sees only a part, too: those that have failed tell
/// each other what they were called for. `call_number` is that of the call, equal on ranks that wait for each other.
/// `certain`: no other rank can know better. Blocks for a second or two at most. `hang_up` closes this rank's
/// connections to other hosts.
Error first_cause(Error mine, const Group& group, TwoLevelTeam& team, const Call& call, std::uint64_t call_number,
                  bool certain, const std::function<void()>& hang_up) {
  if (auto known = team.kept()) return *known;
  const std::string key = group.prefix + "failed";
  const std::string differing = concat(group.prefix, "differing/", call_number);
  // Without an answer the rank with the store is gone, or as good as that.
  const bool told =
      group.store
          ->set(key_of(group, call_number, group.rank), concat(kind_of(call), ' ', call.count), Clock::now() + 1s)
          .has_value() &&
      group.store->num_keys(Clock::now() + 1s).has_value();
  if (told && !certain && !is_there(group, key)) {
    bool calls_differ = mine.code == Errc::invalid_argument;
    if (calls_differ) {
      // A rank that waits for this one shall fail as well, and know why it was hung up on.
      static_cast<void>(group.store->set(differing, "1", Clock::now() + 1s));
      hang_up();
    } else {
      calls_differ = is_there(group, differing);
    }
    if (calls_differ || mine.code == Errc::timeout) {
      mine = compare_with_others(std::move(mine), group, call, call_number);
    }
  }
  const std::string words = concat(static_cast<int>(mine.code), ' ', mine.message);
  if (told) {
    if (const auto first = group.store->compare_set(key, "", words, Clock::now() + 2s)) {
      const auto blank = first->find(' ');
      const auto code = parse_integer(std::string_view(*first).substr(0, blank), 0, static_cast<int>(Errc::cancelled));
      if (code && blank != std::string::npos) mine = Error{static_cast<Errc>(*code), first->substr(blank + 1)};
    }
  }
  if (certain) hang_up();  // a rank that waits for this one finds the reason now
  return team.keep(mine);
}

Result<std::unique_ptr<TwoLevelTeam>> gather_team(const Group& group, const HostGroups& hosts,
                                                  const std::vector<HostIdentity>& all, std::size_t buffer_bytes,
                                                  Deadline deadline) {
  const std::vector<int>& ranks = hosts.hosts[static_cast<std::size_t>(hosts.host_of(group.rank))];
  const int local_rank = hosts.local_rank_of(group.rank);
  Result<std::shared_ptr<Segment>> segment;
  std::string announcement;
  if (local_rank == 0) {
    segment = Segment::create(TwoLevelTeam::segment_bytes(static_cast<int>(ranks.size()), buffer_bytes));
    if (segment) announcement = (*segment)->where();
  }
  const auto where = exchange(group, "segments", announcement, deadline);
  if (!where) return tl::unexpected(where.error());
  if (local_rank != 0) segment = Segment::open((*where)[static_cast<std::size_t>(ranks.front())]);
  auto team = segment.and_then([&](const std::shared_ptr<Segment>& opened) {
    return TwoLevelTeam::start(opened, ranks, local_rank, all, buffer_bytes);
  });
  const Result<void> mine = team ? Result<void>() : Result<void>(tl::unexpected(team.error()));
  if (auto agreed = agree(group, "teams", mine, deadline); !agreed) return tl::unexpected(agreed.error());
  return team;
}

}  // namespace

Result<std::unique_ptr<Communicator>> TwoLevelCommunicator::connect(const Group& group, const HostGroups& hosts,
                                                                    const std::vector<HostIdentity>& all,
                                                                    const CommunicatorOptions& options,
                                                                    Deadline deadline,
                                                                    const std::optional<TwoLevelPlan>& plan) {
  Levels levels{hosts, group.rank, group.size, hosts.host_of(group.rank)};
  auto team = gather_team(group, hosts, all, options.buffer_bytes, deadline);
  if (!team) return tl::unexpected(team.error());
  levels.team = std::move(*team);
  const int local_rank = levels.team->local_rank();
  TcpOptions tcp;
  tcp.streams = options.tcp_streams;
  tcp.crowded = is_crowded(all, group.rank);
  Result<void> connected;
  if (local_rank < hosts.columns()) {
    levels.column_ranks = hosts.column(local_rank);
    Group column = group;
    column.rank = levels.host;
    column.size = static_cast<int>(levels.column_ranks.size());
    column.prefix = concat(group.prefix, "column/", local_rank, '/');
    auto to_column = TcpCommunicator::connect(column, tcp, deadline);
    if (to_column) levels.column = std::move(*to_column);
    else connected = tl::unexpected(with_ranks(to_column.error(), levels.column_ranks));
  }
  if (auto agreed = agree(group, "columns", connected, deadline); !agreed) return tl::unexpected(agreed.error());
  Group flat = group;
  flat.prefix = group.prefix + "flat/";
  auto to_all = TcpCommunicator::connect(flat, tcp, deadline);
  if (!to_all) return tl::unexpected(to_all.error());
  levels.flat = std::move(*to_all);
  levels.plan = plan ? *plan : plan_levels(levels.flat->plan().costs, hosts);
  return std::unique_ptr<Communicator>(new TwoLevelCommunicator(group, std::move(levels)));
}

TwoLevelCommunicator::TwoLevelCommunicator(Group group, Levels levels)
    : Communicator(group.rank, group.size),
      group_(std::move(group)),
      levels_(std::move(levels)),
      slices_(levels_),
      blocks_(levels_),
      straight_(levels_),
      messages_(levels_) {}

std::string TwoLevelCommunicator::details() const {
  const int columns = levels_.hosts.columns();
  return concat(levels_.hosts.in_words(), "; between hosts ", columns,
                columns == 1 ? " rank of each; " : " ranks of each; ", levels_.plan.in_words());
}

std::string TwoLevelCommunicator::lacks(Collective collective, DataType type, ReduceOp op, bool in_place) const {
  // Columns are of the same kind.
  return levels_.flat ? levels_.flat->lacks(collective, type, op, in_place) : std::string();
}

Result<void> TwoLevelCommunicator::run(const Call& call, Deadline deadline) {
  const auto done = run_levels(call, deadline);
  if (done) return done;
  return tl::unexpected(
      first_cause(done.error(), group_, *levels_.team, call, calls(), messages_.partners_differ(), [&] {
        levels_.column.reset();
        levels_.flat.reset();
      }));
}

Result<void> TwoLevelCommunicator::run_levels(const Call& call, Deadline deadline) {
  switch (call.collective) {
    case Collective::barrier: return meet_all(call, deadline);
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast: return slices_.run(call, deadline);
    case Collective::send_recv: return messages_.run(call, deadline);
    default: break;
  }
  if (!blocks_.has_room(call)) {
    if (auto met = levels_.team->announce(call, deadline); !met) return met;
    return levels_.flat->perform(call, deadline);
  }
  return goes_straight(call) ? straight_.run(call, deadline) : blocks_.run(call, deadline);
}

bool TwoLevelCommunicator::goes_straight(const Call& call) const {
  if (call.collective == Collective::all_to_all) return call.bytes() > levels_.plan.all_to_all;
  const bool rooted = call.collective == Collective::gather || call.collective == Collective::scatter;
  return rooted && call.bytes() > levels_.plan.rooted;
}

/// The first column's barrier, between two meetings of each host.
Result<void> TwoLevelCommunicator::meet_all(const Call& call, Deadline deadline) {
  // Its one number is never read.
  if (auto met = levels_.team->announce(call, deadline); !met) return met;
  if (levels_.team->local_rank() == 0) {
    if (auto met = levels_.across(call, deadline); !met) return met;
  }
  return levels_.team->meet(deadline);
}

Suits suits_two_level(const Ranks& ranks) {
  const HostGroups hosts = HostGroups::of(ranks.hosts);
  return {hosts.hosts.size() > 1 && hosts.most() > 1};
}

Result<Chosen> connect_two_level(const Ranks& ranks, Deadline deadline) {
  const HostGroups hosts = HostGroups::of(ranks.hosts);
  auto made = TwoLevelCommunicator::connect(ranks.group, hosts, ranks.hosts, ranks.options, deadline);
  if (!made) return tl::unexpected(made.error());
  return Chosen{std::move(*made), concat(hosts.in_words(), ": shm inside each, tcp between them")};
}

}  // namespace ddrun::collectives
