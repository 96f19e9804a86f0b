#include "ddrun/agent/report.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "event_log.hpp"
#include "job_samples.hpp"
#include "worker_json.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using namespace ddrun::test;

TEST_CASE("a success without all its output stays a success in the report and has another exit code") {
  JobResult result;
  result.console_bytes_lost = 20;
  result.console_error = "cannot write to the console: No space left on device";
  const auto json = nlohmann::json::parse(json_report(result));
  CHECK(json["verdict"] == "success");
  CHECK(json["output_complete"] == false);
  CHECK(json["exit_code"] == 125);
}

TEST_CASE("the report has no control characters, and decodes to the same text") {
  JobResult result;
  const std::string name =
      "one\ntwo\033[2J\x7F\xC2\x9B"
      "2J \xC2\xA0-\xC3\xA9 \xE2\x80\xAE\xD8\x9C \xEF\xBB\xBF\xF3\xA0\x81\x81";
  result.host = name;
  const std::string report = json_report(result);
  for (const char* const control : {"\033", "\x7F", "\xC2\x9B", "\xE2\x80", "\xD8", "\xEF", "\xF3"})
    CHECK(report.find(control) == std::string::npos);
  CHECK(nlohmann::json::parse(report)["host"] == name);
}

TEST_CASE("the events of --event-log-handler have no control characters") {
  std::string said;
  set_message_sink([&](std::string_view line) { said += line; });
  JobResult result;
  result.verdict = Verdict::node_lost;
  result.message =
      "node\x7F\xC2\x9B"
      "2J\033 was lost";
  Preparation prepared;
  prepared.programs.resize(1);
  EventLog("console", prepared, "c10d").job_ended(result);
  set_message_sink({});
  for (const char* const control : {"\033", "\x7F", "\xC2\x9B"}) CHECK(said.find(control) == std::string::npos);
  CHECK(nlohmann::json::parse(said)["metadata"]["raw_error"] == result.message);
}

