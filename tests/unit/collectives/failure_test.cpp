#include <cerrno>
#include <cstring>
#include <latch>
#include <mutex>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/collectives/all_reduce.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

std::string in_words(const Result<void>& result) { return result ? "fine" : result.error().message; }

}  // namespace

TEST_CASE("a rank that leaves is named by all others at once") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const auto words = run_ranks(4, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 1000}, in_time());
      if (!connected) return connected.error().message;
      if (auto met = connected->all_reduce->barrier(in_time()); !met) return met.error().message;
      if (group.rank == 2) return "left";
      const auto start = Clock::now();
      const auto summed = connected->all_reduce->sum_in_place(connected->all_reduce->recv_buffer(), in_time());
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
      Result<void> met = connected ? connected->all_reduce->barrier(in_time()) : tl::unexpected(connected.error());
      if (!met) {
        all_have_seen.count_down();
        return in_words(met);
      }
      std::call_once(once, [&] { deadline = Clock::now() + 200ms; });
      if (group.rank != 1) met = connected->all_reduce->barrier(deadline);
      const auto end = Clock::now();
      // What has failed once stays failed.
      const auto again = group.rank == 1 ? met : connected->all_reduce->barrier(in_time());
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
  store::MemoryStore store;
  Group group;
  group.size = 4;
  group.store = &store;
  group.prefix = "x/";
  const auto connected = connect(group, {Backend::automatic, 8}, Clock::now() + 100ms);
  REQUIRE(!connected);
  CHECK(connected.error().code == Errc::timeout);
  CHECK(connected.error().message == "ranks 1-3 did not come in time");
}

TEST_CASE("ranks that sum unequal counts are told so") {
  const auto words = run_ranks(2, [](const Group& group) -> std::string {
    auto connected = connect(group, {Backend::shm, 100000}, in_time());
    if (!connected) return connected.error().message;
    const std::size_t count = group.rank == 0 ? 4 : 90000;
    return in_words(connected->all_reduce->sum_in_place(connected->all_reduce->recv_buffer().first(count), in_time()));
  });
  CHECK(words[0] == "rank 1 sums 90000 elements, rank 0 4: all ranks must make the same calls");
  CHECK(words[1] == "rank 0 sums 4 elements, rank 1 90000: all ranks must make the same calls");
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
    AllReduce& all_reduce = *connected->all_reduce;
    const auto summed = all_reduce.sum(all_reduce.send_buffer(), all_reduce.recv_buffer().first(3), in_time());
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
  store::MemoryStore store;
  Group group;
  group.rank = 1;
  group.size = 2;
  group.store = &store;
  group.prefix = "x/";
  Result<Connected> connected;
  std::thread rank([&] { connected = connect(group, {Backend::tcp, 8}, Clock::now() + 3s); });
  const auto line = store.get("x/who/1", in_time());
  REQUIRE(line);
  REQUIRE(store.set("x/who/all", *line + "\n" + *line, in_time()));
  REQUIRE(store.get("x/listening/1", in_time()));
  REQUIRE(store.set("x/listening/all", "ok\nok", in_time()));
  const auto where = store.get("x/ring/1", in_time());
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
  REQUIRE(store.set("x/ring/all", mine + "\n" + *where, in_time()));

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
