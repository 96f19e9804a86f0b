#include "timer_table.hpp"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace ddrun::agent {

namespace {

using nlohmann::json;

/// So often is a whole line looked for behind a broken one.
constexpr int most_attempts = 16;

std::optional<TimerRequest> parse_whole(std::string_view line) {
  const json content = json::parse(line, nullptr, false);
  if (!content.is_object()) return std::nullopt;
  const auto pid = content.find("pid");
  const auto scope = content.find("scope_id");
  const auto expires = content.find("expiration_time");
  const auto signal = content.find("signal");
  const auto end = content.end();
  if (pid == end || !pid->is_number_integer() || scope == end || !scope->is_string() || expires == end ||
      !expires->is_number() || signal == end || !signal->is_number_integer()) {
    return std::nullopt;
  }
  TimerRequest request;
  const auto number = pid->get<std::int64_t>();
  const auto signal_number = signal->get<std::int64_t>();
  request.expires = expires->get<double>();
  // 0 and less would mean whole groups of processes, 1 is init.
  if (number <= 1 || number > std::numeric_limits<pid_t>::max() || signal_number > SIGRTMAX ||
      !std::isfinite(request.expires)) {
    return std::nullopt;
  }
  request.pid = static_cast<pid_t>(number);
  request.signal = static_cast<int>(std::max<std::int64_t>(signal_number, 0));
  request.scope = scope->get<std::string>();
  return request;
}

}  // namespace

std::optional<TimerRequest> parse_timer_request(std::string_view line) {
  std::size_t begin = 0;
  for (int attempt = 0; attempt < most_attempts; ++attempt) {
    if (auto request = parse_whole(line.substr(begin))) return request;
    begin = line.find('{', begin + 1);
    if (begin == std::string_view::npos) break;
  }
  return std::nullopt;
}

bool TimerTable::take(TimerRequest request) {
  std::pair key{request.pid, request.scope};
  if (request.expires < 0) {
    timers_.erase(key);
    return true;
  }
  if (timers_.size() >= most_timers && timers_.count(key) == 0) return false;
  timers_.insert_or_assign(std::move(key), std::move(request));
  return true;
}

std::optional<double> TimerTable::next() const {
  std::optional<double> first;
  for (const auto& [key, timer] : timers_) {
    if (!first || timer.expires < *first) first = timer.expires;
  }
  return first;
}

std::vector<TimerRequest> TimerTable::take_expired(double now) {
  std::map<pid_t, TimerRequest> by_process;
  for (const auto& [key, timer] : timers_) {
    if (timer.expires > now) continue;
    const auto [at, is_new] = by_process.emplace(key.first, timer);
    if (is_new) continue;
    TimerRequest& first = at->second;
    const bool acts = timer.signal > 0;
    const bool first_acts = first.signal > 0;
    if (acts != first_acts ? acts : timer.expires < first.expires) first = timer;
  }
  std::vector<TimerRequest> expired;
  expired.reserve(by_process.size());
  for (auto& [pid, timer] : by_process) expired.push_back(std::move(timer));
  std::sort(expired.begin(), expired.end(), [](const auto& a, const auto& b) { return a.expires < b.expires; });
  drop([&](const TimerRequest& timer) { return by_process.count(timer.pid) != 0; });
  return expired;
}

}  // namespace ddrun::agent
