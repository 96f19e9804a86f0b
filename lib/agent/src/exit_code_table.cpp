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

int exit_code(const JobResult& result) {
  // The lost output may contain the results.
  if (result.verdict == Verdict::success && !result.output_complete()) return exit_codes::launcher_failed;
  if (result.cause) return result.cause->exit_code;
  switch (result.verdict) {
    case Verdict::success: return exit_codes::success;
    case Verdict::worker_failed: return code_of_first_failure(result);
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
