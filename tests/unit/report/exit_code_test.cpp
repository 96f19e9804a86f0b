#include <signal.h>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/test/catch.hpp"
#include "job_samples.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using namespace ddrun::test;

TEST_CASE("the exit code is that of the worker that failed first") {
  CHECK(exit_code(JobResult()) == 0);
  CHECK(exit_code(failed_job(4, 2, Exited{7})) == 7);
  CHECK(exit_code(failed_job(4, 2, Exited{255})) == 255);
  CHECK(exit_code(failed_job(4, 2, Signaled{SIGKILL})) == 137);
  CHECK(exit_code(failed_job(4, 2, Exited{9})) == 9);
  CHECK(exit_code(failed_job(4, 2, Signaled{SIGSEGV, true})) == 139);
}

TEST_CASE("a failure behind a closed stdout is that of its reader, but for a crash") {
  for (const ExitStatus& status : {ExitStatus(Signaled{SIGPIPE}), ExitStatus(Exited{1})}) {
    JobResult result = failed_job(2, 0, status);
    result.attempts.back().stdout_closed = true;
    CHECK(exit_code(result) == 141);
    CHECK(failure_report(result, false).empty());
  }
  JobResult result = failed_job(2, 0, Signaled{SIGSEGV});
  result.attempts.back().stdout_closed = true;
  CHECK(exit_code(result) == 139);
  CHECK(!failure_report(result, false).empty());
}

TEST_CASE("of several attempts the last one counts") {
  JobResult result = failed_job(2, 0, Exited{3});
  result.attempts.push_back(attempt(1, 2, 1, Exited{4}));
  CHECK(exit_code(result) == 4);
}

TEST_CASE("a failure never becomes 0") {
  CHECK(exit_code(failed_job(1, 0, Exited{0})) == 1);
  JobResult no_cause;
  no_cause.verdict = Verdict::worker_failed;
  CHECK(exit_code(no_cause) == 1);
}

TEST_CASE("time limit and signals and ddrun's own failures have their codes") {
  JobResult result = failed_job(2, 0, Exited{3});
  result.verdict = Verdict::timed_out;
  CHECK(exit_code(result) == 124);
  result.verdict = Verdict::stopped_by_signal;
  result.signal = SIGTERM;
  CHECK(exit_code(result) == 143);
  result.verdict = Verdict::launcher_failed;
  CHECK(exit_code(result) == 125);
  result.launcher_code = 127;
  CHECK(exit_code(result) == 127);
}

TEST_CASE("errors before the start have their codes") {
  CHECK(exit_code(Errc::invalid_argument) == 2);
  CHECK(exit_code(Errc::not_found) == 127);
  CHECK(exit_code(Errc::not_executable) == 126);
  CHECK(exit_code(Errc::unavailable) == 125);
}
