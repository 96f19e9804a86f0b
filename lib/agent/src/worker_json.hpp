#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::agent {

using Json = nlohmann::ordered_json;

/// Seconds to the microsecond: enough, and the same text on every machine.
template <class Duration>
double seconds(Duration duration) {
  return static_cast<double>(std::chrono::duration_cast<std::chrono::microseconds>(duration).count()) / 1e6;
}

/// "2026-11-21T00:58:20.123Z"; null for a time that was never set.
[[nodiscard]] Json utc(std::chrono::system_clock::time_point time);
[[nodiscard]] Json text_or_null(const std::string& text);
[[nodiscard]] Json signal_json(int signal);

/// One worker of the report (docs/debugging.md).
[[nodiscard]] Json worker_json(const WorkerEnd& worker);

/// One line. Workers write what they like: bytes that are not UTF-8 become the replacement character.
[[nodiscard]] std::string one_line(const Json& json);

/// What another machine's worker_json says, as far as the failure report wants it. Nothing if it is none.
[[nodiscard]] std::optional<WorkerEnd> worker_from_json(const std::string& text);

}  // namespace ddrun::agent
