#include "two_level/communicator.hpp"

#include <algorithm>

#include "copy.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "exchange.hpp"
#include "rank_words.hpp"
#include "tcp/communicator.hpp"
#include "two_level/failure.hpp"

namespace ddrun::collectives {

namespace {

/// Up to here a message between hosts takes as long as an empty one.
constexpr std::size_t kSmall = 16 << 10;
/// Slices begin at cache lines of their own.
constexpr std::size_t kApartBytes = 128;
/// Elements that are reduced to a wider type while they are in the first-level cache.
constexpr std::size_t kChunk = 2048;

bool in_two_levels(Collective collective) {
  return collective == Collective::barrier || collective == Collective::all_reduce ||
         collective == Collective::reduce || collective == Collective::broadcast;
}

bool has_input(const Call& call, int rank) { return call.collective != Collective::broadcast || rank == call.root; }
bool has_output(const Call& call, int rank) { return call.collective != Collective::reduce || rank == call.root; }

/// What the column's numbers are, and how they are added up before the last step.
DataType travelling_type(const Call& call) {
  return reduces(call.collective) ? accumulator_type(call.type) : call.type;
}
ReduceOp travelling_op(const Call& call) { return call.op == ReduceOp::avg ? ReduceOp::sum : call.op; }

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
                                                                    Deadline deadline) {
  std::unique_ptr<TwoLevelCommunicator> made(new TwoLevelCommunicator(group, hosts));
  auto team = gather_team(group, hosts, all, options.buffer_bytes, deadline);
  if (!team) return tl::unexpected(team.error());
  made->team_ = std::move(*team);
  made->reach_.resize(made->team_->ranks().size());
  const int local_rank = made->team_->local_rank();
  TcpOptions tcp;
  tcp.streams = options.tcp_streams;
  tcp.crowded = is_crowded(all, group.rank);
  Result<void> connected;
  if (local_rank < hosts.columns()) {
    made->column_ranks_ = hosts.column(local_rank);
    Group column = group;
    column.rank = made->host_;
    column.size = static_cast<int>(made->column_ranks_.size());
    column.prefix = concat(group.prefix, "column/", local_rank, '/');
    auto to_column = TcpCommunicator::connect(column, tcp, deadline);
    if (to_column) made->column_ = std::move(*to_column);
    else connected = tl::unexpected(with_ranks(to_column.error(), made->column_ranks_));
  }
  if (auto agreed = agree(group, "columns", connected, deadline); !agreed) return tl::unexpected(agreed.error());
  Group flat = group;
  flat.prefix = group.prefix + "flat/";
  auto to_all = TcpCommunicator::connect(flat, tcp, deadline);
  if (!to_all) return tl::unexpected(to_all.error());
  made->flat_ = std::move(*to_all);
  return made;
}

TwoLevelCommunicator::TwoLevelCommunicator(Group group, HostGroups hosts)
    : Communicator(group.rank, group.size),
      group_(std::move(group)),
      hosts_(std::move(hosts)),
      host_(hosts_.host_of(group_.rank)) {}

std::string TwoLevelCommunicator::details() const {
  return concat(hosts_.in_words(), "; between hosts ", hosts_.columns(),
                hosts_.columns() == 1 ? " rank of each" : " ranks of each, a slice each");
}

std::optional<Error> TwoLevelCommunicator::trouble() {
  if (auto known = team_->trouble()) return known;
  if (column_) {
    if (auto lost = column_->trouble()) return with_ranks(std::move(*lost), column_ranks_);
  }
  return flat_ ? flat_->trouble() : std::nullopt;
}

std::string TwoLevelCommunicator::lacks(Collective collective, DataType type, ReduceOp op, bool in_place) const {
  return flat_ ? flat_->lacks(collective, type, op, in_place) : std::string();  // columns are of the same kind
}

Result<void> TwoLevelCommunicator::run(const Call& call, Deadline deadline) {
  const auto done = [&]() -> Result<void> {
    if (call.collective == Collective::barrier) {
      // Its one number is never read.
      if (auto met = team_->announce(call, deadline); !met) return met;
      return meet_all(deadline);
    }
    if (in_two_levels(call.collective)) return run_levels(call, deadline);
    if (auto met = team_->announce(call, deadline); !met) return met;
    return flat_->perform(call, deadline);
  }();
  if (done) return done;
  return tl::unexpected(first_cause(done.error(), group_, *team_, call, calls(), [&] {
    column_.reset();
    flat_.reset();
  }));
}

/// The first column's barrier, between two meetings of each host.
Result<void> TwoLevelCommunicator::meet_all(Deadline deadline) {
  if (team_->local_rank() == 0) {
    if (auto met = column_->barrier(deadline); !met) return tl::unexpected(with_ranks(met.error(), column_ranks_));
  }
  return team_->meet(deadline);
}

Result<void> TwoLevelCommunicator::run_levels(const Call& call, Deadline deadline) {
  const bool small = call.bytes() <= kSmall;
  const int columns = small ? 1 : hosts_.columns();
  const std::size_t most = TwoLevelTeam::kPiece / size_of(travelling_type(call));
  Piece piece{0, std::min(call.count, most)};
  // Before anybody can know whether it is needed, as the first meeting is the only one where nothing is private.
  show(call, piece);
  if (auto met = team_->announce(call, deadline); !met) return met;
  bool any_private = false;
  for (int local = 0; local < team_->size(); ++local) {
    const int rank = team_->ranks()[static_cast<std::size_t>(local)];
    const TwoLevelTeam::Reach reach = team_->reach(local);
    any_private = any_private || (has_input(call, rank) && reach.in == nullptr) ||
                  (has_output(call, rank) && reach.out == nullptr);
    reach_[static_cast<std::size_t>(local)] = reach;
  }
  while (true) {
    if (auto worked = work(call, piece, columns, deadline); !worked) return worked;
    const std::size_t end = piece.begin + piece.count;
    const bool last = end == call.count;
    if (any_private || last) {
      if (auto met = team_->meet(deadline); !met) return met;
    }
    take(call, piece);
    if (last) return {};
    piece = {end, std::min(call.count - end, most)};
    show(call, piece);
    if (any_private) {
      if (auto met = team_->meet(deadline); !met) return met;
    }
  }
}

/// This rank's slice of a piece, if its column has one.
Result<void> TwoLevelCommunicator::work(const Call& call, const Piece& piece, int columns, Deadline deadline) {
  const int local_rank = team_->local_rank();
  if (local_rank >= columns) return {};
  const auto parts = static_cast<std::size_t>(columns);
  const std::size_t apart = kApartBytes / size_of(call.type);
  const std::size_t each = ((piece.count + parts - 1) / parts + apart - 1) / apart * apart;
  const std::size_t in_piece = std::min(piece.count, each * static_cast<std::size_t>(local_rank));
  const Piece slice{piece.begin + in_piece, std::min(each, piece.count - in_piece)};
  if (slice.count == 0) return {};
  slice_.resize(slice.count * size_of(travelling_type(call)));
  gather_here(call, slice, in_piece);
  if (auto done = across(call, slice.count, deadline); !done) {
    return tl::unexpected(with_ranks(done.error(), column_ranks_));
  }
  spread(call, slice, in_piece);
  return {};
}

const std::byte* TwoLevelCommunicator::source(const Call& call, int local_rank, const Piece& slice,
                                              std::size_t in_piece) const {
  const std::byte* const in = reach_[static_cast<std::size_t>(local_rank)].in;
  const std::size_t element = size_of(call.type);
  return in != nullptr ? in + slice.begin * element : team_->shown(local_rank) + in_piece * element;
}

/// What the ranks of this host have of a slice becomes `slice_`.
void TwoLevelCommunicator::gather_here(const Call& call, const Piece& slice, std::size_t in_piece) {
  if (call.collective == Collective::broadcast) {
    if (hosts_.host_of(call.root) != host_) return;
    copy_bytes(slice_.data(), source(call, hosts_.local_rank_of(call.root), slice, in_piece), slice_.size());
    return;
  }
  const Kernels& loops = kernels(call.type, travelling_op(call));
  const std::size_t element = size_of(call.type);
  const std::size_t number = size_of(travelling_type(call));
  from_.clear();
  for (int local = 0; local < team_->size(); ++local) from_.push_back(source(call, local, slice, in_piece));
  if (number == element) {
    void* const to = slice_.data();
    loops.reduce(from_.data(), from_.size(), &to, 1, 0, slice.count, Stores::normal, size());
    return;
  }
  for (std::size_t begin = 0; begin < slice.count; begin += kChunk) {
    const std::size_t count = std::min(kChunk, slice.count - begin);
    std::byte* const to = slice_.data() + begin * number;
    loops.load(to, static_cast<const std::byte*>(from_[0]) + begin * element, count);
    for (std::size_t i = 1; i < from_.size(); ++i) {
      loops.accumulate(to, static_cast<const std::byte*>(from_[i]) + begin * element, count);
    }
  }
}

Result<void> TwoLevelCommunicator::across(const Call& call, std::size_t count, Deadline deadline) {
  Call between;
  between.collective = call.collective;
  between.type = travelling_type(call);
  between.op = travelling_op(call);
  between.count = count;
  between.in = between.out = slice_.data();
  between.root = has_root(call.collective) ? hosts_.host_of(call.root) : 0;
  return column_->perform(between, deadline);
}

/// `slice_` goes to all ranks of this host that get it.
void TwoLevelCommunicator::spread(const Call& call, const Piece& slice, std::size_t in_piece) {
  const std::size_t element = size_of(call.type);
  const std::size_t bytes = slice.count * element;
  const std::byte* finished = nullptr;
  bool to_private = false;
  const auto write = [&](std::byte* to) {
    if (finished != nullptr) {
      copy_bytes(to, finished, bytes);
      return;
    }
    if (reduces(call.collective)) kernels(call.type, call.op).finish(to, slice_.data(), slice.count, size());
    else copy_bytes(to, slice_.data(), bytes);
    finished = to;
  };
  for (int local = 0; local < team_->size(); ++local) {
    if (!has_output(call, team_->ranks()[static_cast<std::size_t>(local)])) continue;
    std::byte* const out = reach_[static_cast<std::size_t>(local)].out;
    if (out != nullptr) write(out + slice.begin * element);
    else to_private = true;
  }
  if (to_private) write(team_->results() + in_piece * element);
}

/// Lets the others read a piece of private input.
void TwoLevelCommunicator::show(const Call& call, const Piece& piece) {
  if (piece.count == 0 || !has_input(call, rank()) || team_->shares(call.in, call.bytes())) return;
  const std::size_t element = size_of(call.type);
  copy_bytes(team_->shown(team_->local_rank()), call.in + piece.begin * element, piece.count * element);
}

/// Takes a piece of the results to private memory.
void TwoLevelCommunicator::take(const Call& call, const Piece& piece) {
  if (piece.count == 0 || !has_output(call, rank()) || team_->shares(call.out, call.bytes())) return;
  const std::size_t element = size_of(call.type);
  copy_bytes(call.out + piece.begin * element, team_->results(), piece.count * element);
}

}  // namespace ddrun::collectives
