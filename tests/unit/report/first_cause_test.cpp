#include "evidence.hpp"

#include "ddrun/test/catch.hpp"
#include "job_samples.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using namespace ddrun::test;

namespace {

using Time = std::chrono::system_clock::time_point;
const Time start{1000s};

LastWords words(std::chrono::milliseconds after, bool blames_peer = false, std::size_t lines_after = 0) {
  LastWords words;
  words.reason = {blames_peer ? "RuntimeError: Connection closed by peer" : "ValueError: boom"};
  words.text = words.reason;
  words.at = start + after;
  words.lines_after = lines_after;
  words.blames_peer = blames_peer;
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
  CHECK(job.result.cause_evidence.kind == EvidenceKind::end);
  CHECK(job.result.cause_evidence.at == start + 10s);
}

TEST_CASE("a rank that raised and is still in teardown is the cause, not its peers") {
  Job job;
  job.at(0).last_words = words(9900ms, true);
  job.at(2).last_words = words(8700ms);
  CHECK(job.cause() == 2);
  CHECK(job.result.cause_evidence.kind == EvidenceKind::last_words);
  CHECK(job.result.cause_evidence.at == start + 8700ms);
  // Also if peers print before it does, and with an error file.
  job.at(2).last_words = words(9950ms);
  CHECK(job.cause() == 2);
  job.at(2).last_words.reset();
  job.at(2).error = error(8700ms, "ValueError: the real cause");
  CHECK(job.cause() == 2);
  CHECK(job.result.cause_evidence.kind == EvidenceKind::error_file);
}

TEST_CASE("the earlier of two own reasons wins, among workers that ended by themselves") {
  Job job;
  job.at(0).last_words = words(9900ms);
  job.at(1).error = error(9800ms, "KeyError: 'x'");
  // It may have handled that, and continued silently until it was stopped.
  CHECK(job.cause() == 0);
  job.at(1).stopped_by_ddrun = false;
  job.at(1).ended = start + 10s;
  CHECK(job.cause() == 1);
  job.at(1).error = error(9950ms, "KeyError: 'x'");
  CHECK(job.cause() == 0);
}

TEST_CASE("an explained end outweighs older messages of a stopped worker") {
  Job job;
  job.at(1).last_words = words(3s);
  CHECK(job.cause() == 1);
  job.at(0).stderr_tail = {"shard is corrupt"};
  CHECK(job.cause() == 0);
  job.at(0).stderr_tail = {"write: Broken pipe"};
  CHECK(job.cause() == 1);
  job.at(0).status = Signaled{SIGKILL};
  CHECK(job.cause() == 0);
  // Also by one that ended after a peer.
  job.at(0).status = Exited{1};
  job.at(2) = worker(2, Exited{1});
  job.at(2).ended = start + 10s;
  job.at(2).last_words = words(9900ms);
  CHECK(job.cause() == 2);
}

TEST_CASE("a message that the worker survived is dropped") {
  const auto dropped = [](WorkerEnd end, logs::LastWrite out, std::chrono::milliseconds last_stderr = 3s) {
    drop_survived(end, start + last_stderr, out, start + 10s);
    return !end.last_words && !end.error;
  };
  WorkerEnd end = stopped(0);
  end.last_words = words(3s);
  end.last_words->turn = 7;
  CHECK_FALSE(dropped(end, {}));
  CHECK_FALSE(dropped(end, {start + 3s, 7}));
  CHECK(dropped(end, {start + 3s, 8}));  // later output on stdout
  CHECK(dropped(end, {start + 4s, 0}));
  CHECK_FALSE(dropped(end, {start + 11s, 0}));  // or it was stopped
  end.last_words->continued = true;
  CHECK(dropped(end, {}));
  // One that ended by itself may flush output and clean up after an exception; a message long before is no reason.
  end.stopped_by_ddrun = false;
  end.status = Exited{3};
  end.last_words->lines_after = 200;
  CHECK_FALSE(dropped(end, {start + 9s, 9}));
  end.last_words->span = 2s;
  CHECK(dropped(end, {}));
  end.status = Exited{1};
  end.last_words->is_main_traceback = true;
  CHECK(dropped(end, {}));
  end.last_words->lines_after = 5;
  CHECK_FALSE(dropped(end, {}));

  WorkerEnd recorded = stopped(0);
  recorded.error = error(3s, "ValueError: boom");
  CHECK_FALSE(dropped(recorded, {}));
  CHECK(dropped(recorded, {}, 4s));
  CHECK(dropped(recorded, {start + 4s, 7}));
  recorded.last_words = words(4s);  // the traceback of the same
  CHECK_FALSE(dropped(recorded, {}, 4s));
}

TEST_CASE("output after the stop is no evidence") {
  Job job;
  job.at(0).last_words = words(9900ms, true);
  job.at(1).last_words = words(10002ms);
  job.at(2).error = error(10400ms, "SystemExit: 143");
  CHECK(job.cause() == 0);
  job.at(1).stopped_by_ddrun = false;
  job.at(1).status = Signaled{SIGSEGV};
  CHECK(job.cause() == 0);
}

TEST_CASE("a message about a peer never outweighs a worker's own reason") {
  Job job;
  job.at(1).last_words = words(5s, true);
  job.at(2).error = error(6s, "ConnectionResetError: [Errno 104] Connection reset by peer");
  CHECK(job.cause() == 0);
  job.at(0).status = Signaled{SIGSEGV};
  CHECK(job.cause() == 0);
  // If all blame peers, the first to end stays: the cause is on another node.
  job.at(0).last_words = words(9s, true);
  job.at(0).status = Exited{1};
  CHECK(job.cause() == 0);
}

TEST_CASE("a traceback that was survived is no cause") {
  Job job;
  job.at(0).status = Signaled{SIGSEGV};
  job.at(1).last_words = words(-20s);
  job.at(2).last_words = words(9s, false, 100);
  CHECK(job.cause() == 0);
  // Nor is the worker's own one the time of its failure.
  job.at(1).last_words.reset();
  job.at(1).stopped_by_ddrun = false;
  job.at(1).status = Signaled{SIGKILL};
  job.at(1).ended = start + 10001ms;
  job.at(1).last_words = words(3s);
  CHECK(job.cause() == 0);
}

TEST_CASE("workers that succeeded have not failed, whatever they wrote") {
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

TEST_CASE("the key of a cause has nothing that differs between two failures of it") {
  const auto key = [](std::vector<std::string> reason, std::vector<std::string> traceback = {}) {
    WorkerEnd end = worker(0, Exited{1});
    end.pid = 4711;
    end.last_words = words(1s);
    end.last_words->reason = std::move(reason);
    end.last_words->text = std::move(traceback);
    return cause_key(end);
  };
  CHECK(key({"ValueError: shard 17 is corrupt", "after KeyError: 'conv2'"}) ==
        "ValueError: shard 17 is corrupt; after KeyError: 'conv2'");
  CHECK(key({"rank 3, [Rank12], local_rank=2, cuda:1, pid 99, 4711"}) ==
        "rank #, [Rank#], local_rank=#, cuda:#, pid #, #");
  CHECK(key({"at 0x7f00ab of 10.0.0.3:29500, 2026-11-25 12:30:01.5, for 1800000 ms or 0.5s, 1795223473."}) ==
        "at # of #, # #, for # ms or #s, #.");
  const std::vector<std::string> traceback{"Traceback (most recent call last):", "  File \"train.py\", line 3, in f",
                                           "    g()", "  File \"/v/site-packages/x.py\", line 7, in g"};
  CHECK(key({"KeyError: 1"}, traceback) == "KeyError: 1 (File \"train.py\", line 3, in f)");
  WorkerEnd silent = worker(0, Exited{1});
  silent.stderr_tail = {"step 3"};
  CHECK(cause_key(silent).empty());
  silent.error = error(1s, "boom");
  CHECK(cause_key(silent) == "boom");
}

TEST_CASE("a rank that waited for others in vain says so") {
  const auto says = [](const std::string& line) {
    WorkerEnd worker;
    worker.stderr_tail = {line};
    return says_timeout(worker);
  };
  CHECK(says("RuntimeError: [gloo/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"));
  CHECK(says("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4) ran for 600009 ms"));
  CHECK(says("TimeoutError: timed out"));
  CHECK_FALSE(says("worker: cannot reach the store at 10.0.0.1, port 29500: Connection timed out"));
  CHECK_FALSE(says("The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500)."));
  CHECK_FALSE(says("ValueError: no data"));
  CHECK_FALSE(says(""));
}
