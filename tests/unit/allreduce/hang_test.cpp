#include "hang.hpp"

#include <thread>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/store.hpp"

using namespace ddrun;
using namespace ddrun::bench;
using namespace std::chrono_literals;

namespace {

using All = std::vector<std::optional<Whereabouts>>;
const Whereabouts kAhead{9, "all_reduce of 4 float, sum, call 9"};
const Whereabouts kBehind{7, "barrier, call 7"};

}  // namespace

TEST_CASE("those who say nothing are missing, not those who wait for them in an earlier call") {
  CHECK(who_is_missing(All{kAhead, std::nullopt, kBehind}, "") == "did not arrive: rank 1 says nothing");
  CHECK(who_is_missing(All{std::nullopt, kAhead, std::nullopt, std::nullopt}, "") ==
        "did not arrive: ranks 0,2,3 say nothing");
}

TEST_CASE("where all say something, those who are behind are missing") {
  CHECK(who_is_missing(All{kAhead, kBehind, kAhead}, "") ==
        "did not arrive: rank 1 has come no further than barrier, call 7");
  CHECK(who_is_missing(All{kAhead, kAhead}, "nobody") == "nobody");
}

TEST_CASE("ranks that are still starting when others hang say so, and name who does not") {
  const auto server = test::started();
  std::vector<std::unique_ptr<store::TcpClient>> clients;
  for (int rank = 0; rank < 2; ++rank) clients.push_back(test::connected(server->port()));
  std::vector<std::optional<std::string>> words(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const collectives::Group group{rank, 3, clients[static_cast<std::size_t>(rank)].get(), "run/"};
      const Error others{Errc::timeout, "rank 2 sent nothing in time"};
      words[static_cast<std::size_t>(rank)] = explain_hang_at_start(others, group, Clock::now(), Milliseconds(100));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(words == std::vector<std::optional<std::string>>{"did not arrive: rank 2 says nothing", std::nullopt});
}

TEST_CASE("a start that fails by a deadline that is not its own fails by another rank's hang") {
  const Deadline far = Clock::now() + 1h;
  CHECK(is_others_hang({Errc::timeout, ""}, far));
  CHECK_FALSE(is_others_hang({Errc::timeout, ""}, Clock::now() - 1s));
  CHECK_FALSE(is_others_hang({Errc::connection_lost, ""}, far));
}
