#include "death_reason.hpp"

#include <linux/magic.h>
#include <signal.h>
#include <sys/vfs.h>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using test::TemporaryDirectory;

namespace {

topology::SystemRoots roots_of(const TemporaryDirectory& dir) {
  return {dir.path() + "/sys", dir.path() + "/proc", dir.path() + "/dev"};
}

/// A machine with cgroup v2 where this job has a memory limit of 4 GiB.
struct Machine {
  TemporaryDirectory dir;
  Machine() {
    dir.file("proc/self/cgroup", "0::/job\n");
    dir.file("sys/fs/cgroup/cgroup.procs", "");
    dir.file("sys/fs/cgroup/job/memory.max", "4294967296\n");
    kills(7);
  }
  void kills(int count) const {
    dir.file("sys/fs/cgroup/job/memory.events", "low 0\noom 9\noom_kill " + std::to_string(count) + "\n");
  }
};

DeadWorker dead(ExitStatus status, const std::string& directory = "/", long max_rss_kib = 0) {
  return {4711, status, directory, {}, max_rss_kib};
}

const std::string oom = "out of memory: the kernel's OOM killer ended it (memory limit of cgroup /job: 4 GiB)";
const std::string outside = "killed from outside ddrun; the kernel's OOM killer was not at work";

}  // namespace

TEST_CASE("a kill that the kernel counted explains one death") {
  const Machine machine;
  DeathReasons reasons(roots_of(machine.dir));
  reasons.begin_attempt(1);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == outside);
  machine.kills(8);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == oom);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == outside);
  machine.kills(10);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == oom);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == oom);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == outside);
}

TEST_CASE("a worker that fails after the OOM kill of its child is explained by it") {
  const Machine machine;
  DeathReasons reasons(roots_of(machine.dir));
  reasons.begin_attempt(1);
  CHECK(reasons.explain(dead(Exited{1})).empty());
  machine.kills(8);
  CHECK(reasons.explain(dead(Exited{1})) ==
        "perhaps out of memory: the kernel's OOM killer ended another process of this job (memory limit of cgroup "
        "/job: 4 GiB)");
  CHECK(reasons.explain(dead(Exited{0})).empty());
}

TEST_CASE("a kill of an earlier attempt explains nothing in this one") {
  const Machine machine;
  DeathReasons reasons(roots_of(machine.dir));
  reasons.begin_attempt(1);
  machine.kills(8);  // for example a data loader
  reasons.begin_attempt(2);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == outside);
  CHECK(reasons.explain(dead(Exited{1})).empty());
  machine.kills(9);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == oom);
}

TEST_CASE("a possible explanation of one failure does not explain the next") {
  const Machine machine;
  DeathReasons reasons(roots_of(machine.dir));
  reasons.begin_attempt(1);
  machine.kills(10);
  CHECK(reasons.explain(dead(Exited{1})).starts_with("perhaps out of memory"));
  CHECK(reasons.explain(dead(Exited{1})).empty());
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == outside);
}

TEST_CASE("the end of a worker far below the limit is not explained by memory") {
  const Machine machine;  // with a limit of 4 GiB
  DeathReasons reasons(roots_of(machine.dir));
  reasons.begin_attempt(4);
  machine.kills(8);
  CHECK(reasons.explain(dead(Signaled{SIGKILL}, "/", 3800)) ==
        "killed from outside ddrun, or perhaps out of memory: the kernel's OOM killer was at work (memory limit of "
        "cgroup /job: 4 GiB), but this worker was small");
  CHECK(reasons.explain(dead(Signaled{SIGKILL}, "/", 3800)) == outside);
  machine.kills(9);
  CHECK(reasons.explain(dead(Signaled{SIGKILL}, "/", 200 * 1024)) == oom);

  const TemporaryDirectory dir;  // no cgroup: all of the machine's memory
  dir.file("proc/vmstat", "oom_kill 3\n");
  DeathReasons whole(roots_of(dir));
  whole.begin_attempt(1);
  dir.file("proc/vmstat", "oom_kill 4\n");
  CHECK(whole.explain(dead(Signaled{SIGKILL}, "/", 3800)).starts_with("killed from outside ddrun, or perhaps"));
}

TEST_CASE("cgroup version 1 counts in oom_control") {
  const TemporaryDirectory dir;
  dir.file("proc/self/cgroup", "4:memory:/job\n0::/\n");
  dir.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912\n");
  const auto kills = [&](const char* count) {
    dir.file("sys/fs/cgroup/memory/job/memory.oom_control", std::string("under_oom 0\noom_kill ") + count + "\n");
  };
  kills("0");
  DeathReasons reasons(roots_of(dir));
  reasons.begin_attempt(1);
  kills("1");
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) ==
        "out of memory: the kernel's OOM killer ended it (memory limit of cgroup /job: 512 MiB)");
}

