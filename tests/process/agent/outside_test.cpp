// Signals, stdin, consoles and SIGKILL from outside, for each of the three processes of ddrun.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"
#include "ddrun/topology/cgroup.hpp"

using namespace ddrun;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> command(const std::vector<std::string>& options, const std::vector<std::string>& verbs) {
  std::vector<std::string> words{DDRUN_TEST_DDRUN};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back(DDRUN_TEST_WORKER);
  words.insert(words.end(), verbs.begin(), verbs.end());
  return words;
}

struct Three {
  pid_t guard = 0;
  pid_t sweeper = 0;
  pid_t agent = 0;
};

/// The three processes of a job whose worker runs already.
Three three_of(const test::Run& run) {
  const auto below = process::descendants(run.pid());
  REQUIRE(below.size() >= 3);
  REQUIRE(below[1].parent == below[0].pid);
  return {run.pid(), below[0].pid, below[1].pid};
}

}  // namespace

TEST_CASE("a caller that ignores SIGCHLD does not keep ddrun waiting") {
  test::RunOptions options;
  options.in_child = [] { ::signal(SIGCHLD, SIG_IGN); };
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  if (!pidfd) options.env.emplace_back("DDRUN_NO_PIDFD", "1");
  test::Run run(command({"--nproc-per-node=2"}, {"rank", "1", "exit", "7", ";", "exit", "0"}), options);
  CHECK(run.wait(20s).code() == 7);
  CHECK(run.all_gone());
}

TEST_CASE("one signal to each process of ddrun is one signal and leaves the grace time") {
  const test::TemporaryDirectory dir;
  // The worker runs until all three have been signalled.
  test::Run run(command({}, {"tell", "TERM", "print", "up", "await", dir.file("go"), "exit", "5"}));
  REQUIRE(run.wait_for_out("up"));
  const Three three = three_of(run);
  for (const pid_t pid : {three.agent, three.sweeper, three.guard}) REQUIRE(run.signal(pid, SIGTERM));
  // Without the signal the agent would take its end for a failure.
  REQUIRE(run.wait_for_out("got TERM"));
  test::write_file(dir.file("go"), "");
  const auto outcome = run.wait(20s);
  CAPTURE(outcome.err);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(outcome.err.find("killing") == std::string::npos);
  CHECK(outcome.err.find("stopped by ddrun") != std::string::npos);
  CHECK(run.all_gone());
}

TEST_CASE("a second signal on the same path still kills at once") {
  const bool to_guard = GENERATE(true, false);
  CAPTURE(to_guard);
  test::Run run(command({}, {"ignore", "TERM", "print", "up", "forever"}));
  REQUIRE(run.wait_for_out("up"));
  const Three three = three_of(run);
  const pid_t victim = to_guard ? three.guard : three.agent;
  REQUIRE(run.signal(victim, SIGTERM));
  REQUIRE(run.wait_for_err("stopping 1 worker"));
  CHECK(test::wait_until([&] {
    run.signal(victim, SIGTERM);
    return run.err().find("again: killing all workers") != std::string::npos;
  }));
  const auto outcome = run.wait(20s);
  CHECK(outcome.code() == (to_guard ? -SIGTERM : 128 + SIGTERM));
  CHECK(run.all_gone());
}

TEST_CASE("a stopped sweeper does not keep a job from ending on a signal") {
  test::Run run(command({}, {"print", "up", "forever"}));
  REQUIRE(run.wait_for_out("up"));
  const Three three = three_of(run);
  REQUIRE(run.signal(three.sweeper, SIGSTOP));
  REQUIRE(run.signal(three.guard, SIGINT));
  CHECK(run.wait(20s).code() == -SIGINT);
  CHECK(run.all_gone());
}

TEST_CASE("a worker that does not read its stdin delays the others only when it is far behind") {
  // Rank 1 reads nothing until rank 0 has read four megabytes, as with a barrier in between.
  const test::TemporaryDirectory dir;
  const std::string script = "if test $RANK = 0; then head -c 4000000 | wc -c; touch " + dir.file("read") +
                             "; cat > /dev/null; else until test -e " + dir.file("read") +
                             "; do sleep 0.01; done; wc -c; fi";
  test::RunOptions options;
  options.input = std::string(5'000'000, 'x');
  test::Run run({DDRUN_TEST_DDRUN, "--stdin=all", "--nproc-per-node=2", "/bin/sh", "-c", script}, options);
  const auto outcome = run.wait(30s);
  CAPTURE(outcome.out, outcome.err);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find("[0] 4000000\n") != std::string::npos);
  CHECK(outcome.out.find("[1] 5000000\n") != std::string::npos);
  CHECK(run.all_gone());
}

