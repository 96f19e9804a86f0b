// guard, sweeper and agent, with an agent that is a few lines of this test.

#include "ddrun/process/guard.hpp"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"
#include "ddrun/test/seccomp.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

namespace {

/// Starts `agent` under a guard, in a child of the test.
struct Guarded {
  /// `prepare`: called before the three processes are split.
  Guarded(
      std::function<int(AgentContext&, const std::string&)> agent, const std::string& directory,
      const std::function<void()>& prepare = [] {}) {
    tag = "DDRUN_TEST_TAG=guard." + std::to_string(::getpid()) + "." +
          std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
    pid = ::fork();
    if (pid != 0) return;
    // The tag shows in /proc only after an exec; workers get it through their environment.
    ::setenv("DDRUN_TEST_TAG", tag.c_str() + ::strlen("DDRUN_TEST_TAG="), 1);
    prepare();
    char name[] = "guarded";
    char* argv[] = {name, nullptr};
    end_program(run_guarded(1, argv, [&](AgentContext& context) { return agent(context, directory); }));
  }
  ~Guarded() {
    if (!ended) ::kill(pid, SIGKILL);
    if (!ended) ::waitpid(pid, nullptr, 0);
  }
  int wait() {
    int status = 0;
    ::waitpid(pid, &status, 0);
    ended = true;
    return status;
  }
  bool all_gone() {
    return test::wait_until([&] { return test::processes_with(tag).empty(); });
  }

  pid_t pid = 0;
  bool ended = false;
  std::string tag;
};

/// Gone, or a zombie: not every container has an init that reaps orphans.
bool dead(pid_t pid) {
  const std::string stat = test::read_file("/proc/" + std::to_string(pid) + "/stat");
  return stat.empty() || stat.find(") Z") != std::string::npos;
}

/// Kills all descendants, as the agent does before it exits.
int leave(int code) {
  kill_all_descendants(std::chrono::steady_clock::now() + 10s);
  return code;
}

/// An agent that starts a worker with a stray, writes the pids of agent and sweeper, and waits for SIGTERM or the death
/// of guard or sweeper.
int agent_with_worker(AgentContext& context, const std::string& directory) {
  context.shared->agent_handles_signals = true;
  if (::fork() == 0) {
    ::setsid();
    const std::string ready = directory + "/ready";
    ::execl(DDRUN_TEST_WORKER, DDRUN_TEST_WORKER, "ignore", "TERM", "stray", "ignore", "TERM", "touch", ready.c_str(),
            "forever", ";", "forever", nullptr);
    ::_exit(1);
  }
  const std::string name = directory + "/pids";
  test::write_file(name + ".new", std::to_string(::getpid()) + " " + std::to_string(::getppid()));
  ::rename((name + ".new").c_str(), name.c_str());
  while (true) {
    pollfd fds[2] = {{context.guard_messages.get(), POLLIN, 0}, {context.sweeper_liveness.get(), POLLIN, 0}};
    ::poll(fds, 2, -1);
    SignalMessage message;
    const ssize_t n = ::read(context.guard_messages.get(), &message, sizeof message);
    if (n == sizeof message && message.signal == SIGTERM) return leave(42);
    if (n == 0) return leave(43);
    if ((fds[1].revents & POLLHUP) != 0) return leave(44);
  }
}

struct Pids {
  pid_t agent = 0;
  pid_t sweeper = 0;
};

Pids wait_for_pids(const test::TemporaryDirectory& directory) {
  REQUIRE(test::wait_until([&] {
    return ::access(directory.file("pids").c_str(), F_OK) == 0 && ::access(directory.file("ready").c_str(), F_OK) == 0;
  }));
  const std::string text = test::read_file(directory.file("pids"));
  return {::atoi(text.c_str()), ::atoi(text.c_str() + text.find(' '))};
}

}  // namespace

TEST_CASE("a signal to the guard reaches the agent and nothing is left behind") {
  test::TemporaryDirectory directory;
  Guarded guarded(agent_with_worker, directory.path());
  wait_for_pids(directory);
  ::kill(guarded.pid, SIGTERM);
  CHECK(exit_status_from_wait(guarded.wait()) == ExitStatus(Exited{42}));
  CHECK(guarded.all_gone());
}

TEST_CASE("one or two of the three are killed and no process is left behind") {
  // 1 guard, 2 sweeper, 4 agent, and every two of them
  const int victims = GENERATE(1, 2, 4, 1 | 2, 1 | 4, 2 | 4);
  CAPTURE(victims);
  test::TemporaryDirectory directory;
  Guarded guarded(agent_with_worker, directory.path());
  const Pids pids = wait_for_pids(directory);
  if ((victims & 1) != 0) ::kill(guarded.pid, SIGKILL);
  if ((victims & 2) != 0) ::kill(pids.sweeper, SIGKILL);
  if ((victims & 4) != 0) ::kill(pids.agent, SIGKILL);
  const ExitStatus status = exit_status_from_wait(guarded.wait());
  CHECK(guarded.all_gone());
  CHECK(test::wait_until([&] { return dead(pids.agent) && dead(pids.sweeper); }));
  if (victims == 2) CHECK(status == ExitStatus(Exited{44}));
  if (victims == 4 || victims == (2 | 4)) CHECK(status == ExitStatus(Exited{125}));
  if ((victims & 1) != 0) CHECK(status == ExitStatus(Signaled{SIGKILL, false}));
}

TEST_CASE("a stopped agent reacts to the death of the guard") {
  test::TemporaryDirectory directory;
  Guarded guarded(agent_with_worker, directory.path());
  const Pids pids = wait_for_pids(directory);
  ::kill(pids.agent, SIGSTOP);
  ::kill(guarded.pid, SIGKILL);
  guarded.wait();
  CHECK(guarded.all_gone());
  CHECK(test::wait_until([&] { return dead(pids.sweeper); }));
}

TEST_CASE("the first ending signal kills an agent that does not handle signals yet") {
  test::TemporaryDirectory directory;
  Guarded guarded(
      [](AgentContext&, const std::string& path) {
        test::write_file(path + "/ready", "");
        while (true) ::pause();
        return 0;
      },
      directory.path());
  REQUIRE(test::wait_until([&] { return ::access(directory.file("ready").c_str(), F_OK) == 0; }));
  ::kill(guarded.pid, SIGINT);
  CHECK(exit_status_from_wait(guarded.wait()) == ExitStatus(Signaled{SIGINT, false}));
  CHECK(guarded.all_gone());
}

TEST_CASE("pkill by name does not match the sweeper") {
  test::TemporaryDirectory directory;
  Guarded guarded(agent_with_worker, directory.path());
  const Pids pids = wait_for_pids(directory);
  // It takes its name while the agent is already at work.
  CHECK(test::wait_until([&] { return process_name(pids.sweeper) == "job-sweeper"; }));
  ::kill(guarded.pid, SIGTERM);
  guarded.wait();
  CHECK(guarded.all_gone());
}

TEST_CASE("a sweeper that cannot receive signals sees the agent's end") {
  const auto refuse_signalfd = [] { test::deny(SYS_signalfd4, ENFILE); };
  // Long enough for the sweeper to wait already, longer than its first look.
  const auto agent = [](AgentContext&, const std::string&) {
    std::this_thread::sleep_for(500ms);
    return 7;
  };
  Guarded guarded(agent, "", refuse_signalfd);
  int status = 0;
  const bool over = test::wait_until([&] { return ::waitpid(guarded.pid, &status, WNOHANG) == guarded.pid; });
  guarded.ended = over;
  REQUIRE(over);
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(guarded.all_gone());
}
