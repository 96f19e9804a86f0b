#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

constexpr uid_t somebody = 54321;

/// Root may write everywhere: then the run is somebody else's, in a directory where that user finds the programs.
RunOptions as_somebody() {
  RunOptions options;
  if (::geteuid() == 0) {
    options.in_child = [] {
      if (::setgroups(0, nullptr) != 0 || ::setgid(somebody) != 0 || ::setuid(somebody) != 0) ::_exit(95);
    };
  }
  return options;
}

/// A copy that anybody can execute.
Words copied(Words argv, const TemporaryDirectory& dir) {
  ::chmod(dir.path().c_str(), 0755);
  const std::string program = dir.file("ddrun");
  std::filesystem::copy_file(argv.at(0), program, std::filesystem::copy_options::overwrite_existing);
  ::chmod(program.c_str(), 0755);
  argv[0] = program;
  return argv;
}

/// A tiny file system that only the run sees, and that is gone with it.
RunOptions with_small_disk(const std::string& at) {
  RunOptions options;
  options.in_child = [at] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", at.c_str(), "tmpfs", 0, "size=64k") != 0) {
      ::_exit(95);
    }
  };
  return options;
}

bool can_mount() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/tmp", "tmpfs", 0, "size=64k") == 0 ? 0 : 1);
  int status = 1;
  ::waitpid(pid, &status, 0);
  return status == 0;
}

}  // namespace

TEST_CASE("A log directory that cannot be written is an error before anything starts") {
  const TemporaryDirectory dir;
  const std::string logs = dir.file("logs");
  REQUIRE(::mkdir(logs.c_str(), 0555) == 0);
  const auto outcome =
      finish(copied(command({"-n", "2", "--log-dir=" + logs, "-r", "3", "/bin/echo", "started"}), dir), as_somebody());
  DDRUN_SHOW(outcome);
  if (outcome.code() == 95) skip("cannot become another user");
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, logs));
  CHECK(has(outcome.err, "Permission denied"));
  CHECK(outcome.out.empty());
}

TEST_CASE("A file in the place of the log directory is an error before anything starts") {
  const TemporaryDirectory dir;
  write_file(dir.file("logs"), "");
  const auto outcome = finish(job({"-n", "2", "--log-dir=" + dir.file("logs"), "-t", "3"}, {"print", "started"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 2);
  CHECK(has(outcome.err, dir.file("logs") + " is not a directory"));
  CHECK(outcome.out.empty());
}

TEST_CASE("On a full disk the job goes on and the loss is said once and counted") {
  if (!can_mount()) skip("cannot mount a small file system");
  const TemporaryDirectory dir;
  const std::string logs = dir.file("logs");
  REQUIRE(::mkdir(logs.c_str(), 0755) == 0);
  const auto outcome = finish(job({"-n", "2", "--log-dir=" + logs, "--tee=3", "--report=" + dir.file("report.json")},
                                  {"lines", "2000", "print", "done"}),
                              with_small_disk(logs));
  INFO(outcome.err);
  CHECK(outcome.code() == 125);
  // Nothing is missing on the console.
  CHECK(count(outcome.out, "\n") == 2 * 2001);
  CHECK(count(outcome.out, "]:done\n") == 2);
  CHECK(count(outcome.err, "No space left on device") >= 1);
  CHECK(count(outcome.err, "log files are incomplete: ") == 1);
  CHECK(count(outcome.err, "\n") <= 3);
  CHECK(has(last_line(outcome.err), "log files are incomplete: "));
  const std::string report = read_file(dir.file("report.json"));
  CHECK(has(report, "stdout.log: No space left on device\""));
  CHECK_FALSE(has(report, "\"log_bytes_lost\": 0,"));
}

TEST_CASE("A limit on the size of files is a full disk and not the end of ddrun") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.in_child = [] {
    const rlimit limit{16384, 16384};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  const auto outcome =
      finish(job({"-n", "2", "--log-dir=" + dir.file("logs"), "--tee=3"}, {"lines", "1000", "print", "done"}), options);
  INFO(outcome.err);
  CHECK(outcome.code() == 125);
  CHECK(count(outcome.out, "]:done\n") == 2);
  CHECK(has(outcome.err, "File too large"));
  CHECK(has(outcome.err, "log files are incomplete: "));
}

TEST_CASE("A report that could not be written is refused before anything starts") {
  const TemporaryDirectory dir;
  const std::string report = dir.file("none/report.json");
  const auto outcome = finish(job({"--report=" + report}, {"print", "started", "exit", "0"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(outcome.out.empty());
  CHECK(outcome.err == "ddrun: error: --report=" + report + ": cannot write in " + dir.file("none/") +
                           ": No such file or directory\n");
}

TEST_CASE("A report that cannot be written in the end does not look like success") {
  const TemporaryDirectory dir;
  const std::string folder = dir.file("folder");
  REQUIRE(::mkdir(folder.c_str(), 0755) == 0);
  const auto outcome = finish(job({"--report=" + folder + "/r.json"}, {"remove", folder, "exit", "0"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "--report: cannot write " + folder + "/r.json: No such file or directory"));
}