TEST_CASE("the flags of a shared stdin stay as they were") {
  auto pipe = make_pipe();
  REQUIRE(pipe);
  const int in = pipe->read.get();
  test::RunOptions options;
  options.inherit_input = true;
  options.in_child = [in] { ::dup2(in, STDIN_FILENO); };
  test::Run run(command({"--stdin=all", "--nproc-per-node=2", "--label=none"}, {"stdin", "exit", "0"}), options);
  REQUIRE(write_all(pipe->write.get(), "for all\n", 8));
  REQUIRE(run.wait_for_out("for all\n"));
  CHECK((::fcntl(in, F_GETFL) & O_NONBLOCK) == 0);
  pipe->write.reset();
  const auto outcome = run.wait(20s);
  CHECK(outcome.code() == 0);
  CHECK((::fcntl(in, F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("the time limit also ends the wait for a console that takes nothing") {
  auto pipe = make_pipe();
  REQUIRE(pipe);
  ::fcntl(pipe->write.get(), F_SETPIPE_SZ, 4096);
  test::RunOptions options;
  const int out = pipe->write.get();
  options.in_child = [out] { ::dup2(out, STDOUT_FILENO); };
  SECTION("but after a success only a signal does, and what is lost then is an error") {
    const test::TemporaryDirectory dir;
    const std::string first = dir.file("0");
    const std::string second = dir.file("1");
    test::Run run(command({"--timeout=5s", "--nproc-per-node=2"},
                          {"lines", "100", "rank", "0", "touch", first, ";", "rank", "1", "touch", second, ";"}),
                  options);
    REQUIRE(test::wait_until([&] {
      const bool both_were_there = ::access(first.c_str(), F_OK) == 0 && ::access(second.c_str(), F_OK) == 0;
      // Without zombies: a worker whose end was not yet seen would count as stopped by the signal.
      return both_were_there && process::descendants(run.pid()).size() == 2;
    }));
    run.signal(SIGTERM);
    const auto outcome = run.wait(20s);
    CAPTURE(outcome.err);
    CHECK(outcome.code() == 125);
    CHECK(outcome.err.find("not read in time") != std::string::npos);
    CHECK(run.all_gone());
  }
  SECTION("after the limit has ended the workers") {
    test::Run run(command({"--timeout=1s", "--nproc-per-node=2"}, {"lines", "100", "forever"}), options);
    CHECK(run.wait(20s).code() == 124);
    CHECK(run.all_gone());
  }
}

TEST_CASE("the cgroup of a job goes with it also when guard and sweeper are killed") {
  test::Run run(command({}, {"print", "up", "forever"}));
  REQUIRE(run.wait_for_out("up"));
  const Three three = three_of(run);
  const auto below = process::descendants(three.agent);
  REQUIRE(below.size() == 1);
  const std::string name = concat("/ddrun-", three.sweeper);
  const std::string groups = read_small_file(concat("/proc/", below[0].pid, "/cgroup")).value_or("");
  const bool in_a_cgroup = groups.ends_with(name) || groups.find(name + "\n") != std::string::npos;
  if (!in_a_cgroup) test::skip("no writable cgroup v2 has been given to us here");
  const auto ours = topology::own_cgroup("none of version 1");
  REQUIRE(ours);
  const std::string directory = ours->directory + name;
  REQUIRE(::access(directory.c_str(), F_OK) == 0);
  // Stopped, or it might finish before it is killed.
  REQUIRE(run.signal(three.guard, SIGSTOP));
  REQUIRE(run.signal(three.sweeper, SIGKILL));
  REQUIRE(run.signal(three.guard, SIGKILL));
  CHECK(run.all_gone());
  CHECK(test::wait_until([&] { return ::access(directory.c_str(), F_OK) != 0; }));
}
