#include <signal.h>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// Two workers that have said "ready" and wait for the file "go".
struct Job {
  explicit Job(const Words& options = {})
      : run(job(with_two(options), {"print", "ready", "await", dir.file("go"), "print", "done"})) {
    REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == 2; }));
    const auto below = descendants_of(run.pid());
    REQUIRE(below.size() == 4);
    workers = {below[2], below[3]};
  }
  static Words with_two(Words options) {
    options.insert(options.end(), {"-n", "2"});
    return options;
  }
  bool stopped() const {
    return wait_until([&] { return is_stopped(run.pid()) && is_stopped(workers[0]) && is_stopped(workers[1]); });
  }
  TemporaryDirectory dir;
  Run run;
  std::vector<pid_t> workers;
};

}  // namespace

TEST_CASE("Ctrl-Z stops the workers and ddrun and they go on together") {
  Job job;
  for (int times = 0; times < 3; ++times) {
    job.run.signal(SIGTSTP);
    REQUIRE(job.stopped());
    job.run.signal(SIGCONT);
    REQUIRE(wait_until(
        [&] { return !is_stopped(job.run.pid()) && !is_stopped(job.workers[0]) && !is_stopped(job.workers[1]); }));
  }
  write_file(job.dir.file("go"), "");
  const auto outcome = job.run.wait();
  CHECK(job.run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "done\n") == 2);
}

TEST_CASE("Stopped and continued at once a job goes on") {
  Job job;
  for (int times = 0; times < 20; ++times) {
    job.run.signal(SIGTSTP);
    job.run.signal(SIGCONT);
  }
  write_file(job.dir.file("go"), "");
  const auto outcome = job.run.wait();
  CHECK(job.run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
}

TEST_CASE("The time limit stands still while a job is stopped") {
  Job job({"--timeout=3s"});
  job.run.signal(SIGTSTP);
  REQUIRE(job.stopped());
  // Longer than the limit, by ddrun's own clock: the agent runs on.
  CHECK_FALSE(wait_until([&] { return has(job.run.err(), "time limit"); }, std::chrono::seconds(4)));
  write_file(job.dir.file("go"), "");
  job.run.signal(SIGCONT);
  const auto outcome = job.run.wait();
  CHECK(job.run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
}

TEST_CASE("A stopped job ends as a shell ends it") {
  Job job;
  job.run.signal(SIGTSTP);
  REQUIRE(job.stopped());
  // As `kill %1` does.
  job.run.signal(SIGTERM);
  job.run.signal(SIGCONT);
  const auto outcome = job.run.wait();
  CHECK(job.run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
}

TEST_CASE("A stopped guard that is killed takes the job with it") {
  Job job;
  job.run.signal(SIGTSTP);
  REQUIRE(job.stopped());
  job.run.signal(SIGKILL);
  CHECK(job.run.all_gone());
}

TEST_CASE("A process that stands before the guard stops with it") {
  const TemporaryDirectory dir;
  const std::string worker = DDRUN_TEST_WORKER;
  Run run({"/bin/sh", "-c",
           worker + " await " + dir.file("go") + " & exec " + DDRUN_TEST_DDRUN + " -- " + worker +
               " print ready await " + dir.file("go")});
  REQUIRE(run.wait_for_out("ready\n"));
  run.signal(SIGTSTP);
  REQUIRE(wait_until([&] { return is_stopped(run.pid()); }));
  write_file(dir.file("go"), "");
  run.signal(SIGCONT);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
}
