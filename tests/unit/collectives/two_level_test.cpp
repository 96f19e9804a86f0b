#include "two_level/communicator.hpp"

// Threads as ranks of several hosts, which are simulated by what the ranks say of themselves.

#include <algorithm>
#include <atomic>
#include <latch>

#include "ddrun/collectives/checker.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "ddrun/test/catch.hpp"
#include "describe.hpp"
#include "hosts.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

/// The host of each rank.
using Hosts = std::vector<int>;

const std::vector<Hosts> kHosts{{0, 0, 1, 1, 2},
                                {0, 1, 0, 1},
                                {0, 0, 0, 1, 1, 1, 2, 2, 2},
                                {0, 0, 1, 1},
                                {0, 0, 0, 1, 1, 2},
                                {0, 1, 1, 1},
                                {0, 0, 0, 1},
                                {0, 1, 2, 3, 3, 2, 1, 0},
                                {0, 0, 0, 0, 1, 1, 1, 1},
                                {0, 1, 0, 0, 2, 1, 3, 0}};

CommunicatorOptions options_of(const Hosts& hosts, int rank, std::size_t buffer_bytes) {
  CommunicatorOptions options;
  options.buffer_bytes = buffer_bytes;
  options.place = concat("host", hosts[static_cast<std::size_t>(rank)]);
  return options;
}

using Body = std::function<std::string(Communicator&)>;

/// Runs `body` with each rank's communicator; what it says, by rank.
std::vector<std::string> on_hosts(const Hosts& hosts, std::size_t buffer_bytes, const Body& body) {
  return run_ranks(static_cast<int>(hosts.size()), [&](const Group& group) -> std::string {
    auto connected = connect(group, options_of(hosts, group.rank, buffer_bytes), in_time());
    if (!connected) return connected.error().message;
    if (connected->communicator->name() != "shm+tcp") return "not in two levels: " + connected->why;
    return body(*connected->communicator);
  });
}

/// The same with a plan that does not depend on what is measured.
std::vector<std::string> on_hosts(const Hosts& hosts, std::size_t buffer_bytes, const TwoLevelPlan& plan,
                                  const Body& body) {
  return run_ranks(static_cast<int>(hosts.size()), [&](const Group& group) -> std::string {
    std::vector<HostIdentity> all(hosts.size(), HostIdentity::mine());
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) all[rank].place = std::to_string(hosts[rank]);
    const CommunicatorOptions options = options_of(hosts, group.rank, buffer_bytes);
    auto made = TwoLevelCommunicator::connect(group, HostGroups::of(all), all, options, in_time(), plan);
    return made ? body(**made) : made.error().message;
  });
}

std::vector<std::string> silence(const Hosts& hosts) { return std::vector<std::string>(hosts.size()); }

std::string in_words(const Result<void>& result) { return result ? "fine" : result.error().message; }

struct Trial {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  std::size_t count = 0;
  bool in_place = false;
  bool is_private = false;  ///< memory of the odd ranks
  int root = 0;
  std::vector<int> to{};  ///< of send_recv, by rank; empty: the next one
};

/// Makes the call with exact data and compares; empty if it is right, or if the back end cannot do it.
std::string try_one(Communicator& all, const Trial& trial, std::uint64_t first) {
  if (!all.lacks(trial.collective, trial.type, trial.op, trial.in_place).empty()) return {};
  const ReduceOp op = reduces(trial.collective) ? trial.op : ReduceOp::sum;
  const ExactPattern pattern(all.rank(), all.size(), trial.type, op);
  Call call{trial.collective, trial.type, op, trial.count};
  call.root = trial.root;
  const auto rank = static_cast<std::size_t>(all.rank());
  call.to = trial.to.empty() ? (all.rank() + 1) % all.size() : trial.to[rank];
  call.from = trial.to.empty()
                  ? (all.rank() + all.size() - 1) % all.size()
                  : static_cast<int>(std::find(trial.to.begin(), trial.to.end(), all.rank()) - trial.to.begin());
  const Blocks blocks = blocks_of(trial.collective, all.size());
  std::vector<std::byte> own_in(call.bytes() * blocks.in + 1);
  std::vector<std::byte> own_out(call.bytes() * std::max(blocks.in, blocks.out) + 1);
  const bool own = trial.is_private && all.rank() % 2 == 1;
  std::byte* in = own ? own_in.data() : all.send_buffer().data();
  std::byte* out = own ? own_out.data() : all.recv_buffer().data();
  if (trial.in_place) {
    const std::size_t mine = rank * call.bytes();
    in = out;
    if (blocks.in > blocks.out) out += mine;
    if (blocks.in < blocks.out) in += mine;
  } else {
    std::fill_n(out, call.bytes() * blocks.out, std::byte{0xee});
  }
  call.in = in;
  call.out = out;
  pattern.fill({in, call.bytes() * blocks.in}, first);
  if (auto done = all.perform(call, in_time()); !done) return done.error().message;
  for (const Expected& part : expected_of(call, all.rank(), all.size(), first)) {
    const Sequence right = part.rank == Expected::all_ranks ? pattern.reduction() : pattern.contribution_of(part.rank);
    const std::size_t element = size_of(trial.type);
    const auto wrong = right.count_wrong({out + part.begin * element, part.count * element}, part.first);
    if (wrong != 0) {
      return concat(name_of(trial.collective), " of ", trial.count, ' ', name_of(trial.type), ", ", name_of(op),
                    trial.in_place ? ", in place" : "", trial.is_private ? ", private" : "", ", root ", trial.root,
                    ", to ", call.to, ": ", wrong, " wrong");
    }
  }
  return {};
}

