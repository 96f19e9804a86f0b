#include "ddrun/agent/report.hpp"

#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "job_samples.hpp"
#include "worker_json.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using namespace ddrun::test;

TEST_CASE("a failed worker is named first and the others are one line") {
  const JobResult result = failed_job(8, 3, Exited{1});
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 3 exited with code 1 after 12.3 s (pid 4703 on node7)\n"
        "  others:  ranks 0-2,4-7 stopped by ddrun\n");
}

TEST_CASE("a failure that a rank declares is the cause, with its own end beside it") {
  JobResult result = failed_job(3, 1, Signaled{SIGTERM});
  result.attempts[0].workers[1].declared = DeclaredFailure{37, "called MPI_Abort(37)", {}};
  CHECK(exit_code(result) == 37);
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 1 called MPI_Abort(37) after 12.3 s (pid 4701 on node7)\n"
        "  ended:   killed by SIGTERM\n"
        "  others:  ranks 0,2 stopped by ddrun\n");
  const auto read = worker_from_json(one_line(worker_json(result.attempts[0].workers[1])));
  REQUIRE((read && read->declared));
  CHECK(read->declared->what == "called MPI_Abort(37)");
  CHECK(read->declared->code == 37);
}

TEST_CASE("a single worker that failed is one line") {
  CHECK(failure_report(failed_job(1, 0, Exited{9}), false) ==
        "ddrun: error: rank 0 exited with code 9 after 12.3 s (pid 4700 on node7)\n");
}

TEST_CASE("the message of error json and the last lines on stderr and the log are shown") {
  JobResult result = failed_job(4, 1, Exited{1});
  WorkerEnd& end = first_failure(result);
  end.local_rank = 0;
  end.error =
      WorkerError{"ValueError: boom", "Traceback ...\n  File \"a.py\"\nValueError: boom\n", "/logs/1/error.json"};
  end.stderr_tail = {"Traceback (most recent call last):", "  File \"train.py\", line 3, in <module>", "",
                     "\033[1;31mValueError\033[0m: boom\r"};
  end.stderr_log = "/logs/attempt_0/1/stderr.log";
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 1 exited with code 1 after 12.3 s (local rank 0, pid 4701 on node7)\n"
        "  message: ValueError: boom\n"
        "  stderr:  Traceback (most recent call last):\n"
        "             File \"train.py\", line 3, in <module>\n"
        "           ValueError: boom\n"
        "  trace:   Traceback ...\n"
        "             File \"a.py\"\n"
        "           ValueError: boom\n"
        "  log:     /logs/attempt_0/1/stderr.log\n"
        "  others:  ranks 0,2,3 stopped by ddrun\n");

  // The traceback on stderr is the same one.
  end.last_words = LastWords{};
  end.last_words->reason = {"ValueError: boom"};
  end.last_words->text = {"Traceback (most recent call last):", "  File \"train.py\", line 3, in <module>",
                          "ValueError: boom"};
  const std::string once =
      "ddrun: error: rank 1 exited with code 1 after 12.3 s (local rank 0, pid 4701 on node7)\n"
      "  message: ValueError: boom\n"
      "  stderr:  Traceback (most recent call last):\n"
      "             File \"train.py\", line 3, in <module>\n"
      "           ValueError: boom\n"
      "  log:     /logs/attempt_0/1/stderr.log\n"
      "  others:  ranks 0,2,3 stopped by ddrun\n";
  CHECK(failure_report(result, false) == once);
  end.stderr_was_shown = true;
  end.lines_since = 21;  // far above on the console
  CHECK(failure_report(result, false) == once);
  end.lines_since = 20;
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 1 exited with code 1 after 12.3 s (local rank 0, pid 4701 on node7)\n"
        "  message: ValueError: boom\n"
        "  log:     /logs/attempt_0/1/stderr.log\n"
        "  others:  ranks 0,2,3 stopped by ddrun\n");
  end.error.reset();
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 1 exited with code 1 after 12.3 s (local rank 0, pid 4701 on node7)\n"
        "  stderr:  ValueError: boom\n"
        "  log:     /logs/attempt_0/1/stderr.log\n"
        "  others:  ranks 0,2,3 stopped by ddrun\n");
}

