#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/coordinator.hpp"

namespace ddrun::rendezvous {

/// Whose turn it is to be pinged, and who may have gone silent. Members are spread over a wheel of slots, so that ten
/// thousand of them cost a few hundred pings at a time and one timer. Members that are gone drop out when their turn
/// comes.
class Heartbeat {
 public:
  /// The same on both sides.
  [[nodiscard]] static constexpr Clock::duration margin(Clock::duration interval) { return interval / 2; }

  Heartbeat(Milliseconds interval, int misses);

  void add(LinkId link, Clock::time_point now);
  /// When `due` is wanted; nothing without members.
  [[nodiscard]] std::optional<Clock::time_point> next() const;

  /// When the member was last heard; nothing if it is gone.
  using LastHeard = std::function<std::optional<Clock::time_point>(LinkId)>;
  struct Due {
    std::vector<LinkId> ping;
    std::vector<LinkId> silent;  ///< for the whole heartbeat time
  };
  [[nodiscard]] Due due(Clock::time_point now, const LastHeard& last_heard);

  /// So many intervals may pass without a word. The one that is under way when one process stands still counts, too:
  /// who is back just then has a moment to be heard. Silent beyond that: lost.
  [[nodiscard]] Clock::duration timeout() const { return timeout_; }
  [[nodiscard]] Clock::duration limit() const { return timeout_ + margin(interval_); }
  [[nodiscard]] Clock::duration interval() const { return interval_; }

 private:
  static constexpr std::size_t slot_count = 32;

  void visit(std::vector<LinkId>& slot, Clock::time_point now, const LastHeard& last_heard, Due& due);

  Clock::duration interval_;
  Clock::duration timeout_;
  std::array<std::vector<LinkId>, slot_count> slots_;
  std::size_t turn_ = 0;       ///< the slot that is next
  Clock::time_point turn_at_;  ///< and when
  std::size_t entries_ = 0;
  std::set<std::pair<Clock::time_point, LinkId>> suspects_;  ///< will be silent for too long before their next turn
  Clock::time_point silence_from_;                           ///< due() was not called before: silence counts from here
};

}  // namespace ddrun::rendezvous
