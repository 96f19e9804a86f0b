#include "start_decision.hpp"

#include <algorithm>

namespace ddrun::remote {

StartDecision::Actions StartDecision::step(Event event, std::uint32_t host, Clock::time_point now) {
  if (decided_) return {};
  if (event != Event::tick) hosts_[host] = event == Event::answered ? Host::answered : Host::failed;
  const auto count = [this](Host state) { return static_cast<int>(std::count(hosts_.begin(), hosts_.end(), state)); };
  const auto first_answered = std::find(hosts_.begin(), hosts_.end(), Host::answered);
  const auto first_alive = std::find_if(hosts_.begin(), hosts_.end(), [](Host one) { return one != Host::failed; });
  const bool all_needed = min_nodes_ == static_cast<int>(hosts_.size());
  const int answered = count(Host::answered);
  if (answered < min_nodes_) last_call_until_.reset();
  else if (!last_call_until_) last_call_until_ = now + last_call_;
  const bool no_more_needed = answered >= max_nodes_ || count(Host::pending) == 0;
  if (answered == 0) return {};
  const bool complete = all_needed || (answered >= min_nodes_ && no_more_needed);
  const bool last_call_over = last_call_until_ && *last_call_until_ <= now;
  if (!(complete && first_alive == first_answered) && !last_call_over) return {std::nullopt, 0, last_call_until_};
  decided_ = true;
  return {static_cast<std::uint32_t>(first_answered - hosts_.begin()), all_needed ? 0 : std::min(answered, max_nodes_),
          std::nullopt};
}

}  // namespace ddrun::remote
