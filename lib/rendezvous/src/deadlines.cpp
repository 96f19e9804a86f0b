#include <algorithm>

#include "causes.hpp"
#include "coordinator_state.hpp"
#include "ddrun/base/text.hpp"
#include "stop_bound.hpp"

namespace ddrun::rendezvous {

std::optional<Clock::time_point> Coordinator::State::next_deadline() const {
  std::optional<Clock::time_point> first;
  const auto also = [&](const std::optional<Clock::time_point>& at) {
    if (at && (!first || *at < *first)) first = at;
  };
  if (phase_ == Phase::ended) {
    if (!members_.empty()) also(verdict_until_);
    also(latecomers_until_);
    return first;
  }
  also(heartbeat_.next());
  if (!claims_.empty()) also(claims_.front().deadline);
  also(last_call_);
  also(pause_until_);
  also(opened_until_);
  also(stopped_until_);
  also(skew_until_);
  if (phase_ == Phase::gathering && members_.available() < memory_.meaning.min_nodes) also(join_until_);
  return first;
}

void Coordinator::State::tick() {
  const auto over = [&](const std::optional<Clock::time_point>& at) { return at && *at <= now; };
  if (phase_ == Phase::ended) {
    if (over(latecomers_until_)) latecomers_until_.reset();
    if (!over(verdict_until_)) return;
    std::vector<LinkId> slow;
    for (const auto& [link, seat] : members_.all()) slow.push_back(link);
    for (const LinkId link : slow) {
      close(link);
      members_.remove(link);
    }
    return;
  }
  const Heartbeat::Due due = heartbeat_.due(now, [&](LinkId link) -> std::optional<Clock::time_point> {
    const Seat* seat = members_.find(link);
    if (seat == nullptr) return std::nullopt;
    return seat->last_heard;
  });
  for (const LinkId link : due.ping) ping(link);
  for (const LinkId link : due.silent) {
    if (Seat* seat = members_.find(link); seat != nullptr && phase_ != Phase::ended) {
      lose(*seat, concat("nothing was heard from it for ", causes::seconds_text(heartbeat_.bound())), seat->last_heard,
           false);
    }
  }
  settle_by_time();
  if (over(opened_until_)) {
    Seat* first = members_.find(round_links_.front());
    lose(*first, "it did not open the store in time", now, false);
  }
  if (over(stopped_until_)) {
    stopped_until_.reset();
    const std::string how =
        concat("its workers were not stopped after ", causes::seconds_text(stop_bound(memory_.meaning)));
    for (const LinkId link : std::vector<LinkId>(round_links_)) {
      Seat* seat = members_.find(link);
      if (seat != nullptr && seat->told && !seat->stopped) lose(*seat, how, now, false);
      if (phase_ != Phase::running && phase_ != Phase::stopping) break;
    }
  }
  if (over(skew_until_)) {
    std::vector<const Seat*> late;
    for (const LinkId link : round_links_) {
      const Seat* seat = members_.find(link);
      if (seat != nullptr && !seat->succeeded) late.push_back(seat);
    }
    skew_until_.reset();
    if (!late.empty()) stop_for_good(causes::skewed(late, *memory_.meaning.exit_skew), late.front(), 0);
  }
  if (over(pause_until_)) {
    pause_until_.reset();
    gather();
  }
  if (over(last_call_)) {
    last_call_.reset();
    last_call_over_ = true;
    gather();
  }
  if (phase_ == Phase::gathering && over(join_until_) && members_.available() < memory_.meaning.min_nodes) {
    end(nobody_came());
  }
}

}  // namespace ddrun::rendezvous
