#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "../job.hpp"

using namespace ddrun::test;
using Clock = std::chrono::steady_clock;

TEST_CASE("A stopped worker hears of the end too") {
  const TemporaryDirectory dir;
  const auto begin = Clock::now();
  Run run(job({"-n", "2", "--shutdown-timeout=20"},
              {"tell", "TERM", "rank", "1", "touch", dir.file("stopping"), "stop", "print", "woke up", "exit", "0", ";",
               "await", dir.file("go"), "exit", "1"}));
  REQUIRE(wait_until([&] {
    for (const pid_t pid : descendants_of(run.pid())) {
      if (is_stopped(pid)) return true;
    }
    return false;
  }));
  write_file(dir.file("go"), "");
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 1);
  CHECK(has(outcome.out, "[1] got TERM\n"));
  CHECK(has(outcome.out, "[1] woke up\n"));
  CHECK(Clock::now() - begin < std::chrono::seconds(15));
}

TEST_CASE("Who has not ended within the grace time is killed and this is said") {
  const TemporaryDirectory dir;
  const auto begin = Clock::now();
  const auto outcome =
      finish(job({"-n", "2", "--shutdown-timeout=0.3"}, {"rank", "0", "await", dir.file("deaf"), "exit", "1", ";",
                                                         "ignore", "TERM", "touch", dir.file("deaf"), "forever"}));
  const auto took = Clock::now() - begin;
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 1);
  CHECK(has(outcome.err, "1 worker has not ended within 0.3 s: SIGKILL"));
  CHECK(last_line(outcome.err) == "  others:  rank 1 killed by ddrun (SIGKILL)");
  CHECK(took >= std::chrono::milliseconds(300));
}

TEST_CASE("Who is waited for after the last worker is named and the first Ctrl-C ends it") {
  for (const char* code : {"0", "3"}) {
    const TemporaryDirectory dir;
    Run run(job({"--shutdown-timeout=600"}, {"child", "ignore", "TERM", "ignore", "INT", "touch", dir.file("deaf"),
                                             "forever", ";", "await", dir.file("deaf"), "exit", code}));
    REQUIRE(run.wait_for_err("all workers have ended; waiting for what they have left: pid "));
    CHECK(has(run.err(), "(ddrun_test_work)"));
    run.signal(SIGINT);
    const auto outcome = run.wait();
    CHECK(run.all_gone());
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == std::atoi(code));
    CHECK(has(outcome.err, "killing what the workers have left"));
  }
}

TEST_CASE("A watchdog timer of a worker's child is the reason of its end only if the worker has none of its own") {
  // The child's timer expired long ago.
  const std::string lose_child =
      "test $RANK = 0 || exec sleep 1000; sleep 1000 & child=$!; echo '{\"version\": 1, \"pid\": '$child', "
      "\"scope_id\": \"load\", "
      "\"expiration_time\": 1, \"signal\": 9}' >$TORCHELASTIC_TIMER_FILE; wait $child; ";
  const std::string raise =
      "echo 'Traceback (most recent call last):' >&2; echo '  File \"a.py\", line 1, in f' >&2; "
      "echo 'ValueError: of its own' >&2; ";
  RunOptions options;
  options.env = {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}};
  for (const bool raises : {false, true}) {
    CAPTURE(raises);
    const auto outcome =
        finish(command({"-n", "2", "/bin/sh", "-c", lose_child + (raises ? raise : "") + "exit 3"}), options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 3);
    CHECK(has(outcome.err, "rank 0: watchdog timer load of its process "));
    const std::string report = outcome.err.substr(outcome.err.find("ddrun: error: "));
    CHECK(has(report, "watchdog timer load of its process ") != raises);
    CHECK(has(report, "ValueError: of its own") == raises);
  }
}

TEST_CASE("With --end-with-parent a job ends in order when the process that started ddrun has ended") {
  for (const bool killed : {true, false}) {
    const TemporaryDirectory dir;
    std::string script;
    for (const auto& word :
         job({"--end-with-parent", "-n", "2", "--shutdown-timeout=600"}, {"print", "ready", "forever"})) {
      script += word + " ";
    }
    script +=
        "& " + (killed ? std::string("exec sleep 1000") : "until [ -e " + dir.file("go") + " ]; do sleep 0.01; done");
    Run run({"/bin/sh", "-c", script});
    REQUIRE(run.wait_for_out("[1] ready"));
    if (killed) run.signal(SIGKILL);
    else write_file(dir.file("go"), "");
    const auto outcome = run.wait();
    CHECK(run.all_gone());
    DDRUN_SHOW(outcome);
    CHECK(has(outcome.err, "SIGTERM from --end-with-parent"));
    CHECK(last_line(outcome.err) == "  workers: ranks 0,1 stopped by ddrun");
  }
}

TEST_CASE("A job that is being ended keeps its time when its parent ends too") {
  const TemporaryDirectory dir;
  std::string script;
  for (const auto& word :
       job({"--end-with-parent", "-n", "2", "--shutdown-timeout=600"},
           {"tell", "TERM", "print", "ready", "heard", "1", "await", dir.file("go"), "print", "done"})) {
    script += word + " ";
  }
  Run run({"/bin/sh", "-c", script + "& exec sleep 1000"});
  REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == 2; }));
  REQUIRE(run.signal(descendants_of(run.pid()).front(), SIGTERM));
  REQUIRE(wait_until([&] { return count(run.out(), "got TERM\n") == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(1'100));  // a signal that comes later is a repeated one
  run.signal(SIGKILL);
  REQUIRE(wait_until([&] { return descendants_of(run.pid()).empty(); }));
  write_file(dir.file("go"), "");
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(count(outcome.out, "done\n") == 2);
  CHECK_FALSE(has(outcome.err, "again: killing"));
}
