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

TEST_CASE("shared memory tells of a peer that left before anybody needs it") {
  const auto words = run_ranks(3, [](const Group& group) -> std::string {
    auto connected = connect(group, {Backend::shm, 64}, in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    if (auto met = all.barrier(in_time()); !met) return met.error().message;
    if (group.rank == 1) return "left";
    std::optional<Error> trouble;
    for (const Deadline deadline = in_time(); !trouble && Clock::now() < deadline; trouble = all.trouble()) {
      std::this_thread::sleep_for(1ms);
    }
    if (!trouble) return "nothing";
    return trouble->code == Errc::connection_lost ? trouble->message : "wrong code: " + trouble->message;
  });
  // Who leaves after rank 1 is not told of: the first note stays.
  CHECK(words == std::vector<std::string>{"rank 1 is gone", "left", "rank 1 is gone"});
}
