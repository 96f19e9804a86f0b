#include "ddrun/inspect/stack_reader.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

namespace {

/// Reads, on this thread's io_context.
StackReader::Answer read(StackReader::Request request) {
  // Never destroyed, as an agent's: detached threads may still be posting to it at the end of the process.
  static auto& context = *new boost::asio::io_context;
  context.restart();
  StackReader reader(context.get_executor());
  std::optional<StackReader::Answer> answer;
  std::thread::id called_on;
  reader.async_read(std::move(request), [&](StackReader::Answer read) {
    answer = std::move(read);
    called_on = std::this_thread::get_id();
  });
  CHECK(!answer);
  context.run_for(std::chrono::seconds(20));
  REQUIRE(answer);
  CHECK(called_on == std::this_thread::get_id());
  return std::move(*answer);
}

}  // namespace

TEST_CASE("stacks of several ranks are read in order of rank, and written to the next file") {
  const test::TemporaryDirectory folder;
  const test::Run first({"sleep", "1000"});
  const test::Run second({"sleep", "1000"});
  for (const pid_t pid : {first.pid(), second.pid()}) {
    // Before exec() it has the threads of a sanitizer.
    REQUIRE(test::wait_until([&] { return read_small_file(concat("/proc/", pid, "/comm")).value_or("") == "sleep"; }));
  }
  for (const int number : {1, 2}) {
    const auto answer = read({"for a test", {{{"", 0}, first.pid()}, {{"", 1}, second.pid()}}, folder.file("stacks-")});
    CHECK(answer.file_error.empty());
    CHECK(answer.file == folder.file(concat("stacks-", number, ".txt")));
    CHECK(test::read_file(answer.file).find("for a test") != std::string::npos);
    REQUIRE(answer.page.ranks.size() == 2);
    CHECK(answer.page.ranks[0].pid == first.pid());
    CHECK(answer.page.ranks[1].pid == second.pid());
    for (const RankStacks& rank : answer.page.ranks) {
      CAPTURE(rank.note);
      CHECK(rank.threads.size() == 1);
    }
  }
}

TEST_CASE("a process that has ended is said to have, and others are still read") {
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  REQUIRE(ended > 0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT) == 0);
  const test::Run living({"sleep", "1000"});
  auto answer = read({"", {{{"", 0}, ended}, {{"", 1}, living.pid()}}, ""});
  REQUIRE(answer.page.ranks.size() == 2);
  REQUIRE(answer.page.ranks[0].threads.size() == 1);
  CHECK(answer.page.ranks[0].threads[0].doing == "has ended");
  CHECK(answer.page.ranks[1].threads.size() == 1);
  CHECK(answer.file.empty());
  CHECK(answer.file_error.empty());

  ::waitpid(ended, nullptr, 0);
  answer = read({"", {{{"", 0}, ended}, {{"", 1}, living.pid()}}, ""});
  CHECK(answer.page.ranks[0].threads.empty());
  CHECK(answer.page.ranks[1].threads.size() == 1);
}

TEST_CASE("the answer has the text in the format that is asked for, and of each rank the main thread") {
  const test::Run run({DDRUN_NATIVE_STACKS, "threads"});
  StackReader::Request request{"", {{{"", 0}, run.pid()}}, "", StackReader::Request::Format::json};
  StackReader::Answer answer;
  REQUIRE(test::wait_until([&] {
    answer = read(request);
    return nlohmann::json::parse(answer.text)["ranks"][0]["threads"].size() > 1;
  }));
  CHECK(answer.page.ranks[0].threads.size() == 1);
  request.format = StackReader::Request::Format::text;
  CHECK(read(request).text.starts_with("where the ranks of this machine are:\n  rank 0 (pid "));
  request.format = StackReader::Request::Format::all_threads;
  CHECK(read(request).text.find(" threads\n  thread ") != std::string::npos);
}

TEST_CASE("without a rank to read the page is empty") { CHECK(read({"", {}, ""}).page.ranks.empty()); }

TEST_CASE("a page that cannot be written says why") {
  const test::TemporaryDirectory folder;
  const auto answer = read({"", {{{"", 0}, ::getpid()}}, folder.file("missing/stacks-")});
  CHECK(answer.file.empty());
  CHECK(answer.file_error.find("missing/stacks-1.txt: No such file or directory") != std::string::npos);
  CHECK(answer.page.ranks.size() == 1);
}

TEST_CASE("the number of pages in a directory is limited") {
  const test::TemporaryDirectory folder;
  for (int number = 1; number <= 10; ++number) test::write_file(folder.file(concat("stacks-", number, ".txt")), "");
  const auto answer = read({"", {{{"", 0}, ::getpid()}}, folder.file("stacks-")});
  CHECK(answer.file.empty());
  CHECK(answer.file_error.find("too many") != std::string::npos);
}

TEST_CASE("a reader that is destroyed meanwhile calls nothing") {
  static auto& context = *new boost::asio::io_context;
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  std::thread([] {}).join();  // with the first one a sanitizer starts one of its own
  const auto before = threads();
  auto reader = std::make_unique<StackReader>(context.get_executor());
  bool called = false;
  reader->async_read({"", {{{"", 0}, ::getpid()}}, ""}, [&](const StackReader::Answer&) { called = true; });
  reader.reset();
  context.run();  // until its timer is cancelled
  // By their number: one that has just begun has no name yet. One of a reading before may have counted.
  CHECK(test::wait_until([&] { return threads() <= before; }));
  context.restart();
  context.run();
  CHECK(!called);
}
