#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::agent {

using Json = nlohmann::ordered_json;

/// Seconds, truncated to microseconds so that the text is the same on every machine.
template <class Duration>
double seconds(Duration duration) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count()) / 1e6;
}

/// "2026-11-21T00:58:20.123Z"; null for a time that was never set.
[[nodiscard]] Json utc(std::chrono::system_clock::time_point time);
[[nodiscard]] Json text_or_null(const std::string& text);
[[nodiscard]] Json signal_json(int signal);

/// One worker of the report (docs/schemas/report.schema.json).
[[nodiscard]] Json worker_json(const WorkerEnd& worker);

/// The end of the job in one sentence. `report`: from json_report(), also while it has no "message".
[[nodiscard]] std::string outcome_of(const Json& report);

/// "preload" of the report, and of an event.
[[nodiscard]] Json preload_json(const PreloadResult& preload);

/// Without the texts. `evidence` is that of worker `of`.
[[nodiscard]] rendezvous::Failure evidence_for_coordinator(const Evidence& evidence, const WorkerEnd& of);
/// Adds the key "failed_first": another worker of this machine that failed before `worker`.
void add_failed_before(Json& worker, const WorkerEnd& failed_first, const Evidence& evidence);

/// JSON on one line; invalid UTF-8 becomes the replacement character.
[[nodiscard]] std::string one_line(const Json& json);

/// `json` without control characters that a terminal would obey: DEL and 8-bit ones become \u escapes, others except
/// newlines become spaces.
[[nodiscard]] std::string json_for_terminal(std::string json);

/// The fields of worker_json() that the failure report uses; nothing if `text` is no worker.
[[nodiscard]] std::optional<WorkerEnd> worker_from_json(const std::string& text);

/// The string at `key`; empty if there is none.
[[nodiscard]] std::string text_at(const Json& json, const char* key);

struct FailedBefore {
  WorkerEnd worker;
  Evidence evidence;
  std::string host;  ///< empty: that of the cause
  int node_rank = -1;
};
/// The worker that failed before the one of the cause, on the same node, by add_failed_before(), or on another; nothing
/// if there is none.
[[nodiscard]] std::optional<FailedBefore> read_failed_first(const rendezvous::VerdictMessage& verdict);

}  // namespace ddrun::agent