TEST_CASE("a traceback keeps its line numbers and its message, and on a wide console its paths") {
  JobResult result = failed_job(1, 0, Exited{1});
  const std::string folder = "/home/user/miniconda3/envs/training/lib/python3.11/site-packages/torch/nn/";
  const std::string frame = "\", line 1775, in _call_impl";
  const std::string message = "FileNotFoundError: [Errno 2] No such file or directory: '" + folder + "'";
  first_failure(result).stderr_tail = {"Traceback (most recent call last):",
                                       "  File \"" + folder + "modules/module.py" + frame,
                                       "    return forward_call(*args, **kwargs)",
                                       "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
                                       "           ~~~~~~^^^^^",
                                       message};
  const auto report = [&](const std::string& path) {
    return "ddrun: error: rank 0 exited with code 1 after 12.3 s (pid 4700 on node7)\n"
           "  stderr:  Traceback (most recent call last):\n"
           "             File \"" +
           path + frame + "\n               return forward_call(*args, **kwargs)\n           " + message + "\n";
  };
  CHECK(failure_report(result, false) == report(".../site-packages/torch/nn/modules/module.py"));
  CHECK(failure_report(result, false, 200) == report(folder + "modules/module.py"));
}

TEST_CASE("the first failure comes first, then the worker that gives the exit status") {
  JobResult result = failed_job(3, 0, Exited{1});
  AttemptResult& attempt = result.attempts.back();
  attempt.cause = 2;
  WorkerEnd& cause = attempt.workers[2];
  cause.started = std::chrono::system_clock::time_point(1000s);
  attempt.cause_evidence = {EvidenceKind::last_words, cause.started + 300ms};
  cause.last_words = LastWords{};
  cause.last_words->reason = cause.last_words->text = {"ValueError: shard 17 is corrupt"};
  cause.stderr_log = "/logs/2/stderr.log";
  attempt.workers[0].error = WorkerError{"\033[31mRuntimeError\033[0m: Connection closed by peer", "", ""};
  const std::string rest =
      "  stderr:  ValueError: shard 17 is corrupt\n"
      "  log:     /logs/2/stderr.log\n";
  CHECK(failure_report(result, false) == "ddrun: error: rank 2 failed first, after 0.3 s (pid 4702 on node7)\n" + rest +
                                             "  status:  rank 0 exited with code 1 after 12.3 s, before rank 2 did: "
                                             "RuntimeError: Connection closed by peer\n"
                                             "  others:  ranks 1,2 stopped by ddrun\n");

  result.verdict = Verdict::stopped_by_signal;
  result.signal = SIGINT;
  attempt.first_failure.reset();
  attempt.workers[0] = stopped(0);
  CHECK(failure_report(result, false) ==
        "ddrun: stopped by SIGINT after 12.4 s\n"
        "  failed:  rank 2 had failed after 0.3 s (pid 4702 on node7)\n" +
            rest + "  workers: ranks 0-2 stopped by ddrun\n");
}

TEST_CASE("a rank that held up the others comes before the one that timed out") {
  JobResult result = failed_job(3, 0, Exited{1});
  AttemptResult& attempt = result.attempts.back();
  attempt.cause = 2;
  attempt.cause_evidence = {EvidenceKind::stack, {}};
  attempt.workers[2].why = "held up the others: load_batch (train.py:7), sleeps";
  attempt.workers[0].stderr_tail = {"RuntimeError: Timed out waiting 6000ms for recv operation to complete"};
  const std::string report =
      "ddrun: error: rank 2 held up the others: load_batch (train.py:7), sleeps (pid 4702 on node7)\n"
      "  status:  rank 0 exited with code 1 after 12.3 s: RuntimeError: Timed out waiting 6000ms for recv operation to "
      "complete\n"
      "  others:  ranks 1,2 stopped by ddrun\n";
  CHECK(failure_report(result, false) == report);
  result.attempts.insert(result.attempts.begin(), result.attempts.back());
  CHECK(failure_report(result, false) ==
        report +
            "  earlier: attempt 0: rank 0 exited with code 1 after 12.3 s: rank 2 held up the others: load_batch "
            "(train.py:7), sleeps\n");
}

