// What has to end ends though its output is not read, and says how much was lost.

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "../job.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/full_pipe.hpp"
#include "ddrun/test/terminal.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// Something that takes output until it is full.
struct Sink {
  std::string name;
  std::function<void()> in_child;  ///< makes it stdout and stderr, or one of them
};

/// The child's `streams` become a duplicate of `fd`.
std::function<void()> become(int fd, std::vector<int> streams) {
  return [fd, streams = std::move(streams)] {
    for (const int stream : streams) ::dup2(fd, stream);
  };
}

void check_lost(const std::string& report, const std::string& events) {
  CHECK(has(report, "\"console_error\": \"not read in time\""));
  CHECK(has(report, "\"output_complete\": false"));
  CHECK(has(last_line(events), "\"event\":\"output_lost\""));
  const std::uint64_t lost = nlohmann::json::parse(report)["console_bytes_lost"];
  CHECK(lost > 100'000);
  std::uint64_t told = 0;  // with --hosts by each machine
  for (const auto& line : split(events, '\n')) {
    if (has(line, "\"output_lost\"")) told += nlohmann::json::parse(line)["bytes"].get<std::uint64_t>();
  }
  CHECK(told == lost);
}

/// A full pipe that is the job's stdout, stderr or both.
RunOptions full(const FullPipe& pipe, std::vector<int> streams) {
  RunOptions options;
  options.in_child = become(pipe.write_end(), std::move(streams));
  return options;
}

/// It has begun, and runs longer than a reader is waited for after a signal.
bool waits(const Run& run) {
  return wait_until([&] { return !run.living().empty(); }) && !run.all_gone(1500ms);
}

/// Its processes have written something, and none has read or written more for a while.
bool stands_still(const Run& run) {
  std::string before;
  auto since = Clock::now();
  return wait_until([&] {
    std::string now;
    for (const pid_t pid : run.living()) now += read_file(concat("/proc/", pid, "/io"));
    if (std::exchange(before, now) != now) since = Clock::now();
    return !now.empty() && Clock::now() - since > 700ms;
  });
}

}  // namespace

TEST_CASE("A job whose output is not read ends by one signal or at its time limit") {
  const TemporaryDirectory dir;
  REQUIRE(::mkfifo(dir.file("fifo").c_str(), 0600) == 0);
  const UniqueFd fifo(::open(dir.file("fifo").c_str(), O_RDWR | O_CLOEXEC));
  Terminal stopped, slow;
  stopped.make_raw();
  ::tcflow(stopped.tty.get(), TCOOFF);
  std::array<int, 2> pair{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0);
  const UniqueFd near(pair[0]), far(pair[1]);
  const std::vector<Sink> sinks{
      {"both", become(1, {2})},
      {"out", {}},
      {"err", become(2, {1})},
      {"fifo", become(fifo.get(), {1, 2})},
      {"socket", become(near.get(), {1, 2})},
      {"stopped terminal", become(stopped.tty.get(), {1, 2})},
      {"terminal", become(slow.tty.get(), {1})},
  };
  struct Job {
    std::string name, report, events;
    int signal;  ///< 0: by --timeout
    std::unique_ptr<Run> run;
  };
  std::vector<Job> jobs;
  const auto start = [&](const Sink& sink, int signal, Words words) {
    Job& one = jobs.emplace_back(Job{concat(sink.name, " ", signal), "", "", signal, nullptr});
    one.report = dir.file(concat("report", jobs.size()));
    one.events = dir.file(concat("events", jobs.size()));
    words.insert(words.end(),
                 {"-n", "2", "--shutdown-timeout=0.1", "--report=" + one.report, "--events=" + one.events});
    if (signal == 0) words.emplace_back("--timeout=1");
    RunOptions options;
    options.in_child = sink.in_child;
    one.run = std::make_unique<Run>(job(words, {"lines", "200000", "forever"}), options);
  };
  for (const Sink& sink : sinks) start(sink, SIGTERM, {});
  start(sinks[0], SIGINT, {"-v", "-v"});
  start(sinks[0], SIGHUP, {});
  start(sinks[0], 0, {});
  start(sinks[4], 0, {"-v", "-v"});
  for (Job& one : jobs) {
    CAPTURE(one.name);
    REQUIRE((one.signal == 0 || stands_still(*one.run)));
    if (one.signal != 0) one.run->signal(one.signal);
  }
  for (Job& one : jobs) {
    CAPTURE(one.name);
    REQUIRE(one.run->all_gone());
    CHECK(one.run->wait().code() == (one.signal == 0 ? 124 : -one.signal));
    check_lost(read_file(one.report), read_file(one.events));
  }
}

