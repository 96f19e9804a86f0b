#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../job.hpp"

using namespace ddrun::test;

TEST_CASE("A limit on the size of files is a full disk and not the end of ddrun") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.in_child = [] {
    const rlimit limit{16384, 16384};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  const auto outcome =
      finish(job({"-n", "2", "--log-dir=" + dir.file("logs"), "--tee=3", "--report=" + dir.file("report.json")},
                 {"lines", "1000", "print", "done"}),
             options);
  INFO(outcome.err);
  CHECK(outcome.code() == 125);
  // Nothing is missing on the console, and the loss is said once.
  CHECK(count(outcome.out, "\n") == 2 * 1001);
  CHECK(count(outcome.out, "] done\n") == 2);
  CHECK(has(outcome.err, "File too large"));
  CHECK(count(outcome.err, "log files are incomplete: ") == 1);
  CHECK(has(last_line(outcome.err), "log files are incomplete: "));
  CHECK_FALSE(has(read_file(dir.file("report.json")), "\"log_bytes_lost\": 0,"));
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
  CHECK(::access(dir.file("none").c_str(), F_OK) != 0);
}

TEST_CASE("A report that cannot be written in the end does not look like success") {
  const TemporaryDirectory dir;
  const std::string folder = dir.file("folder");
  REQUIRE(::mkdir(folder.c_str(), 0755) == 0);
  const auto outcome =
      finish(job({"--report=" + folder + "/r.json"}, {"remove", folder, "touch", folder, "exit", "0"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "--report: cannot write " + folder + "/r.json: Not a directory"));
}

TEST_CASE("A descriptor that the user has not opened is refused, also where ddrun has one with its number") {
  const auto option = GENERATE(std::string("--report="), std::string("--events="));
  const auto place = GENERATE(std::string("/dev/fd/"), std::string("/proc/self/fd/"));
  for (int fd = 3; fd < 32; ++fd) {
    RunOptions options;
    options.in_child = [] { ::close_range(3, ~0U, 0); };
    const auto outcome = finish(job({option + place + std::to_string(fd)}, {"print", "started"}), options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 125);
    CHECK(outcome.out.empty());
    CHECK(has(outcome.err, option.substr(0, option.size() - 1) + ": cannot open " + place + std::to_string(fd) +
                               ": it is not open"));
  }
}

TEST_CASE("A report goes to a descriptor that the user has opened") {
  const TemporaryDirectory dir;
  const std::string report = dir.file("report.json", "");
  RunOptions options;
  options.in_child = [&] { ::dup2(::open(report.c_str(), O_WRONLY), 7); };
  const auto outcome = finish(job({"--report=/dev/fd/7"}, {"exit", "0"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(read_file(report), "\"verdict\": \"success\""));
}