TEST_CASE("a rank that held up the others until the job timed out is named") {
  JobResult result = failed_job(3, 2, Signaled{SIGTERM});
  result.verdict = Verdict::timed_out;
  result.timeout = 2s;
  AttemptResult& attempt = result.attempts.back();
  attempt.first_failure.reset();
  attempt.cause_evidence = {EvidenceKind::stack, {}};
  attempt.workers[2] = stopped(2);
  attempt.workers[2].why = "held up the others: load_batch (train.py:7), sleeps";
  attempt.workers[2].stderr_log = "/logs/2/stderr.log";
  CHECK(failure_report(result, false) ==
        "ddrun: error: stopped after 2.0 s, the limit set with --timeout\n"
        "  cause:   rank 2 held up the others: load_batch (train.py:7), sleeps (pid 4702 on node7)\n"
        "  log:     /logs/2/stderr.log\n"
        "  workers: ranks 0-2 stopped by ddrun\n");
}

TEST_CASE("earlier attempts have their reason and their log") {
  JobResult result = failed_job(2, 1, Exited{1});
  result.attempts = {attempt(0, 2, 1, Exited{1}), attempt(1, 2, 1, Exited{1}), attempt(2, 2, 1, Exited{1}),
                     attempt(3, 2, 0, Exited{2}, 500ms)};
  for (std::size_t i = 0; i < 3; ++i) {
    result.attempts[i].workers[1].stderr_tail = {i == 2 ? "\033]0;x\aKeyError: 'b'" : "KeyError: 'a'"};
    result.attempts[i].workers[1].stderr_log = concat("/logs/", i, "/stderr.log");
  }
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 exited with code 2 after 0.5 s (pid 4700 on node7)\n"
        "  others:  rank 1 stopped by ddrun\n"
        "  earlier: attempts 0-1: rank 1 exited with code 1: KeyError: 'a'\n"
        "             /logs/1/stderr.log\n"
        "           attempt 2: rank 1 exited with code 1 after 12.3 s: KeyError: 'b'\n"
        "             /logs/2/stderr.log\n");
}

TEST_CASE("of what the console has just shown only the last line is shown again") {
  JobResult result = failed_job(1, 0, Exited{1});
  first_failure(result).stderr_tail = {"one", "boom"};
  CHECK(failure_report(result, false).find("one") != std::string::npos);
  first_failure(result).stderr_was_shown = true;
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 exited with code 1 after 12.3 s (pid 4700 on node7)\n  stderr:  boom\n");
}

TEST_CASE("signals are named and the reason stands below") {
  JobResult result = failed_job(2, 0, Signaled{SIGKILL, false});
  first_failure(result).why =
      "out of memory: the kernel's OOM killer ended it (memory limit of cgroup /slurm/job_17/step_0: 4 GiB)";
  first_failure(result).use.max_rss_kib = 4089446;
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 was killed by SIGKILL after 12.3 s (pid 4700 on node7)\n"
        "  why:     out of memory: the kernel's OOM killer ended it (memory limit of cgroup\n"
        "           /slurm/job_17/step_0: 4 GiB); it had up to 3.9 GiB in memory\n"
        "  others:  rank 1 stopped by ddrun\n");

  result = failed_job(1, 0, Signaled{SIGSEGV, true});
  first_failure(result).why = "core file: /data/core.4700";
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 was killed by SIGSEGV (invalid memory access), core dumped, after 12.3 s (pid 4700 on "
        "node7)\n"
        "  why:     core file: /data/core.4700\n");
}

