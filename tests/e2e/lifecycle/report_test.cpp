#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../job.hpp"

using namespace ddrun::test;
using nlohmann::json;

TEST_CASE("The JSON report has every rank of every attempt") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("report.json");
  const auto outcome =
      finish(job({"-n", "2", "--max-restarts=1", "--report=" + file, "-r", "2", "--log-dir=" + dir.path()},
                 {"attempt", "0",  "rank", "0",   "exit",  "9",          ";",      "forever", ";", "rank",   "1",
                  "memory",  "32", "spin", "100", "error", "last words", "signal", "KILL",    ";", "forever"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 137);
  const json report = json::parse(read_file(file));
  CHECK(report["verdict"] == "worker_failed");
  CHECK(report["exit_code"] == 137);
  CHECK(report["world_size"] == 2);
  CHECK(report["max_restarts"] == 1);
  REQUIRE(report["attempts"].size() == 2);
  const json& first = report["attempts"][0];
  CHECK(first["first_failed_rank"] == 0);
  CHECK(first["workers"][0]["exit_code"] == 9);
  CHECK(first["workers"][0]["signal"].is_null());
  CHECK(first["workers"][1]["stopped_by_ddrun"] == true);
  const json& last = report["attempts"][1];
  CHECK(last["first_failed_rank"] == 1);
  const json& worker = last["workers"][1];
  CHECK(worker["rank"] == 1);
  CHECK(worker["exit_code"].is_null());
  CHECK(worker["signal"]["number"] == 9);
  CHECK(worker["signal"]["name"] == "SIGKILL");
  CHECK(worker["success"] == false);
  CHECK(worker["stopped_by_ddrun"] == false);
  CHECK(worker["max_rss_kib"] >= 32 * 1024);
  CHECK(worker["user_time_s"].get<double>() + worker["system_time_s"].get<double>() >= 0.09);
  CHECK(worker["ran_s"].get<double>() >= 0.09);
  CHECK(worker["stderr_tail"] == json::array({"last words"}));
  CHECK(read_file(worker["stderr_log"]) == "last words\n");
  CHECK(worker["pid"].get<int>() > 0);
}

TEST_CASE("The directory of a report is made again, and a report that cannot be written is said") {
  const TemporaryDirectory dir;
  const std::string report = dir.file("a/report.json");
  for (const bool blocked : {false, true}) {
    std::filesystem::create_directory(dir.file("a"));
    const auto outcome = finish(command({"--report=" + report, "/bin/sh", "-c", "rm -r $0; $1 && >$0; exit 3",
                                         dir.file("a"), blocked ? "true" : "false"}));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 3);
    CHECK(count(outcome.err, "--report: cannot write ") == (blocked ? 1 : 0));
    if (!blocked) CHECK(json::parse(read_file(report))["exit_code"] == 3);
    std::filesystem::remove_all(dir.file("a"));
  }
}

