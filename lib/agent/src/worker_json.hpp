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

/// How the coordinator can compare it with what other nodes tell, and with earlier attempts: the key "evidence". `sign`
/// is that of `of`, which is `cause` or its "failed_first".
void add_evidence(Json& cause, const Evidence& sign, const WorkerEnd& of);
/// Another worker of the same machine that failed before the one that `worker` describes: its key "failed_first".
void add_failed_before(Json& worker, const WorkerEnd& failed_first, const Evidence& sign);

/// One line. Workers write what they like: bytes that are not UTF-8 become the replacement character.
[[nodiscard]] std::string one_line(const Json& json);

/// `json` with the control characters in its strings that JSON lets stand there, DEL and those of eight bits, as \u
/// escapes: the same to a program, and no command to a terminal. Others do not belong there and become spaces, but for
/// line ends.
[[nodiscard]] std::string json_for_terminal(std::string json);

/// What another machine's worker_json says, as far as the failure report wants it. Nothing if it is none.
[[nodiscard]] std::optional<WorkerEnd> worker_from_json(const std::string& text);

struct FailedBefore {
  WorkerEnd worker;
  Evidence sign;
  std::string host;  ///< empty: that of the cause
  int node_rank = -1;
};
/// What add_failed_before has added to it, or the coordinator from another node. Nothing if none has.
[[nodiscard]] std::optional<FailedBefore> failed_before_from_json(const std::string& text);

}  // namespace ddrun::agent
