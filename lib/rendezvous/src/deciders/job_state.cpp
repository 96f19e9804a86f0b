#include "job_state.hpp"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace ddrun::rendezvous {

namespace {

constexpr const char* restarts_key = "restarts";
constexpr const char* doublings_key = "doublings";
constexpr const char* recent_key = "recent_ms";
constexpr const char* failures_key = "failures";
constexpr const char* coordinator_key = "coordinator";
// The text is part of JOIN, which is limited to 64 KiB: older or excess entries are dropped.
constexpr std::size_t max_ages = 1'000;
constexpr std::size_t max_hosts_bytes = 16'384;
constexpr std::size_t max_count_bytes = 16;

}  // namespace

std::string JobState::serialize(Clock::time_point now) const {
  const RestartBudget::Spent spent = budget.spent(now);
  nlohmann::json json{{restarts_key, spent.used}, {doublings_key, spent.doublings}};
  const std::size_t old = spent.ages.size() - std::min(spent.ages.size(), max_ages);
  for (std::size_t i = old; i < spent.ages.size(); ++i) json[recent_key].push_back(spent.ages[i].count());
  std::size_t hosts_bytes = 0;
  for (const auto& [host, failures] : failures_of_host) {
    hosts_bytes += host.size() + max_count_bytes;
    if (hosts_bytes > max_hosts_bytes) break;
    json[failures_key][host] = failures;
  }
  if (coordinator_node_rank >= 0) json[coordinator_key] = coordinator_node_rank;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool JobState::restore(const std::string& text, Clock::time_point now) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return false;
  RestartBudget::Spent spent;
  std::map<std::string, int> failures;
  int coordinator = -1;
  try {
    spent.used = json.value(restarts_key, 0);
    spent.doublings = json.value(doublings_key, 0);
    for (const auto& age : json.value(recent_key, nlohmann::json::array())) {
      spent.ages.emplace_back(age.get<std::int64_t>());
    }
    failures = json.value(failures_key, failures);
    coordinator = json.value(coordinator_key, coordinator);
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  const bool valid =
      spent.used >= 0 && spent.doublings >= 0 &&
      std::all_of(spent.ages.begin(), spent.ages.end(), [](Milliseconds age) { return age.count() >= 0; });
  if (!valid) return false;
  budget.restore(spent, now);
  failures_of_host = std::move(failures);
  coordinator_node_rank = std::max(coordinator, -1);
  return true;
}

void JobState::merge(const std::string& text, Clock::time_point now) {
  if (text == last_merged) return;
  last_merged = text;
  JobState other;
  if (!other.restore(text, now)) return;  // invalid: ignored
  if (other.budget.used() > budget.used()) budget.restore(other.budget.spent(now), now);
  for (const auto& [host, failures] : other.failures_of_host) {
    failures_of_host[host] = std::max(failures_of_host[host], failures);
  }
}

}  // namespace ddrun::rendezvous
