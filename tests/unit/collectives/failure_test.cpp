#include <cerrno>
#include <cstring>
#include <latch>
#include <mutex>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

std::string in_words(const Result<void>& result) { return result ? "fine" : result.error().message; }

/// In place, of what the receive buffer holds.
Result<void> reduce(Communicator& all, std::size_t count, DataType type = DataType::float32,
                    ReduceOp op = ReduceOp::sum) {
  const auto data = all.recv_buffer().first(count * size_of(type));
  return all.all_reduce(data, data, type, op, in_time());
}

}  // namespace

TEST_CASE("a rank that leaves is named by all others at once") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const auto words = run_ranks(4, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 4000}, in_time());
      if (!connected) return connected.error().message;
      if (auto met = connected->communicator->barrier(in_time()); !met) return met.error().message;
      if (group.rank == 2) return "left";
      const auto start = Clock::now();
      const auto summed = reduce(*connected->communicator, 1000);
      if (Clock::now() - start > 10s) return "too late";
      if (!summed && summed.error().code != Errc::connection_lost) return "wrong code: " + summed.error().message;
      return in_words(summed);
    });
    CHECK(words == std::vector<std::string>{"rank 2 is gone", "rank 2 is gone", "left", "rank 2 is gone"});
  }
}

TEST_CASE("a rank that does not come makes the others give up at the deadline") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    std::once_flag once;
    Deadline deadline;
    std::latch all_have_seen(3);  // nobody leaves before, or the others would see that instead
    const auto words = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 8}, in_time());
      Result<void> met = connected ? connected->communicator->barrier(in_time()) : tl::unexpected(connected.error());
      if (!met) {
        all_have_seen.count_down();
        return in_words(met);
      }
      std::call_once(once, [&] { deadline = Clock::now() + 200ms; });
      if (group.rank != 1) met = connected->communicator->barrier(deadline);
      const auto end = Clock::now();
      // What has failed once stays failed.
      const auto again = group.rank == 1 ? met : connected->communicator->barrier(in_time());
      all_have_seen.arrive_and_wait();
      if (group.rank == 1) return "good";
      if (end < deadline) return "too early: " + in_words(met);
      if (end > deadline + 10s) return "too late";
      if (met || met.error().code != Errc::timeout) return "wrong: " + in_words(met);
      return again.has_value() ? "changed its mind" : "good";
    });
    CHECK(words == std::vector<std::string>{"good", "good", "good"});
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

TEST_CASE("ranks that make different calls are told both") {
  struct Pair {
    std::size_t counts[2];
    DataType types[2];
    ReduceOp ops[2];
    std::string words[2];
  };
  const std::vector<Pair> pairs{{{4, 90000},
                                 {DataType::float32, DataType::float32},
                                 {ReduceOp::sum, ReduceOp::sum},
                                 {"all_reduce of 4 float, sum", "all_reduce of 90000 float, sum"}},
                                {{70, 71},
                                 {DataType::float32, DataType::float32},
                                 {ReduceOp::sum, ReduceOp::sum},
                                 {"all_reduce of 70 float, sum", "all_reduce of 71 float, sum"}},
                                {{9, 9},
                                 {DataType::float16, DataType::bfloat16},
                                 {ReduceOp::sum, ReduceOp::sum},
                                 {"all_reduce of 9 half, sum", "all_reduce of 9 bfloat16, sum"}},
                                {{90000, 90000},
                                 {DataType::int32, DataType::int32},
                                 {ReduceOp::min, ReduceOp::avg},
                                 {"all_reduce of 90000 int32, min", "all_reduce of 90000 int32, avg"}}};
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    for (const Pair& pair : pairs) {
      const auto words = run_ranks(2, [&](const Group& group) -> std::string {
        auto connected = connect(group, {backend, 400000}, in_time());
        if (!connected) return connected.error().message;
        const std::size_t i = group.rank;
        const auto done = reduce(*connected->communicator, pair.counts[i], pair.types[i], pair.ops[i]);
        if (!done && done.error().code != Errc::invalid_argument) return "wrong code: " + in_words(done);
        return in_words(done);
      });
      const std::string first =
          concat("rank 1 calls ", pair.words[1], ", rank 0 ", pair.words[0], ": all ranks must make the same calls");
      const std::string second =
          concat("rank 0 calls ", pair.words[0], ", rank 1 ", pair.words[1], ": all ranks must make the same calls");
      CHECK((words[0] == first || words[0] == second));
      CHECK((words[1] == first || words[1] == second));
    }
  }
}