TEST_CASE("Of several reports each is written, whatever becomes of the others") {
  const TemporaryDirectory dir;
  const auto outcome =
      finish(command({"--report=/dev/full", "--report=" + dir.file("a.xml"), "--report=" + dir.file("b.json"),
                      "--after=cp $DDRUN_REPORT " + dir.file("c"), "true"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "--report: cannot write /dev/full"));
  CHECK(has(read_file(dir.file("a.xml")), "<testsuite"));
  CHECK(json::parse(read_file(dir.file("b.json")))["verdict"] == "success");
  CHECK(json::parse(read_file(dir.file("c")))["verdict"] == "success");
}

TEST_CASE("A report to stdout comes behind what was written there before") {
  for (const std::string stdout_as : {"-", "/dev/stdout"}) {
    const TemporaryDirectory dir;
    // stdout is a file here, as in a batch job: it must not be replaced.
    const auto outcome = finish({"/bin/sh", "-c",
                                 "cd " + dir.path() + "; echo before >out; " + DDRUN_TEST_DDRUN +
                                     " --report=" + stdout_as + " /bin/echo worker >>out; echo after >>out"});
    DDRUN_SHOW(outcome);
    const std::string text = read_file(dir.file("out"));
    INFO(text);
    CHECK(text.starts_with("before\nworker\n{\n"));
    CHECK(text.ends_with("}\nafter\n"));
    CHECK(has(text, "\"verdict\": \"success\""));
    CHECK_FALSE(std::filesystem::exists(dir.file("-")));
  }
}

TEST_CASE("The message of an error file is shown and handed on to an outer launcher") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{"TORCHELASTIC_ERROR_FILE", dir.file("outer.json")}};
  const auto outcome = finish(
      job({"-n", "2"}, {"rank", "1", "fail-file", "ValueError: lr is negative", "exit", "1", ";", "forever"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 1);
  CHECK(has(outcome.err, "  message: ValueError: lr is negative\n"));
  const std::string handed_on = read_file(dir.file("outer.json"));
  INFO(handed_on);
  CHECK(json::parse(handed_on)["message"]["message"] == "ValueError: lr is negative");
}

TEST_CASE("An error file that the report has said whole is not left behind without log files") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{"TMPDIR", dir.path()}};
  const Words failing{"rank", "1", "fail-file", "ValueError: lr is negative", "exit", "1", ";", "forever"};
  const std::string report = dir.file("report.json");
  const auto outcome =
      finish(job({"-n", "2", "--max-restarts=2", "--same-cause=0", "--report=" + report}, failing), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 1);
  CHECK(has(outcome.err, "  message: ValueError: lr is negative\n"));
  const json error = json::parse(read_file(report))["attempts"][2]["workers"][1]["error"];
  CHECK(error["message"] == "ValueError: lr is negative");
  CHECK(error["file"].is_null());
  std::filesystem::remove(report);
  CHECK(std::filesystem::is_empty(dir.path()));

  // Nor is one of which nothing can be said, be it of a worker that ended well.
  const auto odd = finish(
      command({"-n", "2", "--max-restarts=1", "/bin/sh", "-c", "mkdir $TORCHELASTIC_ERROR_FILE; exit $RANK"}), options);
  DDRUN_SHOW(odd);
  CHECK(std::filesystem::is_empty(dir.path()));

  // Where logs are kept it stays with them.
  const auto logged =
      finish(job({"-n", "2", "-r", "3", "--log-dir=" + dir.path(), "--report=" + report}, failing), options);
  CHECK(logged.code() == 1);
  const json kept = json::parse(read_file(report))["attempts"][0]["workers"][1]["error"];
  CHECK(std::filesystem::exists(kept["file"].get<std::string>()));
}

TEST_CASE("Workers that failed by themselves at the same time are not called stopped") {
  const TemporaryDirectory dir;
  // Both are dead before ddrun can look: it is stopped while they die.
  Run run(job({"-n", "2"}, {"print", "ready", "await", dir.file("now"), "exit", "5"}));
  REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == 2; }));
  const auto line = descendants_of(run.pid());
  REQUIRE(line.size() == 4);
  REQUIRE(run.signal(line[1], SIGSTOP));
  write_file(dir.file("now"), "");
  REQUIRE(wait_until([&] { return descendants_of(run.pid()).size() == 2; }));
  REQUIRE(run.signal(line[1], SIGCONT));
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 5);
  CHECK(has(last_line(outcome.err), "failed too (exited with code 5)"));
}

