#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// Everything that is hard to get rid of; made known by files, so that the job does not end before they are there.
Words difficult(const TemporaryDirectory& dir) {
  return {"stray",
          "ignore",
          "TERM",
          "ignore",
          "HUP",
          "touch",
          dir.file("deaf"),
          "forever",
          ";",
          "stray",
          "child",
          "touch",
          dir.file("stopped"),
          "stop",
          "forever",
          ";",
          "stop",
          "forever",
          ";",
          "child",
          "ignore",
          "TERM",
          "touch",
          dir.file("child"),
          "forever",
          ";",
          "await",
          dir.file("deaf"),
          "await",
          dir.file("stopped"),
          "await",
          dir.file("child")};
}

Words with_end(Words verbs, const Words& end) {
  verbs.insert(verbs.end(), end.begin(), end.end());
  return verbs;
}

}  // namespace

TEST_CASE("Descendants that hide are gone after success and after a failure") {
  const auto [variable, end, code] = GENERATE(table<const char*, Words, int>({
      {"DDRUN_TEST_NOTHING", {"exit", "0"}, 0},
      {"DDRUN_NO_PIDFD", {"exit", "0"}, 0},
      {"DDRUN_NO_CGROUP", {"exit", "0"}, 0},
      {"DDRUN_TEST_NOTHING", {"rank", "1", "signal", "KILL", ";", "forever"}, 137},
  }));
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{variable, "1"}};
  const auto outcome = finish(job({"-n", "2", "--shutdown-timeout=0.2"}, with_end(difficult(dir), end)), options);
  CAPTURE(variable, end);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == code);
}

TEST_CASE("Descendants that hide are gone after a signal") {
  const TemporaryDirectory dir;
  Run run(job({"-n", "2", "--shutdown-timeout=0.2"}, with_end(difficult(dir), {"print", "ready", "forever"})));
  REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == 2; }));
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
}

