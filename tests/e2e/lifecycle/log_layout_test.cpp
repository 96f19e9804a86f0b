#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// The directories of runs, without the link to the last one.
std::vector<std::string> runs_in(const std::string& logs) {
  std::vector<std::string> runs;
  for (const auto& entry : std::filesystem::directory_iterator(logs)) {
    if (!entry.is_symlink()) runs.push_back(entry.path());
  }
  return runs;
}

/// Files below the one directory of the run, sorted.
std::vector<std::string> files_of_run(const std::string& logs) {
  const std::vector<std::string> runs = runs_in(logs);
  REQUIRE(runs.size() == 1);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(runs[0])) {
    if (entry.is_regular_file()) files.push_back(entry.path().string().substr(runs[0].size() + 1));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("Redirected streams are in files only and logs of every attempt are kept") {
  const TemporaryDirectory dir;
  const std::string logs = dir.file("logs");
  const auto outcome =
      finish(job({"-n", "2", "--max-restarts=1", "-r", "3", "--log-dir=" + logs, "--rdzv-id=myjob"},
                 {"env", "RANK", "error", "note", "attempt", "0", "rank", "1", "exit", "1", ";", "forever", ";"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.empty());
  CHECK(count(outcome.err, "note") == 1);
  CHECK(has(outcome.err, ": note; restarting all 2 workers"));
  CHECK(count(outcome.err, "ddrun: logs: ") == 1);  // all attempts are in this directory
  CHECK(files_of_run(logs) == Words{"attempt_0/0/stderr.log", "attempt_0/0/stdout.log", "attempt_0/1/stderr.log",
                                    "attempt_0/1/stdout.log", "attempt_1/0/stderr.log", "attempt_1/0/stdout.log",
                                    "attempt_1/1/stderr.log", "attempt_1/1/stdout.log"});
  const std::string run = logs + "/latest";
  CHECK(read_file(run + "/attempt_0/1/stdout.log") == "RANK=1\n");
  CHECK(read_file(run + "/attempt_1/0/stdout.log") == "RANK=0\n");
  CHECK(read_file(run + "/attempt_1/1/stderr.log") == "note\n");
}

TEST_CASE("The directory of the log files is printed while the workers run, and latest leads to it") {
  const TemporaryDirectory dir;
  const std::string logs = dir.file("logs");
  Run run(job({"-n", "2", "-r", "3", "--log-dir=" + logs}, {"print", "text", "forever"}));
  REQUIRE(run.wait_for_err("ddrun: logs: "));
  REQUIRE(wait_until([&] { return read_file(logs + "/latest/attempt_0/1/stdout.log") == "text\n"; }));
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  REQUIRE(runs_in(logs).size() == 1);
  CHECK(outcome.err.starts_with("ddrun: logs: " + std::filesystem::canonical(runs_in(logs)[0]).string() + "\n"));
  CHECK(count(outcome.err, "ddrun: logs: ") == 1);
}

TEST_CASE("A latest of the user is left alone, with a warning") {
  const TemporaryDirectory dir;
  std::filesystem::create_directory(dir.file("latest"));
  const auto outcome = finish(job({"-n", "2", "-r", "3", "--log-dir=" + dir.path()}, {"print", "text"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.err, "ddrun: warning: ") == 1);
  CHECK(has(outcome.err, "/latest is no symbolic link and stays as it is\n"));
  CHECK(std::filesystem::is_empty(dir.file("latest")));
}

TEST_CASE("A temporary directory of log files is printed, too") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{"TMPDIR", dir.path()}};
  const auto outcome = finish(job({"-n", "2", "-r", "3"}, {"print", "text"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  REQUIRE(outcome.err.starts_with("ddrun: logs: " + dir.path() + "/ddrun_"));
  CHECK(count(outcome.err, "\n") == 1);
  const std::string logs = outcome.err.substr(13, outcome.err.size() - 14);
  CHECK(read_file(logs + "/attempt_0/1/stdout.log") == "text\n");
  CHECK_FALSE(std::filesystem::exists(logs + "/../latest"));
  CHECK(finish(job({"-q", "-n", "2", "-r", "3"}, {"print", "text"}), options).err.empty());
  CHECK(finish(job({"-n", "2", "-r", "3", "--log-dir=/dev/null"}, {"print", "text"}), options).err.empty());
}

TEST_CASE("A TMPDIR that is too long is an error before any worker starts") {
  const TemporaryDirectory dir;
  std::string deep = dir.path();
  while (deep.size() < 512) deep += "/" + std::string(100, 'd');
  std::filesystem::create_directories(deep);
  RunOptions options;
  options.env = {{"TMPDIR", deep}};
  const auto outcome = finish(job({"-n", "2"}, {"print", "text"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 2);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.starts_with("ddrun: error: the path of the job's private directory has "));
  CHECK(outcome.err.ends_with(" bytes, at most 511 are possible; set TMPDIR to a shorter path\n"));
  CHECK(std::filesystem::is_empty(deep));
}