std::string try_all(Communicator& all, const std::vector<Trial>& trials) {
  std::uint64_t first = 0;
  for (Trial trial : trials) {
    for (const bool in_place : {false, true}) {
      for (const bool is_private : {false, true}) {
        trial.in_place = in_place;
        trial.is_private = is_private;
        if (auto problem = try_one(all, trial, ++first); !problem.empty()) return problem;
      }
    }
  }
  return {};
}

/// Ends soon after the first failure; the failure's words by rank.
std::string fail_soon(const Result<void>& done, Clock::time_point start) {
  if (Clock::now() - start > 15s) return "too late";
  return in_words(done);
}

Result<void> perform(Communicator& all, Collective collective, std::size_t count, Deadline deadline) {
  Call call{collective, DataType::float32, ReduceOp::sum, count, all.send_buffer().data(), all.recv_buffer().data()};
  call.to = (all.rank() + 1) % all.size();
  call.from = (all.rank() + all.size() - 1) % all.size();
  return all.perform(call, deadline);
}

Result<void> all_reduce(Communicator& all, std::size_t count, Deadline deadline) {
  return perform(all, Collective::all_reduce, count, deadline);
}

}  // namespace

TEST_CASE("hosts are found in the order of their first ranks") {
  std::vector<HostIdentity> all(5);
  all[0].place = "b";
  all[1].place = "a";
  all[2].place = "b";
  all[4].place = "b";
  const HostGroups groups = HostGroups::of(all);
  CHECK(groups.hosts == std::vector<std::vector<int>>{{0, 2, 4}, {1}, {3}});
  CHECK(groups.host_of(3) == 2);
  CHECK(groups.local_rank_of(4) == 2);
  CHECK(groups.columns() == 1);
  CHECK(groups.most() == 3);
  CHECK(groups.column(0) == std::vector<int>{0, 1, 3});
  CHECK(groups.in_words() == "3 hosts with 1 to 3 ranks");
}

TEST_CASE("words about ranks of a part are put in the numbers of the whole") {
  const std::vector<int> ranks{4, 7, 8, 12};
  CHECK(with_ranks("rank 1 is gone", ranks) == "rank 7 is gone");
  CHECK(with_ranks("ranks 0-2 did not come in time", ranks) == "ranks 4,7,8 did not come in time");
  CHECK(with_ranks("rank 3 calls barrier, rank 0 all_reduce of 4 float, sum: all ranks must", ranks) ==
        "rank 12 calls barrier, rank 4 all_reduce of 4 float, sum: all ranks must");
  CHECK(with_ranks("rank 9 and all ranks, frank 2", ranks) == "rank 9 and all ranks, frank 8");
  CHECK(with_ranks("", ranks).empty());
}

TEST_CASE("every collective is right in two levels, on equal and unequal hosts") {
  for (const Hosts& hosts : ddrun::test::few_if_sanitized(kHosts, 1)) {
    std::vector<Trial> trials;
    for (const Collective collective : all_collectives) {
      for (const std::size_t count : {0UL, 5UL, 4097UL}) {
        for (const int root : {0, static_cast<int>(hosts.size()) - 1}) {
          if (root > 0 && !has_root(collective)) continue;
          Trial trial;
          trial.collective = collective;
          trial.count = count;
          trial.root = root;
          trials.push_back(trial);
        }
      }
    }
    const auto said = on_hosts(hosts, 1 << 21, [&](Communicator& all) { return try_all(all, trials); });
    CAPTURE(hosts);
    CHECK(said == silence(hosts));
  }
}

