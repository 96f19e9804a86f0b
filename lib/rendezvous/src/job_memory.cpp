#include "job_memory.hpp"

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
// It travels in a JOIN, of which a coordinator reads 64 KiB: of what has grown beyond any use, the newest, and some.
constexpr std::size_t most_ages = 1'000;
constexpr std::size_t most_named = 16'384;
constexpr std::size_t longest_count = 16;

}  // namespace

std::string JobMemory::text(Clock::time_point now) const {
  const RestartBudget::Spent spent = budget.spent(now);
  nlohmann::json json{{restarts_key, spent.used}, {doublings_key, spent.doublings}};
  const std::size_t old = spent.ages.size() - std::min(spent.ages.size(), most_ages);
  for (std::size_t i = old; i < spent.ages.size(); ++i) json[recent_key].push_back(spent.ages[i].count());
  std::size_t named = 0;
  for (const auto& [host, failures] : failures_of_host) {
    named += host.size() + longest_count;
    if (named > most_named) break;
    json[failures_key][host] = failures;
  }
  if (coordinators_rank >= 0) json[coordinator_key] = coordinators_rank;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool JobMemory::take(const std::string& text, Clock::time_point now) {
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
  const bool possible =
      spent.used >= 0 && spent.doublings >= 0 &&
      std::all_of(spent.ages.begin(), spent.ages.end(), [](Milliseconds age) { return age.count() >= 0; });
  if (!possible) return false;
  budget.take(spent, now);
  failures_of_host = std::move(failures);
  coordinators_rank = std::max(coordinator, -1);
  return true;
}

void JobMemory::learn(const std::string& text, Clock::time_point now) {
  if (text == learnt) return;
  learnt = text;
  JobMemory other;
  if (!other.take(text, now)) return;  // what makes no sense is nothing to go by
  if (other.budget.used() > budget.used()) budget.take(other.budget.spent(now), now);
  for (const auto& [host, failures] : other.failures_of_host) {
    failures_of_host[host] = std::max(failures_of_host[host], failures);
  }
}

}  // namespace ddrun::rendezvous
