#include "tcp/communicator.hpp"

#include <algorithm>
#include <functional>
#include <latch>
#include <optional>

#include "ddrun/collectives/checker.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

using Body = std::function<std::string(Communicator&)>;

std::vector<std::string> run_tcp(int size, const TcpOptions& options, const Body& body) {
  return run_ranks(size, [&](const Group& group) -> std::string {
    auto made = TcpCommunicator::connect(group, options, in_time());
    return made ? body(**made) : made.error().message;
  });
}

Plan everything_small() {
  Plan plan;
  plan.doubling = plan.halving = plan.tree = plan.block_tree = plan.all_gather = Plan::unlimited;
  return plan;
}

Plan everything_large() {
  Plan plan;
  plan.chain_piece = 64 << 10;
  return plan;
}

Plan everything_halved() {
  Plan plan = everything_large();
  plan.halving = Plan::unlimited;
  return plan;
}

/// Makes a call with `count` floats per block; returns what is wrong.
std::string check(Communicator& all, Collective collective, std::size_t count, int round) {
  const int n = all.size();
  const ExactPattern pattern(all.rank(), n);
  const Blocks blocks = blocks_of(collective, n);
  Call call{collective, DataType::float32, ReduceOp::sum, count};
  std::vector<std::byte> in(blocks.in * call.bytes());
  std::vector<std::byte> out(blocks.out * call.bytes(), std::byte{0xa5});
  const auto first = static_cast<std::uint64_t>(round);
  pattern.fill(in, first);
  call.in = in.data();
  call.out = out.data();
  if (round % 2 == 0 && blocks.in == blocks.out) {  // in place
    out = in;
    call.in = call.out;
  }
  call.root = round % n;
  call.to = (all.rank() + round) % n;
  call.from = (all.rank() + n * round - round) % n;
  if (auto done = all.perform(call, in_time()); !done) return done.error().message;
  for (const Expected& expected : expected_of(call, all.rank(), n, first)) {
    const Sequence right =
        expected.rank == Expected::all_ranks ? pattern.reduction() : pattern.contribution_of(expected.rank);
    const auto part = std::span(out).subspan(expected.begin * sizeof(float), expected.count * sizeof(float));
    const auto wrong = right.count_wrong(part, expected.first);
    if (wrong > 0) return concat(name_of(collective), " of ", count, ": ", wrong, " are wrong");
  }
  return {};
}

}  // namespace

TEST_CASE("all collectives over tcp are right with one stream and with several, whatever the plan") {
  for (const int streams : {1, 3}) {
    for (const auto& plan : {std::optional<Plan>(), std::optional(everything_small()),
                             std::optional(everything_large()), std::optional(everything_halved())}) {
      // Powers of two, and others, which some algorithms fold first.
      for (const int size : streams == 1 ? std::vector{2, 3, 6, 8} : std::vector{5}) {
        TcpOptions options;
        options.streams = streams;
        options.plan = plan;
        options.oversubscribed = size > 2;
        const auto problems = run_tcp(size, options, [&](Communicator& all) -> std::string {
          int round = 0;
          for (const Collective collective : all_collectives) {
            // Less than a chunk, and several chunks plus a rest.
            const std::size_t large = size <= 5 ? 200003 : 20011;
            for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, large}) {
              if (auto problem = check(all, collective, count, ++round); !problem.empty()) return problem;
            }
          }
          return {};
        });
        CAPTURE(streams, size);
        CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
      }
    }
  }
}

TEST_CASE("any plan has pieces of whole elements, and larger limits for algorithms with fewer steps") {
  for (int ranks = 2; ranks <= 64; ++ranks) {
    const Plan plan = plan_for(ranks);
    CHECK(plan.chain_piece % 8 == 0);
    CHECK(plan.doubling > 0);
    CHECK((plan.halving == 0 || plan.halving > plan.doubling));
  }
}

