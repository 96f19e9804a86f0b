#include <array>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

std::string describe(const Result<void>& result) { return result ? "fine" : result.error().message; }

/// In place, in the receive buffer.
Result<void> reduce(Communicator& all, std::size_t count, DataType type = DataType::float32,
                    ReduceOp op = ReduceOp::sum) {
  const auto data = all.recv_buffer().first(count * size_of(type));
  return all.all_reduce(data, data, type, op, in_time());
}

}  // namespace

TEST_CASE("a lost peer is reported between calls") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const auto messages = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 64}, in_time());
      if (!connected) return connected.error().message;
      Communicator& all = *connected->communicator;
      if (auto synced = all.barrier(in_time()); !synced) return synced.error().message;
      if (group.rank == 1) return "left";
      std::optional<Error> async_error;
      for (const Deadline deadline = in_time(); !async_error && Clock::now() < deadline;
           async_error = all.async_error()) {
        std::this_thread::sleep_for(1ms);
      }
      if (!async_error) return "nothing";
      return async_error->code == Errc::connection_lost ? async_error->message : "wrong code: " + async_error->message;
    });
    // The first lost rank is kept, so later exits are not reported.
    CHECK(messages == std::vector<std::string>{"rank 1 is gone", "left", "rank 1 is gone"});
  }
}

TEST_CASE("a missing rank makes the others time out at the deadline") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    std::once_flag once;
    Deadline deadline;
    std::latch all_have_seen(3);  // ranks wait here, as an exit would be reported instead of the timeout
    const auto messages = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 8}, in_time());
      Result<void> synced = connected ? connected->communicator->barrier(in_time()) : tl::unexpected(connected.error());
      if (!synced) {
        all_have_seen.count_down();
        return describe(synced);
      }
      std::call_once(once, [&] { deadline = Clock::now() + 200ms; });
      if (group.rank != 1) synced = connected->communicator->barrier(deadline);
      const auto end = Clock::now();
      // Further calls return the same failure.
      const auto again = group.rank == 1 ? synced : connected->communicator->barrier(in_time());
      all_have_seen.arrive_and_wait();
      if (group.rank == 1) return "good";
      if (end < deadline) return "too early: " + describe(synced);
      if (end > deadline + 10s) return "too late";
      if (synced || synced.error().code != Errc::timeout) return "wrong: " + describe(synced);
      return again.has_value() ? "changed its mind" : "good";
    });
    CHECK(messages == std::vector<std::string>{"good", "good", "good"});
  }
}

TEST_CASE("ranks missing at the start are named") {
  const auto server = ddrun::test::started();
  const auto store = ddrun::test::connected(server->port());
  Group group;
  group.size = 4;
  group.store = store.get();
  group.prefix = "x/";
  const auto connected = connect(group, {Backend::automatic, 8}, Clock::now() + 100ms);
  REQUIRE(!connected);
  CHECK(connected.error().code == Errc::timeout);
  CHECK(connected.error().message == "ranks 1-3 did not come in time");
}

TEST_CASE("different calls are reported with both") {
  struct One {
    std::size_t count;
    DataType type;
    ReduceOp op;
    std::string text;
  };
  const std::vector<std::array<One, 2>> pairs{
      {{{4, DataType::float32, ReduceOp::sum, "all_reduce of 4 float, sum"},
        {90000, DataType::float32, ReduceOp::sum, "all_reduce of 90000 float, sum"}}},
      {{{9, DataType::float16, ReduceOp::sum, "all_reduce of 9 half, sum"},
        {9, DataType::bfloat16, ReduceOp::sum, "all_reduce of 9 bfloat16, sum"}}},
      {{{90000, DataType::int32, ReduceOp::min, "all_reduce of 90000 int32, min"},
        {90000, DataType::int32, ReduceOp::avg, "all_reduce of 90000 int32, avg"}}}};
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    for (const auto& pair : pairs) {
      const auto messages = run_ranks(2, [&](const Group& group) -> std::string {
        auto connected = connect(group, {backend, 400000}, in_time());
        if (!connected) return connected.error().message;
        const One& mine = pair[static_cast<std::size_t>(group.rank)];
        const auto done = reduce(*connected->communicator, mine.count, mine.type, mine.op);
        if (!done && done.error().code != Errc::invalid_argument) return "wrong code: " + describe(done);
        return describe(done);
      });
      for (const std::string& one : messages) {
        CAPTURE(one);
        CHECK(ddrun::test::names_both_calls(one, pair[0].text, pair[1].text));
      }
    }
  }
}

