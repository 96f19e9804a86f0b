#include "ddrun/agent/ci.hpp"

#include "ddrun/agent/report.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "job_samples.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using namespace ddrun::test;

namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

JobResult raised(std::vector<std::string> trace, std::string reason) {
  JobResult result = failed_job(3, 1, Exited{1});
  LastWords words;
  trace.push_back(reason);
  words.reason = {std::move(reason)};
  words.text = std::move(trace);
  first_failure(result).last_words = std::move(words);
  return result;
}

}  // namespace

TEST_CASE("A service is found by its variable, and not inside of a worker") {
  const auto found = [](std::string_view asked, std::vector<const char*> entries) {
    entries.push_back(nullptr);
    return detect_ci(asked, Environment(entries.data()));
  };
  CHECK(found("auto", {"GITHUB_ACTIONS=true"}) == CiService::github);
  CHECK(found("auto", {"GITLAB_CI=true"}) == CiService::gitlab);
  CHECK(found("auto", {"GITHUB_ACTIONS=false"}) == CiService::none);
  CHECK(found("auto", {"GITHUB_ACTIONS=true", "DDRUN_ROUND=1"}) == CiService::none);
  CHECK(found("none", {"GITHUB_ACTIONS=true"}) == CiService::none);
  CHECK(found("github", {"DDRUN_ROUND=1"}) == CiService::github);
}

TEST_CASE("The annotation is at the user's innermost frame and escapes what it quotes") {
  const JobResult result = raised({"Traceback (most recent call last):", "  File \"/ws/train, a.py\", line 7, in main",
                                   "  File \"/ws/.venv/lib/python3.11/site-packages/torch/x.py\", line 99, in forward"},
                                  "ValueError: 100%");
  CHECK(github_annotation(json_report(result), "/ws/") ==
        "::error file=train%2C a.py,line=7,title=train.py%3A rank 1 exited with code 1::ValueError: 100%25\n");
  CHECK(has(github_annotation(json_report(result), "/other"), "::error title="));
  CHECK(has(github_annotation(json_report(result), ""), "::error title="));
  const JobResult crashed = raised({"Thread 0x1 (most recent call first):", "  File \"/ws/other.py\", line 1 in f",
                                    "Current thread 0x2 (most recent call first):", "  File \"/ws/in.py\", line 3 in f",
                                    "  File \"/ws/out.py\", line 9 in g"},
                                   "x");
  CHECK(has(github_annotation(json_report(crashed), "/ws"), "file=in.py,line=3,"));
  CHECK(github_annotation(json_report(JobResult()), "/ws").empty());
}

TEST_CASE("No line of the report is a workflow command") {
  CHECK(escape_runner_commands("plain\n") == "plain\n");
  const std::string guarded = escape_runner_commands("  ::error::x\n");
  CHECK(guarded.starts_with("::stop-commands::"));
  CHECK(has(guarded, "\n  ::error::x\n::"));
}

TEST_CASE("The summary is a table with any message of a worker") {
  const std::string table = github_summary(json_report(raised({}, "E: a|b <i>`_\n::x")));
  CHECK(has(table, "| Outcome | rank 1 exited with code 1 (exit status 1) |\n"));
  CHECK(has(table, "a\\|b \\<i\\>\\`\\_ ::x |\n"));
  CHECK(has(table, "0,2 stopped by ddrun"));
  JobResult large = raised({}, std::string(100'000, '|'));
  large.program = std::string(100'000, '<');
  CHECK(github_summary(json_report(large)).size() < 8192);
}

TEST_CASE("JUnit has a case per rank, and any bytes in it") {
  JobResult result = raised({}, "E: <&>\"\x01\xFF ]]>\xEF\xBF\xBF");
  first_failure(result).stderr_tail = {"\033[31mred\033[m <x>"};
  result.attempts.insert(result.attempts.begin(), attempt(0, 3, 2, Exited{9}));
  const std::string xml = junit_report(json_report(result));
  CHECK(has(xml, "tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"2\""));
  CHECK(has(xml, "<property name=\"attempt 0\" value=\"rank 2 exited with code 9\"/>"));
  CHECK(has(xml, "message=\"E: &lt;&amp;&gt;&quot;"));
  CHECK(has(xml, "<system-err>red &lt;x&gt;&#10;</system-err>"));
  for (const char* const never : {"\x01", "\xFF", "\033", "\xEF\xBF\xBF", "]]>"}) CHECK_FALSE(has(xml, never));

  JobResult late;
  late.verdict = Verdict::timed_out;
  late.timeout = std::chrono::seconds(3);
  late.attempts.push_back(attempt(0, 0, 0, Exited{0}));
  late.attempts.back().first_failure.reset();
  late.attempts.back().cause.reset();
  CHECK(has(junit_report(json_report(late)), "<error message=\"stopped after 3"));
}

TEST_CASE("JUnit has the stacks of a job that hung, and the rank that held up the others as a failure") {
  JobResult result = failed_job(3, 2, Signaled{SIGTERM});
  result.verdict = Verdict::timed_out;
  result.timeout = std::chrono::seconds(3);
  AttemptResult& attempt = result.attempts.back();
  attempt.first_failure.reset();
  attempt.cause_evidence = {EvidenceKind::stack, {}};
  attempt.workers[2] = stopped(2);
  attempt.workers[2].why = "held up the others: load_batch (train.py:7), sleeps";
  attempt.stacks = R"([{"role": null, "ranks": [2], "doing": "sleeps", "native": [],
                        "python": [{"function": "load_batch", "file": "/job/train.py", "line": 7}]},
                       {"role": null, "ranks": [0, 1], "doing": "waits for other ranks", "python": [],
                        "native": [{"function": null, "module": "/lib/libnccl.so"}]}])";
  const std::string xml = junit_report(json_report(result));
  CHECK(has(xml, "tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"2\""));
  CHECK(has(xml, "<failure message=\"rank 2 held up the others: load_batch (train.py:7), sleeps\""));
  CHECK(has(xml, "<error message=\"stopped after 3.0 s, the limit set with --timeout; rank 2 held up the others: "));
  CHECK(has(xml,
            "<system-err>rank 2: sleeps&#10;    load_batch (/job/train.py:7)&#10;"
            "ranks 0,1: waits for other ranks&#10;    ? (/lib/libnccl.so)&#10;</system-err>\n  </testcase>"));
}
