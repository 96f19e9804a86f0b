#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../job.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/full_pipe.hpp"

using namespace ddrun::test;

namespace {

std::string make_fifo(const TemporaryDirectory& dir, const std::string& name) {
  const std::string path = dir.file(name);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  return path;
}

}  // namespace

TEST_CASE("Events to a FIFO that nobody reads keep neither the start nor the end waiting") {
  const TemporaryDirectory dir;
  const auto outcome =
      finish(job({"-n", "2", "--events=" + make_fifo(dir, "events")}, {"touch", dir.file("ran"), "exit", "0"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(::access(dir.file("ran").c_str(), F_OK) == 0);
  CHECK(has(outcome.err, "ddrun: warning: --events: "));
  CHECK(has(outcome.err, " were lost (no reader takes them)"));
}

TEST_CASE("A FIFO has all events for a reader that comes late") {
  const TemporaryDirectory dir;
  const std::string fifo = make_fifo(dir, "events");
  Run run(job({"-n", "1", "--events=" + fifo}, {"touch", dir.file("ran"), "exit", "0"}));
  REQUIRE(wait_until([&] { return ::access(dir.file("ran").c_str(), F_OK) == 0; }));
  const std::string events = read_file(fifo);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.err.empty());
  CHECK(events.starts_with("{\"time\":"));
  CHECK(has(events, "\"event\":\"verdict\""));
}

TEST_CASE("Events to a pipe that is full do not keep ddrun from a signal") {
  const TemporaryDirectory dir;
  RunOptions options;
  const FullPipe full;
  options.in_child = [&full] { ::dup2(::fcntl(full.write_end(), F_DUPFD, 10), 9); };  // it may be 9 itself
  Run run(job({"-n", "2", "--events=/dev/fd/9"}, {"print", "ready", "forever"}), options);
  REQUIRE(run.wait_for_out("[1] ready"));
  run.signal(SIGTERM);
  CHECK(run.all_gone());
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(has(outcome.err, "stopped by SIGTERM"));
  CHECK(has(outcome.err, " were lost (no reader takes them)"));
}

TEST_CASE("Events on standard output tear no line of the workers") {
  // The console is full before the job ends: what is written beside its queue would stand amid a line.
  Run run(job({"-n", "4", "--events=/dev/stdout", "--shutdown-timeout=0.2"}, {"lines", "20000"}));
  REQUIRE(wait_until([&] { return run.living().size() == 7; }));
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  CHECK(outcome.code() == 0);
  std::size_t events = 0;
  std::size_t torn = 0;
  for (std::size_t at = 0; at < outcome.out.size();) {
    const std::size_t end = outcome.out.find('\n', at);
    REQUIRE(end != std::string::npos);
    const std::string_view line = std::string_view(outcome.out).substr(at, end - at);
    if (line.starts_with("{\"time\":") && line.ends_with("}")) ++events;
    else if (!line.starts_with("[") || has(line, "{")) ++torn;
    at = end + 1;
  }
  CHECK(torn == 0);
  CHECK(events >= 4);
  CHECK(count(outcome.out, "\n") == 80'000 + events);
}

TEST_CASE("A report to a FIFO that nobody reads is said, and the job is not lost with it") {
  const TemporaryDirectory dir;
  const std::string fifo = make_fifo(dir, "report");
  SECTION("without a reader") {
    const auto outcome = finish(job({"-n", "1", "--report=" + fifo}, {"exit", "3"}));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 3);
    CHECK(has(outcome.err, "--report: cannot write " + fifo + ": it has no reader"));
  }
  SECTION("with one that comes late") {
    Run run(job({"-n", "1", "--report=" + fifo}, {"touch", dir.file("ran"), "exit", "3"}));
    REQUIRE(wait_until([&] { return ::access(dir.file("ran").c_str(), F_OK) == 0; }));
    CHECK(has(read_file(fifo), "\"exit_code\": 3"));
    CHECK(run.wait().code() == 3);
    CHECK(run.all_gone());
  }
}

TEST_CASE("The loss of the reader of standard output is on stderr where the job goes on, as for its logs") {
  const TemporaryDirectory dir;
  Run run({"/bin/sh", "-c",
           "exec 3>&2; (" DDRUN_TEST_DDRUN " -n 2 --log-dir=" + dir.file("logs") + " sh -c 'while test ! -e " +
               dir.file("stop") + "; do echo y; done; true' 2>&3) | head -n 1"});
  CHECK(run.wait_for_err("ddrun: standard output has no reader any more; the job goes on, and Ctrl-C ends it\n"));
  write_file(dir.file("stop"), "");
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  CHECK(count(outcome.err, "has no reader") == 1);
}