TEST_CASE("a rank that makes another call is told to those that do not hear it themselves") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const auto words = run_ranks(5, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 400000}, in_time());
      if (!connected) return connected.error().message;
      if (group.rank == 2) return in_words(connected->communicator->barrier(in_time()));
      return in_words(reduce(*connected->communicator, 100000));
    });
    for (const std::string& one : words) {
      CAPTURE(one);
      CHECK(ddrun::test::tells_both_calls(one, "all_reduce of 100000 float, sum", "barrier"));
      CHECK(one.find("rank 2 ") != std::string::npos);
    }
  }
}

TEST_CASE("ranks that must agree and do not are told both values") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const auto words = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 64, group.rank == 2 ? "a=1 b=x" : "a=1 b=y"}, in_time());
      return connected ? "fine" : connected.error().message;
    });
    CHECK(words == std::vector<std::string>(3, "rank 0 has b=y, rank 2 has b=x: all ranks must have the same options"));
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

TEST_CASE("ranks with unequal options are told so") {
  const auto words = run_ranks(2, [](const Group& group) -> std::string {
    auto connected = connect(group, {Backend::shm, group.rank == 0 ? 1000U : 5000U}, in_time());
    return connected ? "fine" : connected.error().message;
  });
  CHECK(words[0].find("do all ranks have the same options?") != std::string::npos);
  CHECK(words[0].find("rank 1") != std::string::npos);
  CHECK(words[1].find("do all ranks have the same options?") != std::string::npos);
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

TEST_CASE("more memory than there is is refused with a clear message") {
  const auto connected = connect(Group{}, {Backend::shm, std::size_t{1} << 48U}, in_time());
  REQUIRE(!connected);
  CHECK(connected.error().code == Errc::unavailable);
  CHECK(connected.error().message.find("shared memory") != std::string::npos);
  CHECK(!connect(Group{}, {Backend::tcp, std::size_t{1} << 60U}, in_time()));
}

TEST_CASE("a name is no address to listen on") {
  const auto words = run_ranks(2, [](Group group) -> std::string {
    group.address = "no-such-host.invalid";
    auto connected = connect(group, {Backend::tcp, 8}, in_time());
    return connected ? "fine" : connected.error().message;
  });
  CHECK(words[0] == "'no-such-host.invalid' is not a numeric address");
  CHECK(words[1] == "rank 0: 'no-such-host.invalid' is not a numeric address");
}

TEST_CASE("a stranger that calls a rank is hung up on") {
  // Rank 0 is played by the test, so that it can call rank 1 twice: first with the wrong word, then not at all.
  const auto server = ddrun::test::started();
  const auto store = ddrun::test::connected(server->port());
  const auto store_of_rank_1 = ddrun::test::connected(server->port());
  Group group;
  group.rank = 1;
  group.size = 2;
  group.store = store_of_rank_1.get();
  group.prefix = "x/";
  Result<Connected> connected;
  std::thread rank([&] { connected = connect(group, {Backend::tcp, 8}, Clock::now() + 3s); });
  const auto line = store->get("x/who/1", in_time());
  REQUIRE(line);
  REQUIRE(store->set("x/who/all", *line + "\n" + *line, in_time()));
  REQUIRE(store->get("x/listening/1", in_time()));
  REQUIRE(store->set("x/listening/all", "ok\nok", in_time()));
  const auto where = store->get("x/ring/1", in_time());
  REQUIRE(where);
  const auto port = parse_integer(split(*where, ' ')[1], 1, 65535);
  REQUIRE(port);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(*port));
  const UniqueFd own(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in any{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
  REQUIRE(bind(own.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0);
  REQUIRE(listen(own.get(), 4) == 0);
  sockaddr_in bound{};
  socklen_t length = sizeof(bound);
  REQUIRE(getsockname(own.get(), reinterpret_cast<sockaddr*>(&bound), &length) == 0);
  const std::string mine = concat("127.0.0.1 ", ntohs(bound.sin_port), ' ', std::string(32, 'a'));
  REQUIRE(store->set("x/ring/all", mine + "\n" + *where, in_time()));

  const UniqueFd stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const std::string wrong(32, 'b');
  REQUIRE(send(stranger.get(), wrong.data(), wrong.size(), 0) == 32);
  char answer = 0;
  CHECK(recv(stranger.get(), &answer, 1, 0) == 0);  // end of file, long before rank 1 gives up
  rank.join();
  REQUIRE(!connected);
  CHECK(connected.error().message == "rank 0 did not connect in time");
}
