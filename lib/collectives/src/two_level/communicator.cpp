#include "two_level/communicator.hpp"

#include <ctime>
#include <functional>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/store/store.hpp"
#include "describe.hpp"
#include "exchange.hpp"
#include "two_level/team.hpp"

namespace ddrun::collectives {

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
/// only that a neighbour has given up. Whoever fails says so, in its team's memory and in the store, before it leaves.
///
/// Of calls that differ, and of ranks that did not come, each rank sees only a part, too: those that have failed tell
/// each other what they were called for. `call_number` is that of the call, equal on ranks that wait for each other.
/// `certain`: nobody else can know better. Blocks for a second or two at most. `hang_up` closes this rank's connections
/// to other hosts.
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
      // Whoever waits for this rank shall fail as well, and know why it was hung up on.
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
  if (certain) hang_up();  // whoever waits for this rank finds the reason now
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