TEST_CASE("The events of a job on one machine, in order") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("events");
  const auto outcome = finish(job(
      {"-n", "2", "--max-restarts=1", "--restart-backoff=0.02", "--events=" + file, "--rdzv-id=j"},
      {"attempt", "0", "rank", "0", "exit", "9", ";", "forever", ";", "rank", "1", "signal", "KILL", ";", "forever"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 137);
  std::vector<json> events;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
  std::vector<std::string> order;
  for (const json& event : events) order.push_back(event["event"]);
  CHECK(order == std::vector<std::string>{"joined", "round", "started", "failed", "ended", "restart", "round",
                                          "started", "failed", "ended", "verdict"});
  REQUIRE(events.size() == 11);
  CHECK(events[5]["pause_ms"] == 20);
  CHECK(events[5]["restarts"] == 1);
  CHECK(events[8]["signal"] == 9);
  CHECK(has(events[8]["why"].get<std::string>(), " killed by SIGKILL: "));  // and what the kernel says of it
  CHECK(events[10]["verdict"] == "worker_failed");
  CHECK(events[10]["exit_code"] == 137);
  CHECK(events[10]["signal"] == 9);
  CHECK(events[10]["rank"] == 1);
}

TEST_CASE("The rank that raised first is named though its victims end before it") {
  const TemporaryDirectory dir;
  // Rank 2 raises, and its interpreter takes its time; the others have lost their peer, and are gone before it is.
  const auto verbs = [&](bool record) {
    const std::string now = dir.file(record ? "now1" : "now0");
    Words words{"rank",  "2",
                "error", "Traceback (most recent call last):",
                "error", "  File \"train.py\", line 17, in <module>",
                "error", "ValueError: the real cause: shard 17 is corrupt"};
    if (record) words.insert(words.end(), {"fail-file", "ValueError: the real cause: shard 17 is corrupt"});
    words.insert(words.end(),
                 {"touch", now, "forever", ";", "await", now, "error", "Traceback (most recent call last):", "error",
                  "RuntimeError: [gloo] Connection closed by peer 10.0.0.3:33441"});
    if (record) words.insert(words.end(), {"fail-file", "RuntimeError: [gloo] Connection closed by peer"});
    words.insert(words.end(), {"exit", "1"});
    return words;
  };
  const std::pair<Words, bool> ways[] = {{{"-n", "3", "-r", "3", "--log-dir=" + dir.path()}, true},
                                         {{"-n", "3", "--local-ranks-filter=0"}, false}};
  for (const auto& [way, record] : ways) {
    Words options = way;
    options.push_back("--report=" + dir.file("report.json"));
    std::filesystem::remove(dir.file("now0"));
    std::filesystem::remove(dir.file("now1"));
    const auto outcome = finish(job(options, verbs(record)));
    INFO(way.back() << (record ? " with error files" : ""));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 1);
    const std::string report = outcome.err.substr(outcome.err.find("ddrun: error: "));
    CHECK(report.starts_with("ddrun: error: rank 2 failed first, after "));
    CHECK(has(report, "ValueError: the real cause: shard 17 is corrupt\n"));
    CHECK(has(report, "\n  status:  rank "));
    CHECK(has(report, " exited with code 1 after "));
    const json attempt = json::parse(read_file(dir.file("report.json")))["attempts"][0];
    INFO(attempt.dump(2));
    CHECK(attempt["cause"]["rank"] == 2);
    CHECK(attempt["cause"]["reason"] == "ValueError: the real cause: shard 17 is corrupt");
    CHECK(attempt["first_failed_rank"] != 2);
    CHECK(attempt["workers"][2]["stopped_by_ddrun"] == true);
    CHECK(attempt["workers"][2]["stderr_tail"].size() == 3);
    CHECK(attempt["workers"][2]["error"].is_null() != record);
  }
}

TEST_CASE("A failure that a rank has survived is not the cause of the job's") {
  const TemporaryDirectory dir;
  const auto verbs = [&](const Words& after, const Words& end) {
    const std::string now = dir.file("now");
    std::filesystem::remove(now);
    Words words{"rank", "0", "error", "Traceback (most recent call last):", "error", "OSError: no cache"};
    words.insert(words.end(), after.begin(), after.end());
    words.insert(words.end(), {"touch", now, "forever", ";", "await", now});
    words.insert(words.end(), end.begin(), end.end());
    return words;
  };
  const Words complains{"error", "RuntimeError: Connection closed by peer", "exit", "3"};
  const Words raises{"error", "Traceback (most recent call last):", "error", "ValueError: no data", "exit", "3"};
  const std::string report = dir.file("report.json");
  for (const Words& way : {Words{"-n", "2"}, Words{"-n", "2", "-r", "3", "--log-dir=" + dir.path()}}) {
    Words options = way;
    options.push_back("--report=" + report);
    const std::pair<Words, Words> cases[] = {{{}, raises}, {{"error", "on"}, raises}, {{"error", "on"}, complains}};
    for (const auto& [after, end] : cases) {
      const auto outcome = finish(job(options, verbs(after, end)));
      INFO(way.back() << " " << after.size() << " " << end.at(1));
      DDRUN_SHOW(outcome);
      CHECK(outcome.code() == 3);
      CHECK(has(outcome.err, "ddrun: error: rank 1 exited with code 3"));
      const json attempt = json::parse(read_file(report))["attempts"][0];
      CHECK(attempt["cause"]["rank"] == 1);
      CHECK(attempt["workers"][0]["last_words"].is_null() != after.empty());
    }
  }
  const auto stopped = finish(job({"-n", "1", "--label=rank", "--timeout=0.5"}, verbs({"error", "on"}, {})));
  DDRUN_SHOW(stopped);
  CHECK_FALSE(has(stopped.err, "had failed"));
}

