#include "two_level/communicator.hpp"

#include "ddrun/base/text.hpp"
#include "exchange.hpp"
#include "rank_words.hpp"
#include "two_level/failure.hpp"

namespace ddrun::collectives {

namespace {

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

}  // namespace ddrun::collectives
