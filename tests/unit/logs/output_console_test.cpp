// Output on consoles: whole lines, labels, terminals.

#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <thread>

#include "ddrun/base/text.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/terminal.hpp"
#include "output_harness.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using namespace ddrun::test;

namespace {

struct TerminalHarness : Terminal, OutputHarness {
  explicit TerminalHarness(int workers)
      : OutputHarness(workers, [this](OutputOptions& options) {
          make_raw();
          ::setenv("TERM", "xterm", 1);
          options.console_out = options.console_err = tty.get();
          options.log.fold = options.log.color = When::never;
          options.log.progress = Progress::all;
        }) {
    start();
  }
  /// Runs until the screen shows exactly `text` since the last call.
  bool shows(const std::string& text) {
    std::string seen;
    const bool same = run_until([&] {
      seen += shown();
      return seen.size() >= text.size();
    });
    CHECK(seen == text);
    return same;
  }
};

}  // namespace

TEST_CASE("one worker inherits both streams and several get a rank before each line") {
  OutputHarness one(1);
  one.start();
  CHECK_FALSE(one.workers[0].out);
  CHECK_FALSE(one.workers[0].err);
  CHECK(one.output->descriptors_per_worker(0) == 0);
  CHECK(one.output->console_shows_stderr(0));

  OutputHarness two(2);
  two.start();
  CHECK(two.output->descriptors_per_worker(0) == 2);
  put(two.workers[0].out, "hello\nwor");
  put(two.workers[1].out, "other\n");
  put(two.workers[1].err, "trouble\n");
  CHECK(two.run_until([&] { return two.shown_out.size() >= 22 && !two.shown_err.empty(); }));
  CHECK(two.shown_out == "[10] hello\n[11] other\n");
  CHECK(two.shown_err == "[11] trouble\n");
  put(two.workers[0].out, "ld\nno newline");
  CHECK(two.end());
  CHECK(two.shown_out == "[10] hello\n[11] other\n[10] world\n[10] no newline\n");
  two.output->remove_if_unused();
  CHECK(::access(two.output->root().c_str(), F_OK) != 0);
}

TEST_CASE("bursts of many workers never tear a line and keep each worker's order") {
  constexpr int workers = 64;
  constexpr int lines = 200;
  OutputHarness h(workers);
  h.start();
  std::vector<std::thread> writers;
  for (int i = 0; i < workers; ++i) {
    writers.emplace_back([&h, i] {
      // Cut anywhere, so that most writes end in the middle of a line.
      std::string all;
      for (int n = 0; n < lines; ++n)
        all += concat("w", i, " n", n, ' ', std::string(static_cast<std::size_t>(n), 'x'), '\n');
      for (std::size_t at = 0; at < all.size(); at += 997) {
        push(h.workers[static_cast<std::size_t>(i)].out, std::string_view(all).substr(at, 997));
      }
      h.workers[static_cast<std::size_t>(i)].out.reset();
    });
  }
  std::size_t bytes = 0;
  for (int i = 0; i < workers; ++i) {
    for (int n = 0; n < lines; ++n) {
      bytes += concat('[', 10 + i, "] w", i, " n", n, ' ').size() + static_cast<std::size_t>(n) + 1;
    }
  }
  CHECK(h.run_until([&] { return h.shown_out.size() >= bytes; }));
  for (std::thread& writer : writers) writer.join();
  CHECK(h.end());
  std::map<int, int> next;
  int torn = 0;
  for (const std::string& line : split(h.shown_out, '\n')) {
    if (line.empty()) continue;
    int rank = 0;
    int worker = 0;
    int number = 0;
    int length = 0;
    const bool read = std::sscanf(line.c_str(), "[%d] w%d n%d %n", &rank, &worker, &number, &length) == 3;
    const std::string tail = line.substr(static_cast<std::size_t>(length));
    const bool whole = read && rank == worker + 10 && tail == std::string(static_cast<std::size_t>(number), 'x');
    if (!whole || next[worker]++ != number) ++torn;
  }
  CHECK(torn == 0);
  CHECK(next.size() == workers);
  CHECK(h.shown_out.size() == bytes);
}

TEST_CASE("a line of a megabyte comes out whole between others") {
  OutputHarness h(2);
  h.start();
  const std::string line(1'000'000, 'z');
  std::thread big([&] {
    push(h.workers[0].out, line);
    push(h.workers[0].out, "\n");
    h.workers[0].out.reset();
  });
  std::thread small([&] {
    for (int i = 0; i < 1000; ++i) push(h.workers[1].out, "small\n");
    h.workers[1].out.reset();
  });
  const std::size_t bytes = 5 + line.size() + 1 + 1000 * 11;
  CHECK(h.run_until([&] { return h.shown_out.size() >= bytes; }));
  big.join();
  small.join();
  CHECK(h.end());
  CHECK(h.shown_out.size() == bytes);
  CHECK(h.shown_out.find("[10] " + line + "\n") != std::string::npos);
}

TEST_CASE("progress bars and odd bytes pass with a prefix per piece") {
  OutputHarness h(2, [](OutputOptions& options) { options.log.progress = Progress::all; });
  h.start();
  put(h.workers[0].out, std::string_view("10%\r20%\rdone\r\n\0\xfe\x1b[1mbold\n", 24));
  CHECK(h.end());
  CHECK(h.shown_out == std::string("[10] 10%\r[10] 20%\r[10] done\r\n[10] \0\xfe\x1b[1mbold\n", 45));
}

