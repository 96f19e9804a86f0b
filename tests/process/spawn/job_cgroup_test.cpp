// The job's cgroup, where this machine permits one.

#include "ddrun/process/job_cgroup.hpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <thread>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"
#include "spawn_worker.hpp"

using namespace ddrun;
using namespace ddrun::process;

namespace {

/// A cgroup made by this process; skips the test where there can be none.
struct Group {
  Group() {
    char path[512];
    group = JobCgroup::create_if_delegated(path, sizeof path);
    directory = path;
    if (directory.empty()) test::skip("no writable cgroup v2 has been given to us here");
  }
  ~Group() {
    group.kill();
    test::wait_until([&] { return group.remove(); });
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  [[nodiscard]] std::string processes() const { return test::read_file(directory + "/cgroup.procs"); }
  [[nodiscard]] bool holds(pid_t pid) const {
    return ("\n" + processes()).find("\n" + std::to_string(pid) + "\n") != std::string::npos;
  }

  JobCgroup group;
  std::string directory;
};

pid_t spawn(Launcher& launcher, const std::vector<std::string>& arguments) {
  auto spawned = test::spawn_worker(launcher, arguments);
  REQUIRE(spawned);
  return spawned->pid;
}

ExitStatus wait_for(pid_t pid) {
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  return exit_status_from_wait(status);
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

TEST_CASE("without a cgroup nothing is done") {
  ::setenv("DDRUN_NO_CGROUP", "1", 1);
  char path[512] = "left over";
  JobCgroup none = JobCgroup::create_if_delegated(path, sizeof path);
  ::unsetenv("DDRUN_NO_CGROUP");
  CHECK(path[0] == '\0');
  CHECK_FALSE(none.open_directory());
  none.kill();
  CHECK(none.remove());
}

TEST_CASE("no cgroup is made whose path does not fit") {
  char path[4] = "x";
  JobCgroup none = JobCgroup::create_if_delegated(path, sizeof path);
  CHECK(path[0] == '\0');
  CHECK(none.path().empty());
}

TEST_CASE("a child is cloned into the cgroup and its children stay in it") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  Group job;
  auto launcher = Launcher::create(pidfd);
  REQUIRE(launcher);
  launcher->set_child_cgroup(job.group.open_directory());
  const test::TemporaryDirectory dir;
  const pid_t child = spawn(*launcher, {"child", "touch", dir.file("up"), "forever", ";", "forever"});
  REQUIRE(test::wait_until([&] { return exists(dir.file("up")); }));
  const auto below = descendants(child);
  REQUIRE(below.size() == 1);
  CHECK(job.holds(child));
  CHECK(job.holds(below[0].pid));
  CHECK_FALSE(job.holds(::getpid()));
  job.group.kill();
  CHECK(wait_for(child) == ExitStatus(Signaled{SIGKILL, false}));
  CHECK(test::wait_until([&] { return job.processes().empty(); }));
}

TEST_CASE("an empty cgroup is removed and a used one is not") {
  Group job;
  auto launcher = Launcher::create();
  REQUIRE(launcher);
  launcher->set_child_cgroup(job.group.open_directory());
  const pid_t child = spawn(*launcher, {"forever"});
  CHECK_FALSE(job.group.remove());
  CHECK(exists(job.directory));
  job.group.kill();
  wait_for(child);
  CHECK(test::wait_until([&] { return job.group.remove(); }));
  CHECK_FALSE(exists(job.directory));
  CHECK(job.group.remove());
}

TEST_CASE("after a kill the renewed cgroup takes children again") {
  Group job;
  auto launcher = Launcher::create();
  REQUIRE(launcher);
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    job.group.renew();
    REQUIRE(job.group.path() == job.directory);
    launcher->set_child_cgroup(job.group.open_directory());
    const test::TemporaryDirectory dir;
    const pid_t child = spawn(*launcher, {"touch", dir.file("up"), "forever"});
    REQUIRE(test::wait_until([&] { return exists(dir.file("up")); }));
    CHECK(job.holds(child));
    job.group.kill();
    CHECK(wait_for(child) == ExitStatus(Signaled{SIGKILL, false}));
    REQUIRE(test::wait_until([&] { return job.processes().empty(); }));
  }
}

TEST_CASE("a process in a cgroup that has been killed before starts children all the same") {
  Group outer;
  outer.group.kill();
  // Root too needs a delegated cgroup.
  ::setxattr(outer.directory.c_str(), "trusted.delegate", "1", 1, 0);
  // The kernel may kill a process that is cloned into a cgroup below; the launcher must not lose a child to that.
  const pid_t child = ::fork();
  if (child == 0) {
    test::write_file(outer.directory + "/cgroup.procs", "0");
    char path[512];
    JobCgroup inner = JobCgroup::create_if_delegated(path, sizeof path);
    auto own = Launcher::create();
    own->set_child_cgroup(inner.open_directory());
    const ExitStatus status = wait_for(spawn(*own, {"exit", "7"}));
    inner.remove();
    ::_exit(status == ExitStatus(Exited{7}) ? 0 : 1);
  }
  CHECK(wait_for(child) == ExitStatus(Exited{0}));
}

TEST_CASE("a child that cannot be cloned into the cgroup stays in the parent's") {
  Group job;
  auto launcher = Launcher::create();
  REQUIRE(launcher);
  launcher->set_child_cgroup(job.group.open_directory());
  REQUIRE(job.group.remove());
  CHECK(wait_for(spawn(*launcher, {"exit", "7"})) == ExitStatus(Exited{7}));
  CHECK(wait_for(spawn(*launcher, {"exit", "8"})) == ExitStatus(Exited{8}));
}

TEST_CASE("the agent waits until the cgroup is made") {
  SharedState shared;
  std::string found = "nothing";
  std::thread agent([&] { found = await_job_cgroup(shared).path(); });
  JobCgroup group = create_job_cgroup(shared);
  agent.join();
  CHECK(found == group.path());
  CHECK(group.path() == shared.cgroup);
  CHECK(await_job_cgroup(shared).path() == group.path());
  CHECK(group.remove());
}
