#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "../job.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun::test;

// --before and --after: one command on a machine before the first workers, and one after the last.

TEST_CASE("A --before runs once before the workers, --after behind them with the report") {
  const TemporaryDirectory dir;
  const std::string log = dir.path() + "/log";
  const std::string report = dir.path() + "/report.json";
  const std::string each = GENERATE("job", "attempt");
  const auto outcome = finish(command(
      {"-n", "2", "--max-restarts=1", "--before-each=" + each, "--report=" + report,
       "--before=echo before $GROUP_RANK $GROUP_WORLD_SIZE ${RANK-none} >>" + log + "; echo staged; echo alas >&2",
       "--after=echo after $DDRUN_EXIT_CODE >>" + log + "; grep -c '\"verdict\": \"worker_failed\"' $DDRUN_REPORT",
       "--", "sh", "-c", "echo worker >>" + log + "; exit 3"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 3);
  const auto lines = read_file(log);
  const std::size_t runs = each == "job" ? 1 : 2;
  CHECK(lines.starts_with("before 0 1 none\nworker\n"));
  CHECK(count(lines, "before") == runs);
  CHECK(lines.ends_with("worker\nafter 3\n"));
  CHECK(count(outcome.out, "[before] staged\n") == runs);
  CHECK(has(outcome.out, "[after] 1\n"));
  CHECK(has(outcome.err, "[before] alas\n"));
  const auto json = nlohmann::json::parse(read_file(report));
  CHECK(json["before"]["exit_code"] == 0);
  CHECK(json["before"]["runs"] == runs);
  CHECK(json["before"]["ran_s"] > 0);
  CHECK(json["after"]["exit_code"] == 0);
}

TEST_CASE("a --before that fails ends the job with its code, and starts no worker") {
  const TemporaryDirectory dir;
  const auto outcome = finish(command({"-n", "2", "--max-restarts=3", "--before=echo no data >&2; exit 3",
                                       "--after=touch " + dir.file("undone"), "sh", "-c", "echo worker"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 3);
  CHECK(outcome.out.empty());
  CHECK(count(outcome.err, "--before failed on ") == 1);
  CHECK(has(outcome.err, ": exited with code 3\n"));
  CHECK(std::filesystem::exists(dir.file("undone")));
}

TEST_CASE("an --after that fails counts if the job did not") {
  const auto [worker, after, code] = GENERATE(table<std::string, std::string, int>(
      {{"exit 0", "exit 5", 5}, {"exit 3", "exit 5", 3}, {"exit 0", "exit 0", 0}}));
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{"TMPDIR", dir.path()}};
  const auto outcome = finish(command({"--after=test -s $DDRUN_REPORT && " + after, "sh", "-c", worker}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == code);
  CHECK(has(outcome.err, "--after failed on ") == (after != "exit 0"));
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("an --after without a report of the user's gets one that others cannot read") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{"TMPDIR", dir.path()}};
  const auto outcome = finish(command({"--after=stat -c %a $DDRUN_REPORT", "true"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "600\n"));
}

TEST_CASE("a job whose working directory is removed runs --after there and says what it could not write") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.directory = dir.file("gone");
  REQUIRE(::mkdir(options.directory.c_str(), 0755) == 0);
  const auto outcome = finish(command({"--report=r.json", "--after=echo after $DDRUN_EXIT_CODE; test -s $DDRUN_REPORT",
                                       "sh", "-c", "rmdir " + options.directory}),
                              options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.out, "after 0\n"));
  CHECK(has(outcome.err, "ddrun: error: --report: cannot write r.json"));
}

TEST_CASE("a signal and the time limit end --before and --after, and nothing is left of them") {
  const auto [option, worker] =
      GENERATE(table<std::string, std::string>({{"--before=", "echo worker"}, {"--after=", "true"}}));
  const std::string waits = option + "trap '' TERM; sleep 1000 & echo up; while :; do sleep 1000; done";
  {
    Run run(command({waits, "--shutdown-timeout=200ms", "sh", "-c", worker}));
    REQUIRE(run.wait_for_out("up"));
    run.signal(SIGINT);
    const Outcome outcome = run.wait();
    REQUIRE(run.all_gone());
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == -SIGINT);  // as a shell knows it: 130
    CHECK_FALSE(has(outcome.out, "worker"));
  }
  const auto late = finish(command({waits, "--shutdown-timeout=100ms", "--timeout=500ms", "sh", "-c", worker}));
  DDRUN_SHOW(late);
  CHECK(late.code() == 124);
}

TEST_CASE("what --before leaves in the background is ended before the workers start") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("pid");
  const auto outcome = finish(command({"--before=sleep 1000 & echo $! >" + file, "sh", "-c",
                                       "kill -0 $(cat " + file + ") 2>/dev/null && echo there || echo gone"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "gone\n");
}
