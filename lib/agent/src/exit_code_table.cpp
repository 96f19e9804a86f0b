#include <signal.h>

#include <variant>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::agent {

namespace {

int code_of_first_failure(const JobResult& result) {
  if (result.attempts.empty() || !result.attempts.back().first_failure) return 1;
  const AttemptResult& last = result.attempts.back();
  const WorkerEnd& first = last.workers.at(*last.first_failure);
  if (first.declared) return first.declared->code;
  const int code = shell_code(first.status);
  // With --success-on a worker may fail with exit code 0; ddrun's exit code 0 always means success.
  return code == 0 ? 1 : code;
}

}  // namespace

bool ended_with_reader(const JobResult& result) {
  if (result.verdict != Verdict::worker_failed || result.attempts.empty()) return false;
  const AttemptResult& last = result.attempts.back();
  if (!last.stdout_closed || !last.first_failure) return false;
  const auto* signaled = std::get_if<Signaled>(&last.workers.at(*last.first_failure).status);
  return signaled == nullptr || signaled->signal == SIGPIPE;
}

int exit_code(const JobResult& result) {
  // The lost output may contain the results.
  if (result.verdict == Verdict::success && !result.output_complete()) return exit_codes::launcher_failed;
  if (result.cause) return result.cause->exit_code;
  switch (result.verdict) {
    case Verdict::success: return exit_codes::success;
    case Verdict::worker_failed:
      return ended_with_reader(result) ? exit_codes::signal_base + SIGPIPE : code_of_first_failure(result);
    case Verdict::timed_out: return exit_codes::timed_out;
    case Verdict::stopped_by_signal: return exit_codes::signal_base + result.signal;
    case Verdict::launcher_failed: return result.launcher_code;
    case Verdict::node_lost: return exit_codes::launcher_failed;
  }
  return exit_codes::launcher_failed;
}

int exit_code(Errc code) {
  switch (code) {
    case Errc::invalid_argument: return exit_codes::usage;
    case Errc::not_found: return exit_codes::not_found;
    case Errc::not_executable: return exit_codes::not_executable;
    case Errc::unavailable:
    case Errc::timeout:
    case Errc::connection_lost:
    case Errc::protocol:
    case Errc::unsupported:
    case Errc::cancelled: return exit_codes::launcher_failed;
  }
  return exit_codes::launcher_failed;
}

}  // namespace ddrun::agent