TEST_CASE("reductions of every type with every operation are right in two levels") {
  const Hosts hosts{0, 0, 0, 1, 1, 2};
  std::vector<Trial> trials;
  for (const DataType type : all_types) {
    for (const ReduceOp op : all_ops) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{ddrun::test::kSanitized ? 2011 : 20011}}) {
        for (const Collective collective : {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter}) {
          Trial trial{collective, type, op, count};
          trial.root = 4;
          trials.push_back(trial);
        }
      }
    }
  }
  const auto said = on_hosts(hosts, 1 << 20, [&](Communicator& all) { return try_all(all, trials); });
  CHECK(said == silence(hosts));
}

TEST_CASE("data of several pieces is right in two levels") {
  const Hosts hosts{0, 1, 0, 1};
  const std::vector<DataType> types{DataType::bfloat16, DataType::float32, DataType::int8};
  for (const DataType type : ddrun::test::few_if_sanitized(types, 1)) {
    std::vector<Trial> trials;
    for (const Collective collective : all_collectives) {
      const Blocks blocks = blocks_of(collective, static_cast<int>(hosts.size()));
      const std::size_t bytes = (std::size_t{5} << 20) / std::max(blocks.in, blocks.out);
      Trial trial{collective, type, ReduceOp::sum, bytes / size_of(type) + 7};
      trial.root = 3;
      trials.push_back(trial);
    }
    const auto said = on_hosts(hosts, 6 << 20, [&](Communicator& all) { return try_all(all, trials); });
    CHECK(said == silence(hosts));
  }
}

TEST_CASE("blocks arrive whether they travel together or straight") {
  const std::vector<Hosts> some{{0, 1, 0, 1}, {0, 0, 1, 1, 2}, {0, 1, 1, 1}, {0, 0, 0, 1, 1, 2}};
  for (const Hosts& hosts : ddrun::test::few_if_sanitized(some, 2)) {
    for (const std::size_t up_to : {std::size_t{0}, Plan::unlimited}) {
      std::vector<Trial> trials;
      for (const Collective collective : {Collective::gather, Collective::scatter, Collective::all_to_all}) {
        // The last one in several pieces.
        for (const std::size_t count : {0UL, 3UL, 120001UL}) {
          for (const int root : {0, static_cast<int>(hosts.size()) - 1}) {
            if (root > 0 && !has_root(collective)) continue;
            Trial trial{collective, DataType::float32, ReduceOp::sum, count};
            trial.root = root;
            trials.push_back(trial);
          }
        }
      }
      const auto said = on_hosts(hosts, 120001 * sizeof(float) * hosts.size(), TwoLevelPlan{up_to, up_to},
                                 [&](Communicator& all) { return try_all(all, trials); });
      CAPTURE(hosts, up_to);
      CHECK(said == silence(hosts));
    }
  }
}

TEST_CASE("what travels together is what has fewer messages then, up to a size") {
  const auto on = [](int hosts, int ranks) {
    HostGroups groups;
    groups.hosts.resize(static_cast<std::size_t>(hosts));
    for (int rank = 0; rank < hosts * ranks; ++rank)
      groups.hosts[static_cast<std::size_t>(rank / ranks)].push_back(rank);
    return groups;
  };
  const Costs costs{20, 0.001, 0.0002};
  // To one other host there is one message either way.
  CHECK(plan_levels(costs, on(2, 2)).rooted == 0);
  const TwoLevelPlan many = plan_levels(costs, on(16, 4));
  CHECK(many.rooted == 4096);       // 4 steps and 64 blocks' copies against 1 + 14 / 2
  CHECK(many.all_to_all == 32768);  // 15 messages and 128 copies against 60
  CHECK(plan_levels(Costs{40, 0.001, 0.0002}, on(16, 4)).all_to_all == 65536);
  CHECK(
      many.in_words() ==
      "all_reduce, reduce, broadcast: slices; all_gather, reduce_scatter: blocks of a host together; gather, scatter: "
      "blocks of a host together up to 4 KiB, then straight; all_to_all: blocks of a host together up to 32 KiB, then "
      "straight; send_recv: straight");
  CHECK(plan_levels(costs, on(2, 2)).in_words().find("gather, scatter: straight; all_to_all: blocks") !=
        std::string::npos);
}