TEST_CASE("A descendant without an environment or open files is found too") {
  const TemporaryDirectory dir;
  // Nothing but its line of descent tells that it is ours.
  const std::string hide = "env -i setsid sh -c 'trap \"\" TERM HUP; exec 3>&- 2>&- 1>&- 0<&-; cd /; echo $$ > " +
                           dir.file("pid.new") + "; mv " + dir.file("pid.new") + " " + dir.file("pid") +
                           "; while :; do sleep 1000; done' & while ! test -e " + dir.file("pid") +
                           "; do sleep 0.01; done";
  RunOptions options;
  const auto outcome = finish(command({"--shutdown-timeout=0.2", "/bin/sh", "-c", hide}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  const int pid = std::atoi(read_file(dir.file("pid")).c_str());
  REQUIRE(pid > 1);
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("A descendant gets the same time to end as the workers") {
  const TemporaryDirectory dir;
  const auto outcome = finish(
      job({"--label=rank"}, {"child", "on", "TERM", "0", "tell", "TERM", "touch", dir.file("there"), "heard", "1",
                             "print", "child tidied up", "exit", "0", ";", "await", dir.file("there"), "exit", "0"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "[0] got TERM\n"));
  CHECK(has(outcome.out, "[0] child tidied up\n"));
}

TEST_CASE("A descendant outside the group gets the same signal and time, after success, failure and Ctrl-C") {
  const Words end = GENERATE(Words{"exit", "0"}, Words{"exit", "3"}, Words{});
  const bool by_signal = end.empty();
  const TemporaryDirectory dir;
  const Words verbs{"stray", "tell", "TERM", "touch", dir.file("there"), "heard", "1", "touch", dir.file("tidied"),
                    "exit",  "0",    ";",    "await", dir.file("there")};
  Run run(job({}, with_end(verbs, by_signal ? Words{"print", "ready", "forever"} : end)));
  if (by_signal) {
    REQUIRE(run.wait_for_out("ready\n"));
    run.signal(SIGINT);
  }
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(::access(dir.file("tidied").c_str(), F_OK) == 0);
}

TEST_CASE("A worker that waits for what has left its group ends within the grace time") {
  const TemporaryDirectory dir;
  const std::string stray = "trap 'exit 0' TERM; echo > " + dir.file("there") + "; while :; do sleep 0.01; done";
  const auto outcome =
      finish(command({"-n", "2", "--shutdown-timeout=4", "/bin/sh", "-c",
                      "if [ $RANK = 0 ]; then trap 'echo tidy; exit 0' TERM; setsid -w sh -c \"" + stray +
                          "\"; fi; while ! test -e " + dir.file("there") + "; do sleep 0.01; done; exit 3"}));
  DDRUN_SHOW(outcome);
  CHECK(has(outcome.out, "tidy\n"));
  CHECK(outcome.code() == 3);
}

TEST_CASE("PyTorch's manager of shared memory ends by itself") {
  const TemporaryDirectory dir;
  // It dies of SIGTERM, and removes everything a while after its last client has ended.
  const std::string manager = dir.file("torch_shm_manager");
  write_file(manager, "#!/bin/sh\ntouch " + dir.file("there") + "; sleep 0.5; touch " + dir.file("tidied") + "\n");
  ::chmod(manager.c_str(), 0755);
  const auto outcome = finish(
      command({"/bin/sh", "-c",
               "setsid " + manager + " & while ! test -e " + dir.file("there") + "; do sleep 0.01; done; exit 3"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 3);
  CHECK(::access(dir.file("tidied").c_str(), F_OK) == 0);
}

namespace {

/// A shell script that has background processes of its own when it becomes ddrun by exec: one that runs on, one that
/// starts another and ends when `directory` has "go".
std::string script_with_background(const TemporaryDirectory& dir, const std::string& options) {
  const std::string worker = DDRUN_TEST_WORKER;
  return worker + " forever > /dev/null 2>&1 & (" + worker + " await " + dir.file("go") + "; setsid " + worker +
         " touch " + dir.file("orphan") + " forever & exit 0) > /dev/null 2>&1 & exec " + DDRUN_TEST_DDRUN + " " +
         options + " -- " + worker + " print ready await " + dir.file("end");
}

/// Waits until such a script has become ddrun with two workers, and has its second process end and leave an orphan.
void leave_an_orphan(Run& run, const TemporaryDirectory& dir) {
  REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == 2; }));
  write_file(dir.file("go"), "");
  REQUIRE(wait_until([&] { return ::access(dir.file("orphan").c_str(), F_OK) == 0; }));
}

}  // namespace

TEST_CASE("Processes that were there before ddrun are neither waited for nor ended") {
  const TemporaryDirectory dir;
  Run run({"/bin/sh", "-c", script_with_background(dir, "-n 2 --shutdown-timeout=0.2")});
  leave_an_orphan(run, dir);
  write_file(dir.file("end"), "");
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(run.living().size() == 2);
}

TEST_CASE("Nor are they when ddrun's own processes are killed") {
  // Guard, sweeper and agent as they stand below the process that was started; every two of them.
  for (const auto& victims : {std::vector<std::size_t>{1, 2}, {0, 1}, {0, 2}, {0}, {1}, {2}}) {
    const TemporaryDirectory dir;
    Run run({"/bin/sh", "-c", script_with_background(dir, "-n 2 --shutdown-timeout=0.2")});
    leave_an_orphan(run, dir);
    std::vector<pid_t> line;
    for (const pid_t pid : descendants_of(run.pid())) {
      const std::string name = read_file("/proc/" + std::to_string(pid) + "/comm");
      if (name == "ddrun\n" || name == "job-sweeper\n") line.push_back(pid);
    }
    REQUIRE(line.size() == 3);
    for (const std::size_t victim : victims) run.signal(line[victim], SIGKILL);
    run.wait();
    INFO("victims " << victims.front() << " of " << victims.size());
    CHECK(wait_until([&] { return run.living().size() == 2; }));
  }
}

TEST_CASE("A signal to a ddrun that has earlier children is told with its sender") {
  const TemporaryDirectory dir;
  Run run({"/bin/sh", "-c", script_with_background(dir, "-n 2")});
  leave_an_orphan(run, dir);
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(has(outcome.err, "stopped by SIGTERM from pid " + std::to_string(::getpid())));
  CHECK(wait_until([&] { return run.living().size() == 2; }));
}

TEST_CASE("The end of a ddrun that has earlier children takes the job with it") {
  const TemporaryDirectory dir;
  Run run({"/bin/sh", "-c", script_with_background(dir, "-n 2")});
  leave_an_orphan(run, dir);
  run.signal(SIGKILL);
  CHECK(wait_until([&] { return run.living().size() == 2; }));
}
