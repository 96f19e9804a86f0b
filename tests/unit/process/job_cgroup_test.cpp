// The job's own cgroup, where this machine lets us have one.

#include "job_cgroup.hpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::process;

namespace {

/// The name of a cgroup for this process; ends the test as skipped where there can be none.
struct Group {
  Group() {
    group = JobCgroup::create_if_delegated(path, sizeof path);
    if (path[0] == '\0') test::skip("no writable cgroup v2 has been given to us here");
  }
  ~Group() {
    group.kill();
    test::wait_until([&] {
      group.remove();
      return ::access(path, F_OK) != 0;
    });
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] std::string processes() const { return test::read_file(std::string(path) + "/cgroup.procs"); }

  JobCgroup group;
  char path[512];
};

ExitStatus wait_for(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return exit_status_from_wait(status);
}

}  // namespace

TEST_CASE("without a cgroup everything is a plain fork") {
  ::setenv("DDRUN_NO_CGROUP", "1", 1);
  char path[512] = "left over";
  JobCgroup none = JobCgroup::create_if_delegated(path, sizeof path);
  ::unsetenv("DDRUN_NO_CGROUP");
  CHECK(path[0] == '\0');
  const pid_t child = none.fork_into();
  if (child == 0) ::_exit(7);
  REQUIRE(child > 0);
  none.kill();
  none.remove();
  CHECK(wait_for(child) == ExitStatus(Exited{7}));
}

TEST_CASE("no cgroup is made whose path does not fit") {
  char path[4] = "x";
  JobCgroup none = JobCgroup::create_if_delegated(path, sizeof path);
  CHECK(path[0] == '\0');
}

TEST_CASE("the child is born in the cgroup and its children too") {
  Group job;
  auto pipe = make_pipe();
  REQUIRE(pipe);
  const pid_t child = job.group.fork_into();
  if (child == 0) {
    const pid_t grandchild = ::fork();
    if (grandchild != 0) {
      [[maybe_unused]] const ssize_t n = ::write(pipe->write.get(), &grandchild, sizeof grandchild);
    }
    while (true) ::pause();
  }
  REQUIRE(child > 0);
  pid_t grandchild = 0;
  REQUIRE(::read(pipe->read.get(), &grandchild, sizeof grandchild) == sizeof grandchild);
  const std::string inside = "\n" + job.processes();
  CHECK(inside.find("\n" + std::to_string(child) + "\n") != std::string::npos);
  CHECK(inside.find("\n" + std::to_string(grandchild) + "\n") != std::string::npos);
  CHECK(inside.find("\n" + std::to_string(::getpid()) + "\n") == std::string::npos);
  job.group.kill();
  CHECK(wait_for(child) == ExitStatus(Signaled{SIGKILL, false}));
  CHECK(test::wait_until([&] { return job.processes().empty(); }));
}

TEST_CASE("an empty cgroup is removed and a used one is not") {
  Group job;
  const pid_t child = job.group.fork_into();
  if (child == 0) {
    while (true) ::pause();
  }
  job.group.remove();
  CHECK(::access(job.path, F_OK) == 0);
  job.group.kill();
  wait_for(child);
  CHECK(test::wait_until([&] {
    job.group.remove();
    return ::access(job.path, F_OK) != 0;
  }));
}