TEST_CASE("the other workers are grouped by how they ended") {
  JobResult result = failed_job(8, 0, Exited{3});
  auto& workers = result.attempts.back().workers;
  workers[1] = worker(1, Exited{0});
  workers[2] = worker(2, Exited{4});
  workers[3] = worker(3, Exited{4});
  workers[5] = stopped(5, SIGKILL);
  workers[7].pid = 0;
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 exited with code 3 after 12.3 s (pid 4700 on node7)\n"
        "  others:  ranks 2,3 failed too (exited with code 4); ranks 4,6 stopped by ddrun; rank 5 killed by\n"
        "           ddrun (SIGKILL); rank 1 had finished; rank 7 not started\n");
}

TEST_CASE("earlier attempts have a line each and equal ones share it") {
  JobResult result = failed_job(2, 1, Exited{1});
  result.attempts = {attempt(0, 2, 0, Signaled{SIGSEGV}, 3200ms), attempt(1, 2, 1, Exited{1}),
                     attempt(2, 2, 1, Exited{1}), attempt(3, 2, 0, Exited{2}, 500ms)};
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 exited with code 2 after 0.5 s (pid 4700 on node7)\n"
        "  others:  rank 1 stopped by ddrun\n"
        "  earlier: attempt 0: rank 0 was killed by SIGSEGV (invalid memory access) after 3.2 s\n"
        "           attempts 1-2: rank 1 exited with code 1\n");

  result.attempts.clear();
  for (int i = 0; i < 9; ++i) result.attempts.push_back(attempt(i, 1, 0, Exited{10 + i}));
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 exited with code 18 after 12.3 s (pid 4700 on node7)\n"
        "  earlier: attempts 0-3: see --report or the log directory\n"
        "           attempt 4: rank 0 exited with code 14 after 12.3 s\n"
        "           attempt 5: rank 0 exited with code 15 after 12.3 s\n"
        "           attempt 6: rank 0 exited with code 16 after 12.3 s\n"
        "           attempt 7: rank 0 exited with code 17 after 12.3 s\n");
}

TEST_CASE("the abort in PyTorch's teardown is explained") {
  JobResult result = failed_job(1, 0, Signaled{SIGABRT, false});
  first_failure(result).stderr_tail = {"terminate called without an active exception"};
  first_failure(result).stderr_was_shown = true;
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 0 was killed by SIGABRT (the program aborted itself) after 12.3 s (pid 4700 on node7)\n"
        "  note:    the program ended while C++ threads of it still ran. With PyTorch this happens now and\n"
        "           then at the end of a script, after its work is done, also when nothing is wrong with it\n"
        "  stderr:  terminate called without an active exception\n");
  first_failure(result).status = Exited{1};
  CHECK(failure_report(result, false).find("note") == std::string::npos);
}

TEST_CASE("a worker that SIGKILL did not end still runs in the report") {
  JobResult result = failed_job(3, 0, Exited{3});
  WorkerEnd& lives = result.attempts.back().workers[1];
  lives = stopped(1, SIGKILL);
  lives.still_runs = true;
  CHECK(failure_report(result, false).find("others:  rank 1 still runs (pid 4701): cannot be ended; rank 2 stopped") !=
        std::string::npos);
  const auto told = nlohmann::json::parse(json_report(result))["attempts"].back()["workers"][1];
  CHECK(told["ended_how"] == "still runs: cannot be ended");
  CHECK(told["signal"].is_null());
  CHECK(told["exit_code"].is_null());
  CHECK(told["ended"].is_null());
  CHECK(told["stopped_by_ddrun"] == false);
}

TEST_CASE("a time limit and a signal take two lines") {
  JobResult result = failed_job(4, 0, Exited{0});
  result.attempts.back().first_failure.reset();
  result.attempts.back().cause.reset();
  result.attempts.back().workers = {stopped(0), stopped(1), stopped(2, SIGKILL), worker(3, Exited{0})};
  result.verdict = Verdict::timed_out;
  result.timeout = 2min;
  result.log_dir = "/logs";
  CHECK(failure_report(result, false) ==
        "ddrun: error: stopped after 2 min 0 s, the limit set with --timeout\n"
        "  workers: ranks 0,1 stopped by ddrun; rank 2 killed by ddrun (SIGKILL); rank 3 had finished\n"
        "  logs:    /logs\n");

  result.verdict = Verdict::stopped_by_signal;
  result.signal = SIGTERM;
  result.signal_sender = "pid 4711 (slurmstepd)";
  result.attempts.back().workers = {stopped(0), stopped(1)};
  CHECK(failure_report(result, false) ==
        "ddrun: stopped by SIGTERM from pid 4711 (slurmstepd) after 12.4 s\n"
        "  workers: ranks 0,1 stopped by ddrun\n");
}