TEST_CASE("a rank that leaves instead of a call is named by the others, whatever the call") {
  for (const Collective collective : all_collectives) {
    if (collective == Collective::send_recv) continue;
    const auto messages = run_tcp(5, {}, [&](Communicator& all) -> std::string {
      if (auto synced = all.barrier(in_time()); !synced) return synced.error().message;
      if (all.rank() == 3) return "left";
      const auto start = Clock::now();
      // Some ranks need rank 3 only in the second call.
      Result<void> done;
      for (int time = 0; time < 2 && done; ++time) {
        std::vector<float> in(5 * 5000);
        std::vector<float> out(5 * 5000);
        Call call{collective, DataType::float32, ReduceOp::sum, 5000};
        call.in = std::as_bytes(std::span(in)).data();
        call.out = std::as_writable_bytes(std::span(out)).data();
        call.root = 3;
        done = all.perform(call, in_time());
        if (done) done = all.barrier(in_time());
      }
      if (Clock::now() - start > 10s) return "too late";
      return done ? "fine" : done.error().message;
    });
    CAPTURE(name_of(collective));
    CHECK(messages ==
          std::vector<std::string>{"rank 3 is gone", "rank 3 is gone", "rank 3 is gone", "left", "rank 3 is gone"});
  }
}

TEST_CASE("a rank is notified of a lost rank to which it has no link") {
  const auto messages = run_tcp(6, {}, [](Communicator& all) -> std::string {
    if (auto synced = all.barrier(in_time()); !synced) return synced.error().message;
    if (all.rank() == 4) return "left";
    // The barrier of six ranks makes links at distances 1, 2 and 4; ranks 1 and 4 are three apart.
    if (all.rank() != 1) return "did not look";
    std::vector<std::byte> data(8);
    Call call{Collective::send_recv, DataType::float32, ReduceOp::sum, 2, data.data(), data.data()};
    call.to = call.from = 4;
    const auto start = Clock::now();
    const auto done = all.perform(call, in_time());
    if (Clock::now() - start > 10s) return "too late";
    return done ? "fine" : done.error().message;
  });
  CHECK(messages[1] == "rank 4 is gone");
}

TEST_CASE("ranks that wait for each other in different calls detect the mismatch") {
  // Ranks wait for the first message of rank 0 or 1, which itself waits.
  std::latch all_have_seen(4);
  const auto messages = run_tcp(4, {}, [&](Communicator& all) -> std::string {
    std::vector<float> data(16);
    Call call{Collective::broadcast, DataType::float32, ReduceOp::sum, 4};
    call.in = std::as_bytes(std::span(data)).data();
    call.out = std::as_writable_bytes(std::span(data)).data();
    call.root = all.rank() == 0 ? 1 : 0;
    const auto start = Clock::now();
    const auto done = all.perform(call, in_time());
    const bool late = Clock::now() - start > 10s;
    all_have_seen.arrive_and_wait();
    if (late) return "too late";
    return done ? "fine" : done.error().message;
  });
  for (const std::string& one : messages) {
    CAPTURE(one);
    CHECK(ddrun::test::names_both_calls(one, "broadcast of 4 float, root 1", "broadcast of 4 float, root 0"));
  }
}

TEST_CASE("a rank that is done may leave while others are still in the call") {
  for (int round = 0; round < 5; ++round) {
    // The root is done before the last ranks of the chain have their data.
    TcpOptions options;
    options.plan = everything_large();
    const auto problems =
        run_tcp(4, options, [](Communicator& all) { return check(all, Collective::broadcast, 100003, 4); });
    CHECK(problems == std::vector<std::string>(4));
  }
}

TEST_CASE("a late sender may leave right after sending") {
  TcpOptions options;
  options.plan = everything_small();
  const auto problems = run_tcp(4, options, [](Communicator& all) -> std::string {
    // Rank 0 checks during the wait whether rank 2, to which it has no link yet, still exists.
    if (all.rank() == 2) std::this_thread::sleep_for(250ms);
    return check(all, Collective::broadcast, 1000, 2);
  });
  CHECK(problems == std::vector<std::string>(4));
}

TEST_CASE("ranks open only the connections that their calls need") {
  const auto problems = run_tcp(64, {}, [](Communicator& all) -> std::string {
    for (const Collective collective : {Collective::all_reduce, Collective::broadcast, Collective::all_gather}) {
      if (auto problem = check(all, collective, 100, 3); !problem.empty()) return problem;
    }
    return {};
  });
  CHECK(problems == std::vector<std::string>(64));
}
