#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "../job.hpp"
#include "ddrun/test/full_pipe.hpp"

using namespace ddrun::test;

TEST_CASE("A hundred workers do not fit into 64 descriptors and the message says what does") {
  RunOptions options;
  options.descriptor_limit = 64;
  const auto outcome = finish(job({"-n", "100"}, {"print", "started"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err, "100 workers need 200 file descriptors"));
  CHECK(has(outcome.err, "ulimit -n"));
  CHECK(has(outcome.err, "--redirects=3"));
}

TEST_CASE("With any number of descriptors ddrun starts or says that they are too few") {
  const auto argv =
      GENERATE(command({"-n", "1", "true"}), command({"-t", "3", "-n", "2", "true"}),
               command({"--hosts=localhost", "--ssh=/bin/false", "true"}), command({"store", "--port=0"}));
  const TemporaryDirectory dir;
  for (int limit = 5; limit < 48; ++limit) {
    RunOptions options;
    options.descriptor_limit = limit;
    options.env = {{"TMPDIR", dir.path()}};
    Run run(argv, options);
    if (argv.back() == "--port=0") {
      REQUIRE(wait_until([&] { return has(run.out(), "listening") || !run.err().empty(); }));
      run.signal(SIGTERM);
    }
    const Outcome outcome = run.wait();
    REQUIRE(run.all_gone());
    INFO("at most " << limit << " descriptors");
    DDRUN_SHOW(outcome);
    CHECK((outcome.code() == 0 || outcome.code() == 125));
    CHECK_FALSE(has(outcome.err, "terminate called"));
    if (outcome.code() != 0) CHECK(has(outcome.err, "ddrun: error: "));
  }
}

TEST_CASE("The workers' connections to the store are not taken by handles of the workers") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.descriptor_limit = 300;
  const auto outcome = finish(job({"-n", "80", "--label=none"}, {"connect", "rank", "79", "touch", dir.file("last"),
                                                                 ";", "await", dir.file("last"), "print", "done"}),
                              options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "done\n") == 80);
}

TEST_CASE("A signal ends a ddrun that cannot say why it did not start") {
  RunOptions options;
  options.descriptor_limit = 64;
  const FullPipe full;
  options.in_child = [&full] { ::dup2(full.write_end(), STDERR_FILENO); };
  Run run(job({"-n", "100"}, {"print", "started"}), options);
  const bool stuck = wait_until(
      [&] {
        const auto below = descendants_of(run.pid());
        return below.size() == 2 && has(read_file("/proc/" + std::to_string(below[1]) + "/wchan"), "poll");
      },
      std::chrono::seconds(10));
  if (!stuck) skip("what a process waits for is not shown here (/proc/PID/wchan)");
  run.signal(SIGTERM);
  CHECK(run.all_gone());
  CHECK(run.wait().code() == 125);  // as if it had been read
}

TEST_CASE("A hundred workers that write their own files fit into 64 descriptors") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.descriptor_limit = 64;
  const auto outcome =
      finish(job({"-n", "100", "--redirects=3", "--log-dir=" + dir.path()}, {"print", "started"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.path())) {
    if (entry.path().filename() == "stdout.log" && read_file(entry.path()) == "started\n") ++files;
  }
  CHECK(files == 100);
}

TEST_CASE("The limit of processes is named and those that were started are ended") {
  if (::geteuid() != 0) skip("needs to be root, to have a user without any process");
  const TemporaryDirectory dir;
  ::chmod(dir.path().c_str(), 0755);
  for (const char* from : {DDRUN_TEST_DDRUN, DDRUN_TEST_WORKER}) {
    const auto to = dir.path() / std::filesystem::path(from).filename();
    std::filesystem::copy_file(from, to);
    ::chmod(to.c_str(), 0755);
  }
  RunOptions options;
  // Each run of this test has a user of its own: the limit counts all processes of a user. The ninth worker is started
  // once the first has executed its program, so that one at least has been started when the limit is reached.
  options.in_child = [user = static_cast<uid_t>(20000 + ::getpid() % 40000)] {
    const rlimit limit{24, 24};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || ::setgroups(0, nullptr) != 0 || ::setgid(user) != 0 ||
        ::setuid(user) != 0) {
      ::_exit(95);
    }
  };
  const auto outcome = finish({dir.file("ddrun"), "-n", "50", dir.file("ddrun_test_worker"), "forever"}, options);
  DDRUN_SHOW(outcome);
  if (outcome.code() == 95) skip("cannot become another user");
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "the limit of processes is reached: see 'ulimit -u' and pids.max"));
  CHECK(has(outcome.err, "of 50 workers had been started"));
}

TEST_CASE("A working directory that is missing or none is refused") {
  const TemporaryDirectory dir;
  write_file(dir.file("file"), "");
  const bool missing = GENERATE(true, false);
  const std::string place = missing ? "/no/such/directory" : dir.file("file");
  const auto outcome = finish(job({"--chdir=" + place}, {"print", "started"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 2);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.starts_with("ddrun: error: --chdir=" + place + ": "));
  CHECK(has(outcome.err, missing ? "No such file or directory" : "not a directory"));
}