TEST_CASE("an unfinished line waits for its end where the console is no terminal") {
  OutputHarness h(2, [](OutputOptions& options) { options.idle_flush_delay = Milliseconds(1); });
  h.start();
  put(h.workers[0].out, "half ");
  h.io.restart();
  while (h.io.run_for(std::chrono::milliseconds(30)) > 0) h.io.restart();  // ends only if no timer keeps it going
  h.collect();
  CHECK(h.shown_out.empty());
  put(h.workers[0].out, "whole\n");
  CHECK(h.run_until([&] { return h.shown_out == "[10] half whole\n"; }));
}

TEST_CASE("a terminal shows a prompt after a short delay and other lines start on a new one") {
  TerminalHarness h(2);
  const auto before = Clock::now();
  put(h.workers[0].out, "name? ");
  CHECK(h.shows("[10] name? "));
  CHECK(Clock::now() - before >= std::chrono::milliseconds(150));
  SECTION("the same worker goes on") {
    put(h.workers[0].out, "Bob\n");
    CHECK(h.shows("Bob\n"));
  }
  SECTION("another worker writes") {
    put(h.workers[1].out, "hello\n");
    CHECK(h.shows("\n[11] hello\n"));
    put(h.workers[0].out, "Bob\n");
    CHECK(h.shows("[10] Bob\n"));
  }
  SECTION("ddrun writes") {
    h.output->console_line("ddrun: stopping\n");
    CHECK(h.shows("\nddrun: stopping\n"));
  }
  SECTION("the worker ends") {
    CHECK(h.end());
    CHECK(h.shows("\n"));
  }
}

TEST_CASE("on a terminal a progress bar is wiped before another worker writes over it") {
  TerminalHarness h(2);
  put(h.workers[0].out, "50% #####\r60% ");
  CHECK(h.shows("[10] 50% #####\r[10] 60% "));
  put(h.workers[0].out, "\r");
  put(h.workers[0].out, "7");
  CHECK(h.shows("\r[10] 7"));
  put(h.workers[0].out, "\r8");
  put(h.workers[1].out, "hi\n");
  const bool wiped = h.shows("\r\033[K[11] hi\n[10] 8");
  CHECK(wiped);
}

TEST_CASE("messages of ddrun follow earlier output and start on a new line") {
  OutputHarness h(2);
  h.start();
  put(h.workers[0].err, "last words\n");
  h.output->drain(0);
  h.output->console_line("ddrun: rank 10 ended\n");
  CHECK(h.run_until([&] { return h.shown_err == "[10] last words\nddrun: rank 10 ended\n"; }));
  CHECK(h.tail(0, 5) == std::vector<std::string>{"last words"});
}

TEST_CASE("stdout and stderr on the same console keep their order") {
  const TemporaryDirectory dir;
  OutputHarness h(3, [&](OutputOptions& options) {
    options.console_err = options.console_out;
    options.log.dir = dir.path();
    options.programs[0].streams.redirects.by_local_rank[1] = Streams::out;
    options.programs[0].streams.tee.by_local_rank[2] = Streams::both;
  });
  h.start();
  CHECK(h.output->descriptors_per_worker(0) == 1);
  CHECK(h.output->descriptors_per_worker(1) == 1);  // of stderr; stdout has its file
  CHECK(h.output->descriptors_per_worker(2) == 4);
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    put(h.workers[0].out, "out\n");
    put(h.workers[0].err, "err\n");
    expected += "[10] out\n[10] err\n";
  }
  CHECK(h.tail(0, 2) == std::vector<std::string>{"out", "err"});
  put(h.workers[1].out, "to its file\n");
  CHECK(h.end());
  CHECK(h.shown_out == expected);
  CHECK(read_file(h.output->stdout_log(1)) == "to its file\n");
}

TEST_CASE("the tail still has a traceback when buffered stdout follows on the same stream") {
  OutputHarness h(2, [](OutputOptions& options) { options.console_err = options.console_out; });
  h.start();
  std::string trace = "Traceback (most recent call last):\n";
  while (trace.size() < 14'000) trace += "  File \"train.py\", line 3, in f\n";
  put(h.workers[0].err, std::string(40'000, 'x') + '\n' + trace);
  h.output->drain(0);
  for (int i = 0; i < 9; ++i) put(h.workers[0].out, std::string(1023, 'y') + '\n');
  h.output->drain(0);
  const auto tail = h.tail(0, 5000);
  CHECK(std::find(tail.begin(), tail.end(), "Traceback (most recent call last):") != tail.end());
  CHECK(h.end());
}

TEST_CASE("local ranks that are filtered out are not shown") {
  OutputHarness h(3, [](OutputOptions& options) { options.programs[0].streams.local_ranks_filter = std::set<int>{2}; });
  h.start();
  struct stat null {};
  struct stat given {};
  REQUIRE(::stat("/dev/null", &null) == 0);
  REQUIRE(::fstat(h.workers[0].out.get(), &given) == 0);
  CHECK(given.st_rdev == null.st_rdev);
  CHECK_FALSE(h.output->console_shows_stderr(0));
  CHECK(h.output->console_shows_stderr(2));
  put(h.workers[0].out, "silence\n");
  put(h.workers[2].out, "speech\n");
  CHECK(h.end());
  CHECK(h.shown_out == "[12] speech\n");
}
