#include "ddrun/process/launcher.hpp"

#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"
#include "spawn_worker.hpp"

using namespace ddrun;
using namespace ddrun::process;

extern char** environ;

namespace {

struct Result_ {
  ExitStatus status;
  std::string out;
};

/// Spawns the test worker with its stdout in a pipe and waits for it.
Result_ run(Launcher& launcher, const std::vector<std::string>& arguments, SpawnPlan plan = {}) {
  auto pipe = make_pipe().value();
  plan.standard_out = pipe.write.get();
  auto spawned = test::spawn_worker(launcher, arguments, plan);
  REQUIRE(spawned);
  pipe.write.reset();
  Result_ result;
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(pipe.read.get(), buffer, sizeof buffer)) > 0)
    result.out.append(buffer, static_cast<std::size_t>(n));
  int status = 0;
  REQUIRE(::waitpid(spawned->pid, &status, 0) == spawned->pid);
  result.status = exit_status_from_wait(status);
  return result;
}

bool no_child_left() { return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; }

/// Both ends of a new pseudo-terminal.
struct OpenTerminal {
  OpenTerminal() {
    int master = -1;
    int slave = -1;
    REQUIRE(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
    near.reset(master);
    far.reset(slave);
  }
  /// What children have written, once all have closed their end.
  std::string read_rest() {
    far.reset();
    std::string text;
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(near.get(), buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(n));
    return text;
  }
  UniqueFd near;
  UniqueFd far;
};

}  // namespace

TEST_CASE("a child inherits no signal mask, dispositions or descriptors") {
  sigset_t some;
  ::sigemptyset(&some);
  ::sigaddset(&some, SIGTERM);
  ::sigaddset(&some, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &some, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  const int leaked = ::open("/dev/null", O_RDONLY);
  const int high = ::fcntl(leaked, F_DUPFD, 200);
  auto launcher = Launcher::create().value();
  const auto result = run(launcher, {"facts"});
  ::close(leaked);
  ::close(high);
  INFO(result.out);
  CHECK(result.status == ExitStatus(Exited{0}));
  CHECK(result.out.find("\nblocked\n") != std::string::npos);
  CHECK(result.out.find("\nignored\n") != std::string::npos);
  CHECK(result.out.find("\nfds 0 1 2\n") != std::string::npos);
  CHECK(result.out.find("parent " + std::to_string(::getpid()) + "\n") != std::string::npos);
  // A new session and group: all three numbers are its pid.
  const std::string pid = result.out.substr(4, result.out.find('\n') - 4);
  CHECK(result.out.find("group " + pid + "\nsession " + pid + "\n") != std::string::npos);
  CHECK(no_child_left());
}

TEST_CASE("a child has the terminal as controlling terminal, with an empty foreground group") {
  auto launcher = Launcher::create().value();
  OpenTerminal terminal;
  SpawnPlan plan;
  plan.standard_out = terminal.far.get();
  plan.controlling_terminal = 1;
  plan.program = "/bin/sh";
  // Its background child gets no SIGHUP when it exits. (Without a trap SIGHUP would kill that.)
  const test::TemporaryDirectory dir;
  const std::string script = concat("echo hello >/dev/tty; read x </dev/tty || echo refused; ", "(while [ ! -e ",
                                    dir.file("go"), " ]; do sleep 0.02; done; echo still here) &");
  auto spawned = test::spawn_worker(launcher, {"-c", script}, plan);
  REQUIRE(spawned);
  int status = 0;
  REQUIRE(::waitpid(spawned->pid, &status, 0) == spawned->pid);
  CHECK(exit_status_from_wait(status) == ExitStatus(Exited{0}));
  ::close(::open(dir.file("go").c_str(), O_WRONLY | O_CREAT, 0666));
  const std::string text = terminal.read_rest();
  CHECK(text == "hello\r\nrefused\r\nstill here\r\n");
  CHECK(no_child_left());
}

TEST_CASE("a child that reads from its controlling terminal is in the foreground") {
  auto launcher = Launcher::create().value();
  OpenTerminal terminal;
  SpawnPlan plan;
  plan.standard_in = plan.standard_out = terminal.far.get();
  plan.controlling_terminal = 0;
  plan.program = "/bin/sh";
  auto spawned = test::spawn_worker(launcher, {"-c", "read x </dev/tty && echo got $x"}, plan);
  REQUIRE(spawned);
  REQUIRE(::write(terminal.near.get(), "hello\n", 6) == 6);
  int status = 0;
  REQUIRE(::waitpid(spawned->pid, &status, 0) == spawned->pid);
  CHECK(exit_status_from_wait(status) == ExitStatus(Exited{0}));
  const std::string text = terminal.read_rest();
  CHECK(text == "hello\r\ngot hello\r\n");
  CHECK(no_child_left());
}

TEST_CASE("working directory and CPUs are set") {
  test::TemporaryDirectory directory;
  auto launcher = Launcher::create().value();
  SpawnPlan plan;
  plan.directory = directory.path().c_str();
  cpu_set_t all;
  ::sched_getaffinity(0, sizeof all, &all);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &all)) ++cpu;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  plan.cpu_mask = reinterpret_cast<const unsigned long*>(&one);
  plan.cpu_mask_bytes = sizeof one;
  const auto result = run(launcher, {"facts"}, plan);
  CHECK(result.out.find("\ncwd " + directory.path() + "\n") != std::string::npos);
  CHECK(result.out.find("\ncpus " + std::to_string(cpu) + "\n") != std::string::npos);
}

