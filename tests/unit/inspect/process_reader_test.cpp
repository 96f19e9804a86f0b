#include "process_reader.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

namespace {

const std::vector<std::string> python{"python3", "-c", "import time; time.sleep(1000)"};

test::Run launcher(const std::string& kind, const std::vector<std::string>& child) {
  std::vector<std::string> command{DDRUN_NATIVE_STACKS, kind};
  command.insert(command.end(), child.begin(), child.end());
  return test::Run(command);
}

/// The program that is shown for a worker; waits until it is that one, and its state a sleeping one.
bool shows(const test::Run& worker, const std::string& program) {
  return test::wait_until([&] {
    TcpTables tables;
    const RankStacks stacks = read_facts(0, worker.pid(), tables);
    return stacks.program == program && stacks.threads[0].state == 'S' &&
           (stacks.child != 0) == (program == "sleep" || program == "python3");
  });
}

/// Whether the child, which has executed its program, is not shown.
bool shows_itself(const test::Run& worker) {
  const auto executed = [&](pid_t pid) {
    const std::string name = read_small_file(concat("/proc/", pid, "/comm")).value_or("");
    return name.starts_with("sleep") || name.starts_with("python3");
  };
  return test::wait_until([&] {
           const auto living = worker.living();
           return std::any_of(living.begin(), living.end(), executed);
         }) &&
         shows(worker, "ddrun_native_st");
}

}  // namespace

TEST_CASE("of a worker that waits for one child, the child is shown") {
  CHECK(shows(test::Run({"sh", "-c", "sleep 1000; true"}), "sleep"));
  CHECK(shows(test::Run({"sh", "-c", "sh -c 'sleep 1000; true'; true"}), "sleep"));
  CHECK(shows(launcher("launch", python), "python3"));
}

TEST_CASE("a worker is shown itself if its child does something else, or is one of several") {
  // A tool whose output it reads or drops, a helper, and one of a rank that waits for a peer.
  CHECK(shows(launcher("launch-quiet", python), "ddrun_native_st"));
  CHECK(shows_itself(launcher("launch", {"sleep", "1000"})));
  CHECK(shows_itself(launcher("launch-receive", python)));
  CHECK(shows(test::Run({"sh", "-c", "sleep 1000 & sleep 1001; true"}), "sh"));
}

TEST_CASE("who has a worker's own input open is not what it waits for") {
  test::RunOptions options;
  options.in_child = [] {
    int ends[2] = {};
    if (::pipe(ends) == 0) ::dup2(ends[0], 0);
  };
  const test::Run worker({"sh", "-c", "exec 3<&0; sleep 1000 <&3 & read -r line"}, options);
  RankStacks stacks;
  REQUIRE(test::wait_until([&] {
    TcpTables tables;
    ProcessCache cache;
    stacks = read_facts(0, worker.pid(), tables);
    read_stacks(stacks, cache, tables, {false, 1000, Deadline::max()});
    const bool reads = !stacks.threads.empty() && stacks.threads[0].doing == "reads a pipe";
    return worker.living().size() == 2 && reads && stacks.program == "sh";  // a new process reads one, too
  }));
  CHECK(stacks.awaited.empty());
}

TEST_CASE("a child at a pipe is found behind hundreds of its files") {
  const test::Run worker({"python3", "-c",
                          "import os, time\n"
                          "r, w = os.pipe()\n"
                          "if os.fork() == 0: os.dup2(w, 900), os.close(w), os.close(r), time.sleep(1000)\n"
                          "os.close(w)\n"
                          "os.read(r, 1)"});
  CHECK(test::wait_until([&] {
    TcpTables tables;
    ProcessCache cache;
    RankStacks stacks = read_facts(0, worker.pid(), tables);
    read_stacks(stacks, cache, tables, {false, 1000, Deadline::max()});
    if (stacks.awaited.size() != 1 || stacks.awaited[0].threads.empty()) return false;
    return stacks.awaited[0].threads[0].doing == "sleeps";
  }));
}

TEST_CASE("what there was no time for is said") {
  const test::Run worker({"sleep", "1000"});
  TcpTables tables;
  ProcessCache cache;
  RankStacks stacks = read_facts(0, worker.pid(), tables);
  read_stacks(stacks, cache, tables, {true, 1000, Deadline{}});
  CHECK(stacks.threads.size() == 1);
  CHECK(stacks.note == "no stack: there was no time left");
}

TEST_CASE("frames above a limit are counted, those of the main thread kept first") {
  const test::Run worker({DDRUN_NATIVE_STACKS, "threads"});
  RankStacks stacks;
  const auto read = [&](std::size_t bytes) {
    TcpTables tables;
    ProcessCache cache;
    stacks = read_facts(0, worker.pid(), tables);
    read_stacks(stacks, cache, tables, {true, bytes, Deadline::max()});
    const auto waits = [&](const ThreadStack& thread) { return bytes < 10000 || thread.native.size() > 1; };
    return stacks.threads.size() == 3 && std::ranges::all_of(stacks.threads, waits);
  };
  REQUIRE(test::wait_until([&] { return read(1'000'000); }));
  const RankStacks whole = stacks;
  REQUIRE(test::wait_until([&] { return read(1000); }));
  REQUIRE(!stacks.threads[0].native.empty());
  CHECK(stacks.threads[0].native.size() + stacks.threads[0].native_left_out == whole.threads[0].native.size());
  CHECK(stacks.threads[2].native.empty());
  CHECK(stacks.threads[2].native_left_out == whole.threads[2].native.size());
}
