// Programs whose file system does not answer: execve() hangs, and ddrun goes on with everything else.

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace std::chrono_literals;

namespace {

/// A job in which `program`, a part of a path, is not executed until the file "until" exists.
struct HeldJob {
  test::TemporaryDirectory dir;
  std::unique_ptr<test::Run> run;

  void start(const std::string& program, const std::vector<std::string>& arguments, int after = 0) {
    test::RunOptions options;
    options.env = {{"DDRUN_TEST_HELD_PATH", program},
                   {"DDRUN_TEST_HELD_UNTIL", dir.file("until")},
                   {"DDRUN_TEST_HELD_AFTER", std::to_string(after)}};
    std::vector<std::string> words{DDRUN_TEST_HELD_EXEC, DDRUN_TEST_DDRUN};
    words.insert(words.end(), arguments.begin(), arguments.end());
    run = std::make_unique<test::Run>(words, options);
    const bool is_held = test::wait_until([&] { return ::access(dir.file("until.held").c_str(), F_OK) == 0; });
    if (is_held) return;
    const auto outcome = run->wait();
    if (outcome.code() == 77) test::skip(outcome.err);
    FAIL(outcome.err);
  }
};

const std::string worker_name = "/ddrun_test_worker";

}  // namespace

TEST_CASE("a signal ends a job whose program is not executed") {
  HeldJob job;
  job.start(worker_name, {"-n", "12", DDRUN_TEST_WORKER, "forever"}, GENERATE(0, 3, 11));
  job.run->signal(SIGTERM);
  const auto outcome = job.run->wait(10s);
  INFO(outcome.err);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(job.run->all_gone());
}

TEST_CASE("a time limit and the failure of another worker end it too") {
  HeldJob job;
  const bool limit = GENERATE(true, false);
  if (limit) job.start(worker_name, {"-n", "2", "--timeout=1", DDRUN_TEST_WORKER, "forever"}, 1);
  else job.start(worker_name, {"-n", "2", DDRUN_TEST_WORKER, "await", job.dir.file("until.held"), "exit", "3"}, 1);
  const auto outcome = job.run->wait(10s);
  INFO(outcome.err);
  CHECK(outcome.code() == (limit ? 124 : 3));
  CHECK(job.run->all_gone());
}

TEST_CASE("events are handled while a program is not executed, and it runs later") {
  HeldJob job;
  // One of them is executed, whichever comes first: started children run at the same time.
  job.start(
      worker_name,
      {"-n", "10", DDRUN_TEST_WORKER, "tell", "USR1", "print", "ready", "await", job.dir.file("until"), "exit", "0"},
      1);
  REQUIRE(job.run->wait_for_out("ready"));
  job.run->signal(SIGUSR1);
  CHECK(job.run->wait_for_out("got USR1"));
  test::write_file(job.dir.file("until"), "");
  const auto outcome = job.run->wait();
  INFO(outcome.err);
  CHECK(outcome.code() == 0);
  CHECK(job.run->all_gone());
}

TEST_CASE("commands of a machine are not waited for either") {
  HeldJob job;
  job.start("/sh", {"--before=true", DDRUN_TEST_WORKER, "exit", "0"});
  job.run->signal(SIGTERM);
  const auto outcome = job.run->wait(10s);
  INFO(outcome.err);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(job.run->all_gone());
}
