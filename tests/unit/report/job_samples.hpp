#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::test {

using namespace std::chrono_literals;

inline agent::WorkerEnd worker(int rank, ExitStatus status, std::chrono::nanoseconds ran = 12300ms) {
  agent::WorkerEnd worker;
  worker.rank = rank;
  worker.local_rank = rank;
  worker.pid = 4700 + rank;
  worker.status = status;
  worker.ran = ran;
  worker.success = status == ExitStatus(Exited{0});
  return worker;
}

inline agent::WorkerEnd stopped(int rank, int signal = SIGTERM) {
  agent::WorkerEnd end = worker(rank, Signaled{signal});
  end.stopped_by_ddrun = true;
  return end;
}

/// `size` workers of which `failed` ended with `status` first and ddrun stopped the rest.
inline agent::AttemptResult attempt(int number, int size, int failed, ExitStatus status,
                                    std::chrono::nanoseconds ran = 12300ms) {
  agent::AttemptResult attempt;
  attempt.attempt = number;
  attempt.ran = ran;
  for (int rank = 0; rank < size; ++rank) {
    attempt.workers.push_back(rank == failed ? worker(rank, status, ran) : stopped(rank));
  }
  attempt.first_failure = static_cast<std::size_t>(failed);
  attempt.cause = attempt.first_failure;
  return attempt;
}

inline agent::JobResult failed_job(int size, int failed, ExitStatus status) {
  agent::JobResult result;
  result.verdict = agent::Verdict::worker_failed;
  result.run_id = "job7";
  result.host = "node7";
  result.program = "train.py";
  result.programs = {{"default", "train.py", 2, 0}};
  result.world_size = size;
  result.ran = 12400ms;
  result.attempts.push_back(attempt(0, size, failed, status));
  return result;
}

inline agent::WorkerEnd& first_failure(agent::JobResult& result) {
  return result.attempts.back().workers.at(*result.attempts.back().first_failure);
}

}  // namespace ddrun::test