TEST_CASE("the report has every fact of the result under its key") {
  JobResult result = failed_job(2, 1, Signaled{SIGSEGV, true});
  result.max_restarts = 3;
  result.log_dir = "/logs";
  result.started = std::chrono::system_clock::time_point(1795223473123ms);
  result.attempts[0].workers.erase(result.attempts[0].workers.begin());
  result.attempts[0].first_failure = 0;
  result.attempts[0].cause = 0;
  result.attempts[0].cause_evidence = {EvidenceKind::last_words, result.started + 12s};
  WorkerEnd& end = first_failure(result);
  end.started = result.started;
  end.ended = result.started + 12300ms;
  end.use = {2048, 1500ms, 250ms};
  end.why = "core file: /data/core.4701";
  end.error = WorkerError{"boom", "", "/logs/1/error.json", result.started + 12s};
  end.last_words = LastWords{};
  end.last_words->reason = {"one"};
  end.last_words->text = {"trace", "one"};
  end.last_words->at = result.started + 12s;
  end.stderr_tail = {"one", "two"};
  end.stderr_log = "/logs/1/stderr.log";
  Json report = Json::parse(json_report(result));
  Json cause = std::exchange(report["cause"]["worker"], nullptr);
  cause["host"] = "node7";
  cause["node_rank"] = 0;
  CHECK(cause == report["attempts"][0]["workers"][0]);
  CHECK(report.dump(2) == R"({
  "schema_version": 1,
  "verdict": "worker_failed",
  "exit_code": 139,
  "signal": null,
  "signal_sender": null,
  "message": "rank 1 was killed by SIGSEGV (invalid memory access), core dumped",
  "run_id": "job7",
  "host": "node7",
  "program": "train.py",
  "programs": [
    {
      "role": "default",
      "program": "train.py",
      "service": false,
      "workers": 2,
      "world": 0
    }
  ],
  "log_dir": "/logs",
  "world_size": 2,
  "node_count": 1,
  "cause": {
    "why": "rank 1 was killed by SIGSEGV (invalid memory access), core dumped",
    "host": "node7",
    "node_rank": 0,
    "worker": null,
    "failed_first": null
  },
  "max_restarts": 3,
  "timeout_s": null,
  "started": "2026-11-21T01:11:13.123Z",
  "ran_s": 12.4,
  "log_bytes_lost": 0,
  "log_error": null,
  "console_bytes_lost": 0,
  "console_error": null,
  "output_complete": true,
  "stacks": [],
  "before": null,
  "after": null,
  "preload": null,
  "attempts_left_out": 0,
  "attempts": [
    {
      "attempt": 0,
      "ran_s": 12.3,
      "first_failed_role": null,
      "first_failed_rank": 1,
      "cause": {
        "role": null,
        "rank": 1,
        "evidence": "last_words",
        "time": "2026-11-21T01:11:25.123Z",
        "reason": "core file: /data/core.4701"
      },
      "stacks": [],
      "workers": [
        {
          "role": null,
          "rank": 1,
          "local_rank": 1,
          "pid": 4701,
          "exit_code": null,
          "signal": {
            "number": 11,
            "name": "SIGSEGV"
          },
          "core_dumped": true,
          "ended_how": "killed by SIGSEGV (invalid memory access), core dumped",
          "success": false,
          "stopped_by_ddrun": false,
          "why": "core file: /data/core.4701",
          "shm": null,
          "python": null,
          "started": "2026-11-21T01:11:13.123Z",
          "ended": "2026-11-21T01:11:25.423Z",
          "ran_s": 12.3,
          "max_rss_kib": 2048,
          "user_time_s": 1.5,
          "system_time_s": 0.25,
          "error": {
            "message": "boom",
            "traceback": null,
            "file": "/logs/1/error.json",
            "time": "2026-11-21T01:11:25.123Z"
          },
          "last_words": {
            "reason": "one",
            "text": [
              "trace",
              "one"
            ],
            "time": "2026-11-21T01:11:25.123Z",
            "of_a_victim": false
          },
          "stderr_tail": [
            "one",
            "two"
          ],
          "stdout_log": null,
          "stderr_log": "/logs/1/stderr.log",
          "host": "node7",
          "node_rank": 0
        }
      ]
    }
  ]
})");
}

TEST_CASE("the report says what ended the job, on one machine too") {
  JobResult result = failed_job(3, 0, Exited{1});
  AttemptResult& last = result.attempts.back();
  const auto report = [&] { return nlohmann::json::parse(json_report(result)); };
  last.cause = 2;
  last.cause_evidence = {EvidenceKind::last_words, {}};
  CHECK(report()["message"] == "rank 2 failed first");
  CHECK(report()["cause"]["worker"]["rank"] == 0);
  CHECK(report()["cause"]["failed_first"]["rank"] == 2);
  CHECK(report()["cause"]["failed_first"]["host"] == "node7");

  result.verdict = Verdict::timed_out;
  result.timeout = 2s;
  last.first_failure.reset();
  last.workers[0] = stopped(0);
  last.cause_evidence.kind = EvidenceKind::stack;
  last.workers[2].why = "held up the others: load_batch (train.py:7), sleeps";
  CHECK(
      report()["message"] ==
      "stopped after 2.0 s, the limit set with --timeout; rank 2 held up the others: load_batch (train.py:7), sleeps");
  CHECK(report()["cause"]["why"] == report()["message"]);
  CHECK(report()["cause"]["worker"]["rank"] == 2);
  CHECK(report()["cause"]["failed_first"].is_null());

  last.cause.reset();
  result.message = "rank 1 still ran 1.0 s after the first worker had ended well (--exit-skew)";
  CHECK(report()["message"] == result.message);
  CHECK(report()["cause"]["why"] == result.message);
  CHECK(report()["cause"]["worker"].is_null());
  result.verdict = Verdict::success;
  CHECK(report()["cause"].is_null());
}