TEST_CASE("a different call is reported on ranks without a link to its rank too") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const auto messages = run_ranks(5, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 400000}, in_time());
      if (!connected) return connected.error().message;
      if (group.rank == 2) return describe(connected->communicator->barrier(in_time()));
      return describe(reduce(*connected->communicator, 100000));
    });
    for (const std::string& one : messages) {
      CAPTURE(one);
      CHECK(ddrun::test::names_both_calls(one, "all_reduce of 100000 float, sum", "barrier"));
      CHECK(one.find("rank 2 ") != std::string::npos);
    }
  }
}

TEST_CASE("options that must agree and differ are reported with both values") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const auto messages = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 64, group.rank == 2 ? "a=1 b=x" : "a=1 b=y"}, in_time());
      return connected ? "fine" : connected.error().message;
    });
    CHECK(messages ==
          std::vector<std::string>(3, "rank 0 has b=y, rank 2 has b=x: all ranks must have the same options"));
  }
}

TEST_CASE("bytes that are no whole elements are refused") {
  auto connected = connect(Group{}, {Backend::shm, 64}, in_time());
  REQUIRE(connected);
  const auto memory = connected->communicator->recv_buffer().first(12);
  const auto done = connected->communicator->all_reduce(memory, memory, DataType::float64, ReduceOp::sum, in_time());
  REQUIRE(!done);
  CHECK(done.error().code == Errc::invalid_argument);
  CHECK(done.error().message == "12 bytes are no whole number of double: each has 8");
}

TEST_CASE("different buffer sizes are reported") {
  const auto messages = run_ranks(2, [](const Group& group) -> std::string {
    auto connected = connect(group, {Backend::shm, group.rank == 0 ? 1000U : 5000U}, in_time());
    return connected ? "fine" : connected.error().message;
  });
  CHECK(messages[0].find("do all ranks have the same options?") != std::string::npos);
  CHECK(messages[0].find("rank 1") != std::string::npos);
  CHECK(messages[1].find("do all ranks have the same options?") != std::string::npos);
}

TEST_CASE("an input and an output of different sizes are refused") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    auto connected = connect(Group{}, {backend, 8}, in_time());
    REQUIRE(connected);
    Communicator& all = *connected->communicator;
    const auto summed =
        all.all_reduce(all.send_buffer(), all.recv_buffer().first(4), DataType::float32, ReduceOp::sum, in_time());
    REQUIRE(!summed);
    CHECK(summed.error().code == Errc::invalid_argument);
  }
}

TEST_CASE("a request for more memory than available is refused") {
  const auto connected = connect(Group{}, {Backend::shm, std::size_t{1} << 48U}, in_time());
  REQUIRE(!connected);
  CHECK(connected.error().code == Errc::unavailable);
  CHECK(connected.error().message.find("shared memory") != std::string::npos);
  CHECK(!connect(Group{}, {Backend::tcp, std::size_t{1} << 60U}, in_time()));
}

TEST_CASE("a host name is refused as a listen address") {
  const auto messages = run_ranks(2, [](Group group) -> std::string {
    group.address = "no-such-host.invalid";
    auto connected = connect(group, {Backend::tcp, 8}, in_time());
    return connected ? "fine" : connected.error().message;
  });
  CHECK(messages[0] == "'no-such-host.invalid' is not a numeric address");
  CHECK(messages[1] == "rank 0: 'no-such-host.invalid' is not a numeric address");
}
