#include "process_reader.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

namespace {

/// The program that is shown for a worker; waits until it is that one, and its state a sleeping one.
bool shows(const test::Run& worker, const std::string& program) {
  return test::wait_until([&] {
    TcpPeers peers;
    const RankStacks stacks = read_facts(0, worker.pid(), peers);
    return stacks.program == program && stacks.threads[0].state == 'S' && (stacks.child != 0) == (program == "sleep");
  });
}

}  // namespace

TEST_CASE("of a worker that waits for one child, the child is shown") {
  CHECK(shows(test::Run({"sh", "-c", "sleep 1000; true"}), "sleep"));
  CHECK(shows(test::Run({"sh", "-c", "sh -c 'sleep 1000; true'; true"}), "sleep"));
  CHECK(shows(test::Run({DDRUN_NATIVE_STACKS, "launch"}), "sleep"));
}

TEST_CASE("a worker is shown itself if its child does something else, or is one of several") {
  // A tool whose output it reads or drops.
  CHECK(shows(test::Run({DDRUN_NATIVE_STACKS, "launch-quiet"}), "ddrun_native_st"));
  CHECK(shows(test::Run({"sh", "-c", "sleep 1000 & sleep 1001; true"}), "sh"));
}

TEST_CASE("frames above a limit are counted, those of the main thread kept first") {
  const test::Run worker({DDRUN_NATIVE_STACKS, "threads"});
  RankStacks stacks;
  const auto read = [&](std::size_t bytes) {
    TcpPeers peers;
    ProcessCache cache;
    stacks = read_facts(0, worker.pid(), peers);
    read_stacks(stacks, cache, peers, {true, bytes, Deadline::max()});
    return stacks.threads.size() == 3 && (bytes < 10000 || stacks.threads[1].native.size() > 1);
  };
  REQUIRE(test::wait_until([&] { return read(1'000'000); }));
  const RankStacks whole = stacks;
  REQUIRE(test::wait_until([&] { return read(1000); }));
  REQUIRE(!stacks.threads[0].native.empty());
  CHECK(stacks.threads[0].native.size() + stacks.threads[0].native_left_out == whole.threads[0].native.size());
  CHECK(stacks.threads[2].native.empty());
  CHECK(stacks.threads[2].native_left_out == whole.threads[2].native.size());
}