TEST_CASE("The traceback is shown again if its place is far above") {
  const TemporaryDirectory dir;
  Words verbs{"rank",
              "1",
              "error",
              "Traceback (most recent call last):",
              "error",
              "  File \"train.py\", line 3, in f",
              "error",
              "ValueError: lr is negative",
              "touch",
              dir.file("now"),
              "await",
              dir.file("later"),
              "exit",
              "1",
              ";",
              "await",
              dir.file("now")};
  for (int i = 0; i < 30; ++i) verbs.insert(verbs.end(), {"error", "what others have to say"});
  verbs.insert(verbs.end(), {"touch", dir.file("later"), "forever"});
  const auto outcome = finish(job({"-n", "2"}, verbs));
  DDRUN_SHOW(outcome);
  CHECK(has(outcome.err,
            "  stderr:  Traceback (most recent call last):\n"
            "             File \"train.py\", line 3, in f\n"
            "           ValueError: lr is negative\n"));
}

TEST_CASE("A Python worker that crashes shows where it was") {
  const TemporaryDirectory dir;
  write_file(dir.file("crash.py"),
             "import os, signal\ndef step():\n    os.kill(os.getpid(), signal.SIGSEGV)\nstep()\n");
  const auto outcome = finish(command({"-n", "1", "--label=rank", dir.file("crash.py")}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 128 + SIGSEGV);
  CHECK(has(outcome.err, "  stderr:  Fatal Python error: Segmentation fault\n           File \"" +
                             dir.file("crash.py") + "\", line 3 in step\n"));
}

TEST_CASE("A job of very many restarts keeps its first and last attempts and counts the rest") {
  const TemporaryDirectory dir;
  const auto outcome = finish(job({"-n", "1", "--max-restarts=40", "--report=" + dir.file("r.json")}, {"exit", "3"}));
  CHECK(outcome.code() == 3);
  const json report = json::parse(read_file(dir.file("r.json")));
  CHECK(report["attempts_left_out"] == 9);
  REQUIRE(report["attempts"].size() == 32);
  CHECK(report["attempts"][7]["attempt"] == 7);
  CHECK(report["attempts"][8]["attempt"] == 17);
  CHECK(report["attempts"][31]["attempt"] == 40);
}

TEST_CASE("The time limit is said once, with what had become of each rank") {
  const auto outcome = finish(job({"-n", "3", "--timeout=0.4"}, {"rank", "1", "exit", "0", ";", "forever"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 124);
  CHECK(count(outcome.err, "limit") == 1);
  CHECK(has(outcome.err, "  workers: ranks 0,2 stopped by ddrun; rank 1 had finished\n"));
}

TEST_CASE("GitHub shows the failure, folds the output and gets a table") {
  const TemporaryDirectory dir;
  const std::string script = dir.file("train.py", "raise ValueError('100% wrong')\n");
  RunOptions options;
  options.env = {{"GITHUB_ACTIONS", "true"}, {"GITHUB_WORKSPACE", dir.path()}, {"GITHUB_STEP_SUMMARY", dir.file("s")}};
  const auto outcome = finish(command({"-n", "2", "--report=" + dir.file("r.xml"), script}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 1);
  CHECK(outcome.out.empty());
  const std::size_t begin = outcome.err.find("::group::"), raised = outcome.err.find("Traceback"),
                    end = outcome.err.find("\n::endgroup::\n"), report = outcome.err.find("ddrun: error: "),
                    mark = outcome.err.find("\n::error file=train.py,line=1,title=");
  CHECK((begin < raised && raised < end && end < report && report < mark));
  CHECK(mark != std::string::npos);
  CHECK(count(outcome.err, "::error ") == 1);
  CHECK(has(read_file(dir.file("s")), "| Outcome | rank "));
  CHECK(has(read_file(dir.file("r.xml")), "<failure message=\"ValueError: 100% wrong\""));

  // Switched off; nested; and a summary that cannot be written costs a line.
  Words off = command({"--ci=none", "true"});
  CHECK(finish(off, options).err.empty());
  const auto nested = finish(command({DDRUN_TEST_DDRUN, "true"}), options);
  CHECK(count(nested.err, "::group::") == 1);
  options.env[2].second = "/none/s";
  const auto unwritable = finish(command({"true"}), options);
  CHECK(unwritable.code() == 0);
  CHECK(count(unwritable.err, "ddrun: warning: cannot write GITHUB_STEP_SUMMARY=/none/s: ") == 1);
}
