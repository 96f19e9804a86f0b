#include "ddrun/agent/json_report.hpp"

#include <time.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "atomic_file.hpp"
#include "ddrun/agent/exit_code_table.hpp"

namespace ddrun::agent {

namespace {

using Json = nlohmann::ordered_json;

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::success: return "success";
    case Verdict::worker_failed: return "worker_failed";
    case Verdict::timed_out: return "timed_out";
    case Verdict::stopped_by_signal: return "stopped_by_signal";
    case Verdict::launcher_failed: return "launcher_failed";
  }
  return "unknown";
}

/// Seconds to the microsecond: enough, and the same text on every machine.
template <class Duration>
double seconds(Duration duration) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count()) / 1e6;
}

/// "2026-11-21T00:58:20.123Z"; null for a time that was never set.
Json utc(std::chrono::system_clock::time_point time) {
  if (time == std::chrono::system_clock::time_point()) return nullptr;
  const auto ms = std::chrono::floor<std::chrono::milliseconds>(time).time_since_epoch().count();
  const auto whole = static_cast<time_t>(ms / 1000);
  struct tm parts {};
  ::gmtime_r(&whole, &parts);
  char text[64];
  const std::size_t length = ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03dZ", static_cast<int>(ms % 1000));
  return text;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json signal_json(int signal) { return {{"number", signal}, {"name", signal_name(signal)}}; }

Json worker_json(const WorkerEnd& worker) {
  Json json;
  json["rank"] = worker.rank;
  json["local_rank"] = worker.local_rank;
  json["pid"] = worker.pid;
  const auto* exited = std::get_if<Exited>(&worker.status);
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  const bool started = worker.pid != 0;
  json["exit_code"] = started && exited != nullptr ? Json(exited->code) : Json(nullptr);
  json["signal"] = started && signaled != nullptr ? signal_json(signaled->signal) : Json(nullptr);
  json["core_dumped"] = signaled != nullptr && signaled->core_dumped;
  json["ended_how"] = started ? describe(worker.status) : "not started";
  json["success"] = worker.success;
  json["stopped_by_ddrun"] = worker.stopped_by_ddrun;
  json["why"] = text_or_null(worker.why);
  json["started"] = utc(worker.started);
  json["ended"] = utc(worker.ended);
  json["ran_s"] = seconds(worker.ran);
  json["max_rss_kib"] = worker.use.max_rss_kib;
  json["user_time_s"] = seconds(worker.use.user_time);
  json["system_time_s"] = seconds(worker.use.system_time);
  if (worker.error) {
    json["error"] = {{"message", worker.error->message},
                     {"traceback", text_or_null(worker.error->traceback)},
                     {"file", worker.error->file}};
  } else {
    json["error"] = nullptr;
  }
  json["stderr_tail"] = worker.stderr_tail;
  json["stdout_log"] = text_or_null(worker.stdout_log);
  json["stderr_log"] = text_or_null(worker.stderr_log);
  return json;
}

Json attempt_json(const AttemptResult& attempt) {
  Json json;
  json["attempt"] = attempt.attempt;
  json["ran_s"] = seconds(attempt.ran);
  json["first_failed_rank"] = nullptr;
  if (attempt.first_failure) json["first_failed_rank"] = attempt.workers.at(*attempt.first_failure).rank;
  json["workers"] = Json::array();
  for (const WorkerEnd& worker : attempt.workers) json["workers"].push_back(worker_json(worker));
  return json;
}

}  // namespace

std::string json_report(const JobResult& result) {
  Json json;
  json["schema_version"] = 1;
  json["verdict"] = verdict_name(result.verdict);
  json["exit_code"] = exit_code(result);
  json["signal"] = nullptr;
  json["signal_sender"] = nullptr;
  if (result.verdict == Verdict::stopped_by_signal) {
    json["signal"] = signal_json(result.signal);
    json["signal_sender"] = text_or_null(result.signal_sender);
  }
  json["message"] = text_or_null(result.message);
  json["run_id"] = result.run_id;
  json["host"] = result.host;
  json["program"] = result.program;
  json["log_dir"] = text_or_null(result.log_dir);
  json["world_size"] = result.world_size;
  json["max_restarts"] = result.max_restarts;
  json["timeout_s"] = result.timeout.count() > 0 ? Json(seconds(result.timeout)) : Json(nullptr);
  json["started"] = utc(result.started);
  json["ran_s"] = seconds(result.ran);
  json["log_bytes_lost"] = result.log_bytes_lost;
  json["log_error"] = text_or_null(result.log_error);
  json["console_bytes_lost"] = result.console_bytes_lost;
  json["console_error"] = text_or_null(result.console_error);
  json["attempts"] = Json::array();
  for (const AttemptResult& attempt : result.attempts) json["attempts"].push_back(attempt_json(attempt));
  // Workers write what they like: bytes that are not UTF-8 become the replacement character.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<void> write_json_report(const std::string& path, const JobResult& result) {
  auto written = write_file_atomically(path, json_report(result));
  if (!written) return fail(written.error().code, "--report: " + written.error().message, written.error().cause);
  return written;
}

}  // namespace ddrun::agent