TEST_CASE("whoever the partners of a send_recv are, in two levels everybody gets the right data") {
  const std::vector<Hosts> all_hosts{{0, 1, 0, 1}, {0, 0, 1, 1, 2}, {0, 0, 0, 1, 1, 1}, {0, 1, 1, 1, 1}};
  for (const Hosts& hosts : ddrun::test::few_if_sanitized(all_hosts, 2)) {
    const int size = static_cast<int>(hosts.size());
    std::vector<Trial> trials;
    for (const std::size_t count : {1UL, 6000UL, 600011UL}) {
      Trial trial{Collective::send_recv, DataType::float32, ReduceOp::sum, count};
      // All the same distance further, pairs, and pairs of neighbours beside ranks that send to themselves.
      for (int distance = 0; distance < size; ++distance) {
        trial.to.clear();
        for (int rank = 0; rank < size; ++rank) trial.to.push_back((rank + distance) % size);
        trials.push_back(trial);
      }
      std::reverse(trial.to.begin(), trial.to.end());
      trials.push_back(trial);
      for (int rank = 0; rank < size; ++rank) {
        for (int other = 0; other < size; ++other) trial.to[static_cast<std::size_t>(other)] = other;
        std::swap(trial.to[static_cast<std::size_t>(rank)], trial.to[static_cast<std::size_t>((rank + 1) % size)]);
        trials.push_back(trial);
      }
    }
    const auto said = on_hosts(hosts, 600011 * sizeof(float), [&](Communicator& all) { return try_all(all, trials); });
    CAPTURE(hosts);
    CHECK(said == silence(hosts));
  }
}

TEST_CASE("half is rounded once, not on every level") {
  // 2048 + 1 has no half of its own, 2048 + 3 has its neighbour 2052.
  const Hosts hosts{0, 0, 1, 1};
  constexpr std::uint16_t k2048 = 0x6800;
  constexpr std::uint16_t k1 = 0x3c00;
  constexpr std::uint16_t k2052 = 0x6802;
  const auto said = on_hosts(hosts, 1 << 20, [&](Communicator& all) -> std::string {
    for (const std::size_t count : {3UL, 30000UL}) {
      std::vector<std::uint16_t> data(count, all.rank() == 0 ? k2048 : k1);
      const auto bytes = std::as_writable_bytes(std::span(data));
      if (auto done = all.all_reduce(bytes, bytes, DataType::float16, ReduceOp::sum, in_time()); !done) {
        return done.error().message;
      }
      if (data != std::vector<std::uint16_t>(count, k2052)) return "rounded wrong";
    }
    return {};
  });
  CHECK(said == silence(hosts));
}

TEST_CASE("nobody leaves a barrier of two levels before all have come") {
  const Hosts hosts{0, 0, 1, 1, 1};
  std::atomic<int> came{0};
  const auto said = on_hosts(hosts, 8, [&](Communicator& all) -> std::string {
    for (int round = 1; round <= 50; ++round) {
      ++came;
      if (auto met = all.barrier(in_time()); !met) return met.error().message;
      if (came < round * all.size()) return concat("only ", came.load(), " in round ", round);
    }
    return {};
  });
  CHECK(said == silence(hosts));
}

TEST_CASE("a rank that leaves is named by all ranks of all hosts") {
  for (const Hosts& hosts : {Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 1, 0, 1}, Hosts{0, 0, 0, 1, 1, 2}}) {
    for (const int victim : {1, static_cast<int>(hosts.size()) - 1}) {
      for (const std::size_t count : {4UL, 100000UL}) {
        const auto said = on_hosts(hosts, 400000, [&](Communicator& all) -> std::string {
          if (auto met = all.barrier(in_time()); !met) return met.error().message;
          if (all.rank() == victim) return concat("rank ", victim, " is gone");
          const auto start = Clock::now();
          Result<void> done;
          while (done && Clock::now() - start < 15s) done = all_reduce(all, count, in_time());
          return fail_soon(done, start);
        });
        CAPTURE(hosts, victim, count);
        CHECK(said == std::vector<std::string>(hosts.size(), concat("rank ", victim, " is gone")));
      }
    }
  }
}

TEST_CASE("a rank that leaves is named in every collective of two levels") {
  const Hosts hosts{0, 1, 0, 1, 0};
  constexpr int kVictim = 3;
  for (const Collective collective : all_collectives) {
    const auto said = on_hosts(hosts, 400000, [&](Communicator& all) -> std::string {
      if (auto met = all.barrier(in_time()); !met) return met.error().message;
      if (all.rank() == kVictim) return "rank 3 is gone";
      const auto start = Clock::now();
      Result<void> done;
      while (done && Clock::now() - start < 15s) done = perform(all, collective, 20000, in_time());
      return fail_soon(done, start);
    });
    CAPTURE(name_of(collective));
    CHECK(said == std::vector<std::string>(hosts.size(), "rank 3 is gone"));
  }
}

