#include "evidence.hpp"

#include "ddrun/test/catch.hpp"
#include "job_samples.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using namespace ddrun::test;

namespace {

using Time = std::chrono::system_clock::time_point;
const Time start{1000s};

LastWords words(std::chrono::milliseconds after, bool of_a_victim = false, std::size_t lines_after = 0) {
  LastWords words;
  words.reason = {of_a_victim ? "RuntimeError: Connection closed by peer" : "ValueError: boom"};
  words.text = words.reason;
  words.at = start + after;
  words.lines_after = lines_after;
  words.of_a_victim = of_a_victim;
  return words;
}

WorkerError error(std::chrono::milliseconds after, std::string message) {
  return {std::move(message), "", "/e", start + after};
}

/// Three workers; rank 0 exited with 1 after ten seconds, upon which ddrun stopped the others.
struct Job {
  AttemptResult result = attempt(0, 3, 0, Exited{1}, 10s);
  Job() {
    for (WorkerEnd& worker : result.workers) {
      worker.started = start;
      worker.ended = start + 10500ms;
    }
    at(0).ended = start + 10s;
  }
  WorkerEnd& at(std::size_t rank) { return result.workers[rank]; }
  int cause() {
    find_first_cause(result, start + 10001ms);
    return result.cause ? result.workers[*result.cause].rank : -1;
  }
};

}  // namespace

TEST_CASE("the first to end is the cause where nothing else is known") {
  Job job;
  CHECK(job.cause() == 0);
  CHECK(job.result.cause_sign.kind == SignKind::end);
  CHECK(job.result.cause_sign.at == start + 10s);
}

TEST_CASE("a rank that raised and is still on its way out is the cause, not its victims") {
  Job job;
  job.at(0).last_words = words(9900ms, true);
  job.at(2).last_words = words(8700ms);
  CHECK(job.cause() == 2);
  CHECK(job.result.cause_sign.kind == SignKind::last_words);
  CHECK(job.result.cause_sign.at == start + 8700ms);
  // Also if victims speak before it does, and if it says it in its error file.
  job.at(2).last_words = words(9950ms);
  CHECK(job.cause() == 2);
  job.at(2).last_words.reset();
  job.at(2).error = error(8700ms, "ValueError: the real cause");
  CHECK(job.cause() == 2);
  CHECK(job.result.cause_sign.kind == SignKind::error_file);
}

TEST_CASE("the earlier of two own reasons wins") {
  Job job;
  job.at(0).last_words = words(9900ms);
  job.at(1).error = error(9800ms, "KeyError: 'x'");
  CHECK(job.cause() == 1);
  job.at(1).error = error(9950ms, "KeyError: 'x'");
  CHECK(job.cause() == 0);
}

TEST_CASE("what workers say after they were told to end is no evidence") {
  Job job;
  job.at(0).last_words = words(9900ms, true);
  job.at(1).last_words = words(10002ms);
  job.at(2).error = error(10400ms, "SystemExit: 143");
  CHECK(job.cause() == 0);
  job.at(1).stopped_by_ddrun = false;
  job.at(1).status = Signaled{SIGSEGV};
  CHECK(job.cause() == 0);
}

TEST_CASE("complaints about others never win over a reason") {
  Job job;
  job.at(1).last_words = words(5s, true);
  job.at(2).error = error(6s, "ConnectionResetError: [Errno 104] Connection reset by peer");
  CHECK(job.cause() == 0);
  job.at(0).status = Signaled{SIGSEGV};
  CHECK(job.cause() == 0);
  // Where all complain, the first to end stays: the cause is somewhere else.
  job.at(0).last_words = words(9s, true);
  job.at(0).status = Exited{1};
  CHECK(job.cause() == 0);
}

TEST_CASE("a traceback that was survived accuses nobody") {
  Job job;
  job.at(0).status = Signaled{SIGSEGV};
  job.at(1).last_words = words(-20s);
  job.at(2).last_words = words(9s, false, 100);
  CHECK(job.cause() == 0);
  // Nor does the one of the worker itself say when it died.
  job.at(1).last_words.reset();
  job.at(1).stopped_by_ddrun = false;
  job.at(1).status = Signaled{SIGKILL};
  job.at(1).ended = start + 10001ms;
  job.at(1).last_words = words(3s);
  CHECK(job.cause() == 0);
}

TEST_CASE("workers that ended well have not failed, whatever they wrote") {
  Job job;
  job.at(0).last_words = words(9900ms, true);
  job.at(1) = worker(1, Exited{0});
  job.at(1).last_words = words(3s);
  job.at(1).error = error(3s, "ValueError");
  CHECK(job.cause() == 0);
}

TEST_CASE("a job that is stopped has a cause if a worker had failed before") {
  Job job;
  job.result.first_failure.reset();
  job.at(0) = stopped(0);
  CHECK(job.cause() == -1);
  job.at(1).last_words = words(4s, true);
  job.at(2).last_words = words(3s);
  CHECK(job.cause() == 2);
}