TEST_CASE("exit code 9 and SIGKILL are different in the report") {
  const auto worker_of = [](ExitStatus status) {
    return nlohmann::json::parse(json_report(failed_job(1, 0, status)))["attempts"][0]["workers"][0];
  };
  CHECK(worker_of(Exited{9})["exit_code"] == 9);
  CHECK(worker_of(Exited{9})["signal"].is_null());
  CHECK(worker_of(Signaled{SIGKILL})["exit_code"].is_null());
  CHECK(worker_of(Signaled{SIGKILL})["signal"]["name"] == "SIGKILL");
}

TEST_CASE("a job stopped by a signal names it and its sender") {
  JobResult result = failed_job(1, 0, Signaled{SIGTERM});
  result.verdict = Verdict::stopped_by_signal;
  result.signal = SIGINT;
  result.signal_sender = "pid 1 (init)";
  const auto json = nlohmann::json::parse(json_report(result));
  CHECK(json["verdict"] == "stopped_by_signal");
  CHECK(json["exit_code"] == 130);
  CHECK(json["signal"]["name"] == "SIGINT");
  CHECK(json["signal_sender"] == "pid 1 (init)");
}

TEST_CASE("bytes that are not UTF-8 do not spoil the report") {
  JobResult result = failed_job(1, 0, Exited{1});
  first_failure(result).stderr_tail = {std::string("a\xff\0b", 4)};
  const auto json = nlohmann::json::parse(json_report(result));
  CHECK(json["attempts"][0]["workers"][0]["stderr_tail"][0] == std::string("a\xef\xbf\xbd\0b", 6));
}

TEST_CASE("the report file is replaced atomically and no temporary file is left") {
  const TemporaryDirectory dir;
  const std::string path = dir.file("report.json", "old");
  const JobResult result = failed_job(1, 0, Exited{1});
  REQUIRE(write_report(path, json_report(result)));
  CHECK(read_file(path) == json_report(result));
  REQUIRE(::symlink(path.c_str(), (dir.path() + "/link").c_str()) == 0);
  REQUIRE(write_report(dir.path() + "/link", json_report(JobResult())));
  CHECK(std::filesystem::is_symlink(dir.path() + "/link"));
  CHECK(read_file(path) == json_report(JobResult()));
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 2);
}

TEST_CASE("a report is not written into a file that another user may have put there") {
  const TemporaryDirectory dir;
  const std::string path = dir.file("report.json");
  const std::string foreseen = path + "." + std::to_string(::getpid()) + ".tmp";
  SECTION("a FIFO, which would block") { REQUIRE(::mkfifo(foreseen.c_str(), 0666) == 0); }
  SECTION("a file, whose owner could change the report") { write_file(foreseen, "theirs"); }
  REQUIRE(write_report(path, json_report(JobResult())));
  CHECK(read_file(path) == json_report(JobResult()));
  CHECK(std::filesystem::exists(foreseen));
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 2);
}

TEST_CASE("a report keeps the mode of the file that it replaces, and a new one has the mode of the umask") {
  const TemporaryDirectory dir;
  const auto mode_after = [&](const std::string& path) {
    REQUIRE(write_report(path, json_report(JobResult())));
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    return info.st_mode & 07777U;
  };
  const mode_t before = ::umask(027);
  CHECK(mode_after(dir.file("new.json")) == 0640);
  for (const mode_t mode : {0600U, 0664U, 0444U}) {
    const std::string path = dir.file("old.json", "old");
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    CHECK(mode_after(path) == mode);
    ::unlink(path.c_str());
  }
  ::umask(before);
}

TEST_CASE("a report keeps the owner of the file that it replaces, but not where others may make files") {
  if (::geteuid() != 0) skip("needs root");
  const TemporaryDirectory dir;
  const auto owner_after = [&](mode_t of_directory) {
    const std::string path = dir.file("report.json", "old");
    REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
    REQUIRE(::chmod(path.c_str(), 0666) == 0);
    REQUIRE(::chmod(dir.path().c_str(), of_directory) == 0);
    REQUIRE(write_report(path, json_report(JobResult())));
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    return std::pair(info.st_uid, info.st_mode & 022U);
  };
  CHECK(owner_after(0755) == std::pair<uid_t, mode_t>(65534, 022));
  const mode_t before = ::umask(022);
  CHECK(owner_after(01777) == std::pair<uid_t, mode_t>(0, 0));
  ::umask(before);
}