TEST_CASE("ranks that do not come are named by all ranks of all hosts at the deadline") {
  const Hosts hosts{0, 0, 1, 1, 2, 2};
  for (const Collective collective :
       {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all}) {
    std::latch all_have_seen(5);
    const auto said = on_hosts(hosts, 2'400'000, [&](Communicator& all) -> std::string {
      std::string words = "rank 3 did not come in time";
      Result<void> done = all.barrier(in_time());
      if (done && all.rank() != 3) {
        done = perform(all, collective, 100000, Clock::now() + 500ms);
        words = in_words(done);
        if (!done && done.error().code != Errc::timeout) words += " (wrong code)";
        all_have_seen.count_down();
      }
      all_have_seen.wait();
      return words;
    });
    CAPTURE(name_of(collective));
    CHECK(said == std::vector<std::string>(hosts.size(), "rank 3 did not come in time"));
  }
}

TEST_CASE("partners of one host who do not mean each other are told so, on every host") {
  const Hosts hosts{0, 0, 1, 1};
  const std::string missed = "rank 1 receives from rank 0, which sends to rank 2: who is received from must send there";
  const std::string half = "rank 1 sends to rank 1 and receives from rank 2: who sends to itself receives from itself";
  for (const std::string& words : {missed, half}) {
    const auto said = on_hosts(hosts, 400000, [&](Communicator& all) -> std::string {
      Call call{Collective::send_recv,    DataType::float32,       ReduceOp::sum, 1000,
                all.send_buffer().data(), all.recv_buffer().data()};
      call.to = (all.rank() + 2) % 4;
      call.from = call.to;
      if (all.rank() == 1) call.from = words == missed ? 0 : 2;
      if (all.rank() == 1 && words == half) call.to = 1;
      const auto start = Clock::now();
      Result<void> done = all.perform(call, in_time());
      // Whose own partners are right may end before the others.
      if (done) done = all.barrier(in_time());
      return fail_soon(done, start);
    });
    CHECK(said == std::vector<std::string>(hosts.size(), words));
  }
}

TEST_CASE("different calls are told in the callers' words, within a host and between hosts") {
  const Hosts hosts{0, 0, 1, 1};
  for (const std::vector<std::size_t>& counts : std::vector<std::vector<std::size_t>>{
           {100000, 100000, 100000, 7}, {100000, 100000, 99999, 99999}, {3, 3, 100000, 100000}, {5, 5, 6, 6}}) {
    const auto said = on_hosts(hosts, 400000, [&](Communicator& all) -> std::string {
      const auto start = Clock::now();
      return fail_soon(all_reduce(all, counts[static_cast<std::size_t>(all.rank())], in_time()), start);
    });
    for (const std::string& one : said) {
      CAPTURE(counts, one);
      CHECK(ddrun::test::tells_both_calls(one, concat("all_reduce of ", counts.front(), " float, sum"),
                                          concat("all_reduce of ", counts.back(), " float, sum")));
    }
  }
}

TEST_CASE("what is chosen is what the places of the ranks allow") {
  const std::vector<std::pair<Hosts, std::string>> cases{
      {{0, 0, 0}, "shm: all ranks are on one machine"},
      {{0, 1, 2}, "tcp: rank 0 and rank 1 run on different machines, in different containers or as different users"},
      {{0, 0, 1, 1}, "shm+tcp: 2 hosts with 2 ranks each: shm inside each, tcp between them"},
      {{0, 1, 1}, "shm+tcp: 2 hosts with 1 to 2 ranks: shm inside each, tcp between them"}};
  for (const auto& [hosts, words] : cases) {
    const auto said = run_ranks(static_cast<int>(hosts.size()), [&, &hosts = hosts](const Group& group) -> std::string {
      auto connected = connect(group, options_of(hosts, group.rank, 8), in_time());
      if (!connected) return connected.error().message;
      return concat(connected->communicator->name(), ": ", connected->why);
    });
    CHECK(said == std::vector<std::string>(hosts.size(), words));
  }
}

TEST_CASE("more memory than there is is refused on every host") {
  const Hosts hosts{0, 0, 1, 1};
  const auto said = run_ranks(4, [&](const Group& group) -> std::string {
    auto connected = connect(group, options_of(hosts, group.rank, std::size_t{1} << 46U), in_time());
    return connected ? "fine" : connected.error().message;
  });
  for (const std::string& one : said) CHECK(one.find("memory") != std::string::npos);
}