TEST_CASE("a program that cannot be executed is an error and leaves no zombie") {
  auto launcher = Launcher::create().value();
  test::TemporaryDirectory directory;
  char* argv[] = {nullptr, nullptr};
  SpawnPlan plan;
  plan.argv = argv;
  plan.environment = environ;

  SECTION("missing") {
    const std::string path = directory.file("missing");
    plan.program = path.c_str();
    argv[0] = const_cast<char*>(path.c_str());
    auto spawned = launcher.spawn(plan, test::exec_limit);
    REQUIRE_FALSE(spawned);
    CHECK(spawned.error().code == Errc::not_found);
    CHECK(spawned.error().message.find(path) != std::string::npos);
  }
  SECTION("a directory") {
    plan.program = directory.path().c_str();
    argv[0] = const_cast<char*>(directory.path().c_str());
    auto spawned = launcher.spawn(plan, test::exec_limit);
    REQUIRE_FALSE(spawned);
    CHECK(spawned.error().code == Errc::not_executable);
  }
  SECTION("no working directory") {
    plan.program = DDRUN_TEST_WORKER;
    plan.directory = "/nonexistent/dir";
    auto spawned = launcher.spawn(plan, test::exec_limit);
    REQUIRE_FALSE(spawned);
    CHECK(spawned.error().message.find("working directory") != std::string::npos);
    CHECK(spawned.error().message.find("/nonexistent/dir") != std::string::npos);
  }
  CHECK(no_child_left());
}

TEST_CASE("the workers' descriptor limit is the user's") {
  auto launcher = Launcher::create().value();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 77;
  launcher.set_child_descriptor_limit(limit);
  SpawnPlan plan;
  auto pipe = make_pipe().value();
  const char* argv[] = {"sh", "-c", "ulimit -n", nullptr};
  plan.program = "/bin/sh";
  plan.argv = const_cast<char**>(argv);
  plan.environment = environ;
  plan.standard_out = pipe.write.get();
  auto spawned = launcher.spawn(plan, test::exec_limit).value();
  pipe.write.reset();
  char buffer[64] = {};
  CHECK(::read(pipe.read.get(), buffer, sizeof buffer) == 3);
  CHECK(std::string(buffer) == "77\n");
  ::waitpid(spawned.pid, nullptr, 0);
}