TEST_CASE("A job over hosts whose output is not read ends by one signal or at its time limit") {
  const TemporaryDirectory dir;
  const bool by_signal = GENERATE(true, false);
  Words words{"--hosts=localhost",
              "-n",
              "2",
              "--shutdown-timeout=0.1",
              "--report=" + dir.file("report"),
              "--events=" + dir.file("events")};
  if (!by_signal) words.emplace_back("--timeout=1");
  Run run(job(words, {"touch", dir.file("ready"), "lines", "400000", "forever"}));
  REQUIRE(wait_until([&] { return ::access(dir.file("ready").c_str(), F_OK) == 0; }));
  if (by_signal) {
    REQUIRE(stands_still(run));
    run.signal(SIGTERM);
  }
  REQUIRE(run.all_gone(30s));
  CHECK(run.wait().code() == (by_signal ? -SIGTERM : 124));
  check_lost(read_file(dir.file("report")), read_file(dir.file("events")));
}

TEST_CASE("What a job over hosts wrote before it went well is not given up at its time limit") {
  const std::string inner = std::string(DDRUN_TEST_DDRUN) + " --hosts=localhost -n 2 --timeout=3 " + DDRUN_TEST_WORKER +
                            " lines 43000; echo code $? >&2";
  const auto outcome = finish({"/bin/sh", "-c", "(" + inner + ") | (sleep 6; wc -l)"});
  DDRUN_SHOW(outcome);
  CHECK(outcome.out == "86000\n");
  CHECK(outcome.err == "code 0\n");
}

TEST_CASE("The report of many failures waits for its reader, and after a signal not, with the job's own status") {
  FullPipe pipe;
  const TemporaryDirectory dir;
  const bool to_end = GENERATE(true, false);
  Run run(job({"-n", "64", "--report=" + dir.file("report"), "--log-dir=" + dir.path(), "--redirects=3"},
              {"error", std::string(1000, 'e'), "touch", dir.file("ready"), "exit", "3"}),
          full(pipe, {2}));
  REQUIRE(wait_until([&] { return ::access(dir.file("ready").c_str(), F_OK) == 0; }));
  REQUIRE(wait_until([&] { return descendants_of(run.pid()).size() == 2; }));
  if (to_end) {
    run.signal(SIGTERM);
    CHECK(run.all_gone());
    CHECK(has(read_file(dir.file("report")), "\"console_error\": \"not read in time\""));
  } else {
    CHECK(waits(run));
    CHECK(pipe.wait_for("ddrun: error: "));
    CHECK(run.all_gone());
    CHECK(has(read_file(dir.file("report")), "\"console_bytes_lost\": 0,"));
  }
  CHECK(run.wait().code() == 3);
}

TEST_CASE("A FIFO for the report whose reader does not read is given up after a signal") {
  const TemporaryDirectory dir;
  const std::string report = dir.file("report");
  REQUIRE(::mkfifo(report.c_str(), 0600) == 0);
  const UniqueFd reader(::open(report.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::fcntl(reader.get(), F_SETPIPE_SZ, 4096) > 0);
  Run run(job({"-n", "16", "--report=" + report, "--events=" + dir.file("events")}, {"exit", "3"}));
  REQUIRE(wait_until([&] { return has(read_file(dir.file("events")), "\"verdict\""); }));
  run.signal(SIGINT);
  CHECK(run.all_gone());
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 3);
  CHECK(has(outcome.err, "--report: cannot write " + report + ": Resource temporarily unavailable"));
}

TEST_CASE("Before and after a job nothing waits for a reader once ddrun is told to end") {
  const FullPipe pipe;
  SECTION("wrong usage") {
    Run run(command({"--no-such-option", "true"}), full(pipe, {2}));
    CHECK(waits(run));
    run.signal(SIGTERM);
    CHECK(run.all_gone());
    CHECK(run.wait().code() == -SIGTERM);
  }
  SECTION("a killed agent") {
    const TemporaryDirectory dir;
    Run run(job({"--label=none"}, {"touch", dir.file("ready"), "forever"}), full(pipe, {2}));
    REQUIRE(wait_until([&] { return ::access(dir.file("ready").c_str(), F_OK) == 0; }));
    const auto line = descendants_of(run.pid());  // sweeper, agent, worker
    REQUIRE(line.size() == 3);
    REQUIRE(run.signal(line[1], SIGKILL));
    CHECK(run.all_gone());
    CHECK(run.wait().code() == 125);
  }
  SECTION("a killed guard") {
    Run run(job({"-n", "64"}, {"error", std::string(1000, 'e'), "exit", "3"}), full(pipe, {2}));
    REQUIRE(wait_until([&] { return descendants_of(run.pid()).size() == 2; }));
    CHECK(waits(run));
    run.signal(SIGKILL);
    CHECK(run.all_gone());
  }
  SECTION("a store and a rendezvous") {
    for (const Words& words : {Words{"store", "--port=0", "--stats"}, Words{"rendezvous", "--port=0", "--insecure"}}) {
      for (const int before : {0, SIGUSR1}) {
        CAPTURE(words[0], before);
        Run run(command(words), full(pipe, {1}));
        CHECK(waits(run));
        if (before != 0) run.signal(before);
        run.signal(SIGTERM);
        CHECK(run.all_gone());
      }
    }
  }
}
