// Order of ends, and signals and cgroups of guard, sweeper and agent.

#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>

#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

extern char** environ;

TEST_CASE("children that ended between two looks are reported in the order of their ends") {
  boost::asio::io_context context;
  auto launcher = Launcher::create();
  REQUIRE(launcher);
  std::vector<pid_t> told;
  ChildWatcher watcher(
      context.get_executor(), [&](const ChildEnd& end) { told.push_back(end.pid); }, [] {});
  REQUIRE(watcher.open());
  std::vector<Spawned> children;
  std::vector<pid_t> started;
  for (int i = 0; i < 8; ++i) {
    char program[] = DDRUN_TEST_WORKER;
    char verb[] = "forever";
    char* argv[] = {program, verb, nullptr};
    SpawnPlan plan;
    plan.program = DDRUN_TEST_WORKER;
    plan.argv = argv;
    plan.environment = environ;
    auto spawned = launcher->spawn(plan);
    REQUIRE(spawned);
    if (!spawned->pidfd) test::skip("no pidfds here: without them the order of ends is not known");
    children.push_back(std::move(*spawned));
    started.push_back(children.back().pid);
    watcher.watch(children.back().pid, children.back().pidfd.get());
  }
  std::vector<pid_t> killed(started.rbegin(), started.rend());
  std::swap(killed[0], killed[4]);
  for (const pid_t pid : killed) {
    ::kill(pid, SIGKILL);
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
  }
  watcher.reap();
  CHECK(told == killed);
  CHECK_FALSE(has_children());
}

TEST_CASE("only signals that end the job are counted towards killing the agent") {
  // The sweeper wakes the agent for each signal that it counts: SIGCONT is how this agent sees it.
  const pid_t guard = ::fork();
  if (guard == 0) {
    char name[] = "guarded";
    char* argv[] = {name, nullptr};
    end_program(run_guarded(1, argv, [](AgentContext& context) {
      context.shared->ending_signals = signal_bit(SIGTERM);
      context.shared->agent_handles_signals = true;
      sigset_t wake;
      ::sigemptyset(&wake);
      ::sigaddset(&wake, SIGCONT);
      ::kill(context.shared->guard_pid, SIGHUP);
      timespec bound{0, 300'000'000};
      if (::sigtimedwait(&wake, nullptr, &bound) == SIGCONT) return 1;
      ::kill(context.shared->guard_pid, SIGTERM);
      bound = {20, 0};
      return ::sigtimedwait(&wake, nullptr, &bound) == SIGCONT ? 42 : 2;
    }));
  }
  int status = 0;
  REQUIRE(::waitpid(guard, &status, 0) == guard);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 42);
}

TEST_CASE("the cgroup of a job goes with it also when agent and sweeper are killed") {
  auto pipe = make_pipe();
  REQUIRE(pipe);
  const pid_t guard = ::fork();
  if (guard == 0) {
    pipe->read.reset();
    char name[] = "guarded";
    char* argv[] = {name, nullptr};
    end_program(run_guarded(1, argv, [&](AgentContext& context) {
      const JobCgroup group = await_job_cgroup(*context.shared);
      for (int i = 0; i < 4; ++i) {
        if (::fork() == 0) {
          while (true) ::pause();
        }
      }
      write_all(pipe->write.get(), context.shared->cgroup, sizeof context.shared->cgroup);
      ::kill(context.shared->sweeper_pid, SIGKILL);
      ::kill(::getpid(), SIGKILL);
      return 0;
    }));
  }
  pipe->write.reset();
  char cgroup[sizeof(SharedState::cgroup)] = {};
  REQUIRE(::read(pipe->read.get(), cgroup, sizeof cgroup) == static_cast<ssize_t>(sizeof cgroup));
  int status = 0;
  REQUIRE(::waitpid(guard, &status, 0) == guard);
  CHECK(WEXITSTATUS(status) == 125);
  // All of them are dead: the pipe has no writer.
  char byte;
  CHECK(::read(pipe->read.get(), &byte, 1) == 0);
  if (cgroup[0] == '\0') test::skip("no writable cgroup v2 has been given to us here");
  CHECK(::access(cgroup, F_OK) != 0);
}
