#include "cause_details.hpp"

#include <nlohmann/json.hpp>

namespace ddrun::rendezvous {

namespace {

using Json = nlohmann::ordered_json;

/// Its key "evidence"; null if it has none.
Json evidence_of(const Json& cause) {
  if (!cause.is_object()) return nullptr;
  const auto evidence = cause.find("evidence");
  const bool whole = evidence != cause.end() && evidence->is_object() && evidence->contains("own") &&
                     (*evidence)["own"].is_boolean() && evidence->contains("time_us") &&
                     (*evidence)["time_us"].is_number_integer();
  return whole ? *evidence : Json(nullptr);
}

}  // namespace

void CauseDetails::of_another(const std::string& host, std::int32_t node_rank, const std::string& json) {
  if (json.empty()) return;
  Json cause = Json::parse(json, nullptr, false);
  const Json evidence = evidence_of(cause);
  if (evidence.is_null() || evidence["own"] == false) return;
  const auto time = evidence["time_us"].get<std::int64_t>();
  if (!of_another_.empty() && time_us_ <= time) return;
  // It may itself have another worker that failed before the one that ended first.
  if (cause.contains("failed_first") && cause["failed_first"].is_object()) cause = Json(cause["failed_first"]);
  cause["host"] = host;
  cause["node_rank"] = node_rank;
  of_another_ = cause.dump(-1, ' ', false, Json::error_handler_t::replace);
  time_us_ = time;
}

std::string CauseDetails::text() const {
  if (of_another_.empty()) return of_cause_;
  Json cause = Json::parse(of_cause_, nullptr, false);
  const Json evidence = evidence_of(cause);
  // Clocks of machines differ: a reason is not compared with a reason, only with complaints.
  if (evidence.is_null() || evidence["own"] == true) return of_cause_;
  cause["failed_first"] = Json::parse(of_another_, nullptr, false);
  return cause.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ddrun::rendezvous