TEST_CASE("without a cgroup the machine's counter is a hint") {
  const TemporaryDirectory dir;
  dir.file("proc/vmstat", "nr_free_pages 5\noom_kill 3\n");
  DeathReasons reasons(roots_of(dir));
  reasons.begin_attempt(1);
  dir.file("proc/vmstat", "nr_free_pages 5\noom_kill 4\n");
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) ==
        "probably out of memory: the kernel's OOM killer ended a process (the machine itself was short of memory)");
  CHECK(reasons.explain(dead(Exited{1})).empty());
}

TEST_CASE("without a counter the reason does not mention memory") {
  const TemporaryDirectory dir;
  DeathReasons reasons(roots_of(dir));
  reasons.begin_attempt(1);
  CHECK(reasons.explain(dead(Signaled{SIGKILL})) == "killed from outside ddrun");
  CHECK(reasons.explain(dead(Signaled{SIGTERM})) == "signal sent from outside ddrun");
  CHECK(reasons.explain(dead(Signaled{SIGSEGV})).empty());
}

TEST_CASE("a core file is named if it is there") {
  const TemporaryDirectory dir;
  const auto located = [&](const char* pattern, const char* uses_pid = "0") {
    dir.file("proc/sys/kernel/core_pattern", std::string(pattern) + "\n");
    dir.file("proc/sys/kernel/core_uses_pid", std::string(uses_pid) + "\n");
    return core_dump_location(dead(Signaled{SIGSEGV, true}, dir.path() + "/cwd"), roots_of(dir));
  };
  CHECK(located("core").empty());
  dir.file("cwd/core", "");
  CHECK(located("core") == "core file: " + dir.path() + "/cwd/core");
  CHECK(located("core", "1").empty());
  dir.file("cwd/core.4711", "");
  CHECK(located("core", "1") == "core file: " + dir.path() + "/cwd/core.4711");
  CHECK(located("core.%p", "1") == "core file: " + dir.path() + "/cwd/core.4711");
  dir.file("cores/train-11-4711-1795223473.core", "");
  dir.file("cores/train-11-4712-1795223473.core", "");
  CHECK(located((dir.path() + "/cores/%e-%s-%p-%t.core").c_str()) ==
        "core file: " + dir.path() + "/cores/train-11-4711-1795223473.core");
  CHECK(core_dump_location(dead(Signaled{SIGSEGV, false}, dir.path() + "/cwd"), roots_of(dir)).empty());
}

TEST_CASE("a core that went to a program is reported with the command to get it") {
  const TemporaryDirectory dir;
  const auto located = [&](const char* pattern) {
    dir.file("proc/sys/kernel/core_pattern", std::string(pattern) + "\n");
    DeathReasons reasons(roots_of(dir));
    reasons.begin_attempt(1);
    return reasons.explain(dead(Signaled{SIGABRT, true}));
  };
  CHECK(located("|/usr/lib/systemd/systemd-coredump %P %u %g") == "core dump: coredumpctl info 4711");
  CHECK(located("|/usr/share/apport/apport -p%p") == "core dump: with apport, in /var/crash");
  CHECK(located("|/opt/dump --x") == "core dump: given to /opt/dump");
}

TEST_CASE("an old core file is not taken for this one") {
  const TemporaryDirectory dir;
  dir.file("proc/sys/kernel/core_pattern", "core\n");
  dir.file("cwd/core", "");
  DeadWorker worker = dead(Signaled{SIGSEGV, true}, dir.path() + "/cwd");
  worker.started = std::chrono::system_clock::now() + std::chrono::hours(1);
  CHECK(core_dump_location(worker, roots_of(dir)).empty());
}

TEST_CASE("the use of /dev/shm is reported with failures that it may explain") {
  struct statfs shm {};
  const bool is_tmpfs = ::statfs("/dev/shm", &shm) == 0 && shm.f_type == TMPFS_MAGIC && shm.f_blocks > 0;
  const auto about = [](const ExitStatus& status, const char* line) {
    logs::TailLine last;
    last.text = line;
    return describe_shm(status, {last});
  };
  CHECK(about(Exited{1}, "ValueError: no").empty());
  for (const std::string& text :
       {about(Exited{1}, "OSError: [Errno 28] No space left on device"),
        about(Exited{1}, "NCCL error: unhandled system error"), about(Signaled{SIGBUS}, "")}) {
    CHECK(text.starts_with("/dev/shm: ") == is_tmpfs);
  }
}
