#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// Schedules pings and detects silent members. Members are spread over a timing wheel, so that ten thousand of them
/// cost a few hundred pings at a time and one timer. Lost members are dropped at their next turn.
class Heartbeat {
 public:
  /// Added to the timeout, on both sides.
  [[nodiscard]] static constexpr Clock::duration margin(Clock::duration interval) { return interval / 2; }

  Heartbeat(Milliseconds interval, int misses);

  void add(LinkId link, Clock::time_point now);
  /// When to call `due`; empty without members.
  [[nodiscard]] std::optional<Clock::time_point> next() const;

  /// Last sign of life of a member; empty if it is lost.
  using LastHeard = std::function<std::optional<Clock::time_point>(LinkId)>;
  struct Due {
    std::vector<LinkId> ping;
    std::vector<LinkId> silent;  ///< for the whole timeout
  };
  [[nodiscard]] Due due(Clock::time_point now, const LastHeard& last_heard);

  /// Intervals times misses. A member counts as lost after `limit`: half an interval more, for a process that was
  /// suspended and has just resumed.
  [[nodiscard]] Clock::duration timeout() const { return timeout_; }
  [[nodiscard]] Clock::duration limit() const { return timeout_ + margin(interval_); }
  [[nodiscard]] Clock::duration interval() const { return interval_; }

 private:
  static constexpr std::size_t slot_count = 32;

  void visit(std::vector<LinkId>& slot, Clock::time_point now, const LastHeard& last_heard, Due& due);

  Clock::duration interval_;
  Clock::duration timeout_;
  std::array<std::vector<LinkId>, slot_count> slots_;
  std::size_t turn_ = 0;       ///< next slot
  Clock::time_point turn_at_;  ///< and its time
  std::size_t entries_ = 0;
  std::set<std::pair<Clock::time_point, LinkId>> suspects_;  ///< their limit is before their next turn
  Clock::time_point silence_from_;                           ///< due() was late: silence counts from here
};

}  // namespace ddrun::rendezvous