TEST_CASE("a report that cannot be written says which file and why") {
  const TemporaryDirectory dir;
  const auto nowhere = write_report("/dev/null/report.json", json_report(JobResult()));
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().code == Errc::unavailable);
  CHECK(nowhere.error().message == "--report: cannot write /dev/null/report.json: Not a directory");
  const auto directory = write_report(dir.path(), json_report(JobResult()));
  REQUIRE_FALSE(directory);
  CHECK(directory.error().message == "--report: cannot write " + dir.path() + ": Is a directory");
  const auto full = write_report("/dev/full", json_report(JobResult()));
  REQUIRE_FALSE(full);
  CHECK(full.error().message == "--report: cannot write /dev/full: No space left on device");
  CHECK(write_report("/dev/null", json_report(JobResult())));
}

TEST_CASE("a worker that failed before the cause is read from a verdict, of the same node or of another") {
  const auto failed_first = [](const rendezvous::VerdictMessage& verdict) {
    const auto found = read_failed_first(verdict);
    if (!found) return std::string("none");
    return concat("rank ", found->worker.rank, " on '", found->host, "' after ",
                  format_duration(found->evidence.at - found->worker.started));
  };
  rendezvous::VerdictMessage verdict;
  Json cause = worker_json(worker(3, Exited{1}));
  verdict.cause = one_line(cause);
  CHECK(failed_first(verdict) == "none");
  const Evidence evidence{EvidenceKind::last_words, std::chrono::system_clock::time_point(2500ms)};
  add_failed_before(cause, worker(5, Exited{2}), evidence);
  verdict.cause = one_line(cause);
  CHECK(failed_first(verdict) == "rank 5 on '' after 2.5 s");
  // Another node's takes precedence, and there the one that its report names.
  Json other = worker_json(worker(8, Exited{1}));
  verdict.failed_first = {one_line(other), "c", 2};
  CHECK(failed_first(verdict) == "rank 8 on 'c' after 0.0 ms");
  add_failed_before(other, worker(9, Exited{1}), evidence);
  verdict.failed_first.failure = one_line(other);
  CHECK(failed_first(verdict) == "rank 9 on 'c' after 2.5 s");
  verdict.failed_first.failure = "no JSON";
  CHECK(failed_first(verdict) == "none");
}

TEST_CASE("the report of a job on several machines has the workers of all of them, by rank") {
  JobResult result = failed_job(1, 0, Exited{7});
  result.host = "a";
  result.node_count = 2;
  result.attempts[0].round = 4;
  result.attempts[0].workers[0].rank = 1;
  result.other_nodes.push_back({4, 1, "b", R"([{"rank":0,"exit_code":0},{"rank":2,"exit_code":3}])"});
  result.other_nodes.push_back({3, 1, "b", R"([{"rank":9}])"});  // of another round
  result.other_nodes.push_back({4, 0, "a", R"([{"rank":1}])"});  // of this node
  result.other_nodes.push_back({4, 2, "c", "what is this"});
  JobCause cause;
  cause.exit_code = 3;
  cause.host = "b";
  cause.node_rank = 1;
  cause.why = "rank 2 on b exited with code 3";
  result.cause = cause;
  const auto json = nlohmann::json::parse(json_report(result));
  CHECK(json["exit_code"] == 3);
  CHECK(json["cause"]["host"] == "b");
  CHECK(json["cause"]["worker"].is_null());
  const auto& workers = json["attempts"][0]["workers"];
  REQUIRE(workers.size() == 3);
  for (int rank = 0; rank < 3; ++rank) CHECK(workers[rank]["rank"] == rank);
  CHECK(workers[0]["host"] == "b");
  CHECK(workers[1]["host"] == "a");
  CHECK(workers[2]["node_rank"] == 1);
}
