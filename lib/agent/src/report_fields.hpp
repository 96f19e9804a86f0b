#pragma once

#include <string>

#include "worker_json.hpp"

// What json_report() says, in words.

namespace ddrun::agent {

[[nodiscard]] std::string text_at(const Json& json, const char* key);
/// The worker that failed first in this attempt, or ended badly by itself; null: none is known.
[[nodiscard]] const Json* failed_worker(const Json& attempt);
/// The worker that the end of the job is about; null: none.
[[nodiscard]] const Json* cause_of(const Json& report);
/// "rank 3 exited with code 1"
[[nodiscard]] std::string describe_end(const Json& worker);
/// The end of the job in one sentence.
[[nodiscard]] std::string outcome_of(const Json& report);
/// Why it failed, in a few lines of bounded length; empty if it said nothing.
[[nodiscard]] std::string reason_of(const Json& worker);

}  // namespace ddrun::agent
