#pragma once

#include <string>

#include "worker_json.hpp"

// Fields of json_report() as text.

namespace ddrun::agent {

/// The worker that failed first in this attempt; null if none is known.
[[nodiscard]] const Json* failed_worker(const Json& attempt);
/// The worker whose failure ended the job; null if there is none.
[[nodiscard]] const Json* cause_of(const Json& report);
/// Of a worker: "rank 3", "trainer rank 3".
[[nodiscard]] RankName rank_name(const Json& worker);
/// "rank 3 exited with code 1"
[[nodiscard]] std::string describe_end(const Json& worker);
/// The end of the job in one sentence.
[[nodiscard]] std::string outcome_of(const Json& report);
/// The reason in a few lines of bounded length; may be empty.
[[nodiscard]] std::string reason_of(const Json& worker);

}  // namespace ddrun::agent