TEST_CASE("a failure of ddrun itself is one sentence") {
  JobResult result;
  result.verdict = Verdict::launcher_failed;
  result.message = "cannot make a pipe: Too many open files; raise the limit with ulimit -n";
  CHECK(failure_report(result, false) ==
        "ddrun: error: cannot make a pipe: Too many open files; raise the limit with ulimit -n\n");
}

TEST_CASE("a single worker whose reader has left is no error") {
  CHECK(failure_report(failed_job(1, 0, Signaled{SIGPIPE}), true).starts_with("ddrun: rank 0 was killed by SIGPIPE"));
  CHECK(failure_report(failed_job(2, 0, Signaled{SIGPIPE}), false)
            .starts_with("ddrun: error: rank 0 was killed by SIGPIPE"));
}

TEST_CASE("after a success only lost output is reported") {
  JobResult result;
  CHECK(failure_report(result, false).empty());
  result.log_bytes_lost = 1'572'864;
  result.log_error = "No space left on device";
  CHECK(failure_report(result, false) ==
        "ddrun: error: all workers succeeded, but log files are incomplete: 1.5 MiB could not be written (No space "
        "left on "
        "device)\n");
}

TEST_CASE("colour marks the error and the labels only") {
  CHECK(failure_report(failed_job(2, 0, Exited{1}), true) ==
        "ddrun: \033[1;31merror: \033[0mrank 0 exited with code 1 after 12.3 s (pid 4700 on node7)\n"
        "\033[2m  others:  \033[0mrank 1 stopped by ddrun\n");
}

TEST_CASE("long and odd output of workers keeps the report short and its lines whole") {
  JobResult result = failed_job(1, 0, Exited{1});
  WorkerEnd& end = first_failure(result);
  for (int i = 0; i < 50; ++i) end.stderr_tail.push_back(concat("line ", i));
  std::string umlauts;
  for (int i = 0; i < 300; ++i) umlauts += "\xc3\xa4";
  end.stderr_tail.push_back(umlauts);
  end.stderr_tail.push_back(" 10%|#   |\r 20%|##  |\r 30%|### |\r");
  end.stderr_tail.push_back("\033]0;title\007bell\a and \x01 control");
  end.error = WorkerError{"a\nb\nc\nd\ne", "", "/x"};
  const std::string report = failure_report(result, false);
  const auto lines = split(report, '\n');
  REQUIRE(lines.size() == 1 + 3 + 8 + 1);
  CHECK(lines[3] == "           c ...");
  CHECK(lines[4] == "  stderr:  line 45");
  std::string kept;
  for (int i = 0; i < 86; ++i) kept += "\xc3\xa4";
  CHECK(lines[9] == "           " + kept + "...");
  CHECK(lines[10] == "            30%|### |");
  CHECK(lines[11] == "           bell and  control");
}

TEST_CASE("ten thousand ranks stay one line") {
  JobResult result = failed_job(10'000, 77, Exited{1});
  auto& workers = result.attempts.back().workers;
  for (std::size_t i = 0; i < workers.size(); i += 2) {
    if (i != 77) workers[i] = worker(static_cast<int>(i), Exited{0});
  }
  CHECK(failure_report(result, false) ==
        "ddrun: error: rank 77 exited with code 1 after 12.3 s (pid 4777 on node7)\n"
        "  others:  ranks 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33,35,... (4999 ranks) stopped by ddrun;\n"
        "           ranks 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,... (5000 ranks) had finished\n");
}
