#include "ddrun/rendezvous/restart_budget.hpp"

#include <algorithm>

namespace ddrun::rendezvous {

int RestartBudget::counted(Clock::time_point now) const {
  if (!policy_.window) return used_;
  return static_cast<int>(
      std::count_if(recent_.begin(), recent_.end(), [&](auto at) { return now - at < *policy_.window; }));
}

bool RestartBudget::any_left(Clock::time_point now) const { return counted(now) < policy_.max_restarts; }

bool RestartBudget::allows(const ExitStatus& cause, Clock::time_point now) const {
  const auto* exited = std::get_if<Exited>(&cause);
  if (exited != nullptr && policy_.no_restart_on.count(exited->code) != 0) return false;
  return any_left(now);
}

Milliseconds RestartBudget::pause(Clock::time_point now) const {
  const int doublings = policy_.window && counted(now) == 0 ? 0 : doublings_;
  constexpr Milliseconds max_pause{60'000};
  const Milliseconds pause = std::min<Milliseconds>(policy_.backoff * (1LL << std::min(doublings, 20)), max_pause);
  // A first pause that was asked to be longer than a minute stays as it was asked for.
  return std::max(pause, policy_.backoff);
}

Milliseconds RestartBudget::spend(Clock::time_point now) {
  const Milliseconds before_it = pause(now);
  if (policy_.window) {
    while (!recent_.empty() && now - recent_.front() >= *policy_.window) recent_.pop_front();
    if (recent_.empty()) doublings_ = 0;
    recent_.push_back(now);
  }
  ++used_;
  ++doublings_;
  return before_it;
}

}  // namespace ddrun::rendezvous
