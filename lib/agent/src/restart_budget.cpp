#include "ddrun/agent/restart_budget.hpp"

#include <algorithm>

namespace ddrun::agent {

bool is_success(const ExitStatus& status, const RestartPolicy& policy) {
  const auto* exited = std::get_if<Exited>(&status);
  return exited != nullptr && policy.success_on.count(exited->code) != 0;
}

int RestartBudget::counted(Clock::time_point now) const {
  if (!policy_.window) return used_;
  return static_cast<int>(
      std::count_if(recent_.begin(), recent_.end(), [&](auto at) { return now - at < *policy_.window; }));
}

bool RestartBudget::allows(const ExitStatus& cause, Clock::time_point now) const {
  const auto* exited = std::get_if<Exited>(&cause);
  if (exited != nullptr && policy_.no_restart_on.count(exited->code) != 0) return false;
  return counted(now) < policy_.max_restarts;
}

Milliseconds RestartBudget::spend(Clock::time_point now) {
  if (policy_.window) {
    while (!recent_.empty() && now - recent_.front() >= *policy_.window) recent_.pop_front();
    if (recent_.empty()) doublings_ = 0;
    recent_.push_back(now);
  }
  ++used_;
  constexpr Milliseconds longest{60'000};
  const Milliseconds pause = std::min<Milliseconds>(policy_.backoff * (1LL << std::min(doublings_, 20)), longest);
  ++doublings_;
  // A first pause that was asked to be longer than a minute stays as it was asked for.
  return std::max(pause, policy_.backoff);
}

}  // namespace ddrun::agent
