#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ddrun/base/duration.hpp"

namespace ddrun {

/// The deadlines of a state machine, at most one for each name. `Name`: an enum. Reads no clock.
template <class Name, class TimePoint = Deadline>
class Deadlines {
 public:
  /// Replaces the deadline of this name.
  void arm(Name name, TimePoint at) { at_[name] = at; }
  void clear(Name name) { at_.erase(name); }
  void clear_all() { at_.clear(); }
  /// Empty if it is not armed.
  [[nodiscard]] std::optional<TimePoint> at(Name name) const {
    const auto found = at_.find(name);
    return found == at_.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] bool is_armed(Name name) const { return at_.contains(name); }

  /// The earliest one; empty if none is armed.
  [[nodiscard]] std::optional<TimePoint> next() const {
    const auto first = earliest();
    return first == at_.end() ? std::nullopt : std::optional(first->second);
  }
  /// Clears the earliest one if it is not after `now`, and returns its name. Of equal ones the first name comes first.
  [[nodiscard]] std::optional<Name> take_expired(TimePoint now) {
    const auto first = earliest();
    if (first == at_.end() || first->second > now) return std::nullopt;
    const Name name = first->first;
    at_.erase(first);
    return name;
  }
  /// Passes `on` each name that has expired, the earliest first. It ends with one that expires `again` in this call,
  /// which would go on for ever.
  template <class On>
  void expire(TimePoint now, On on) {
    std::set<Name> seen;
    for (bool again = false; !again;) {
      const auto name = take_expired(now);
      if (!name) return;
      again = !seen.insert(*name).second;
      on(*name, again);
    }
  }

 private:
  using Map = std::map<Name, TimePoint>;
  [[nodiscard]] typename Map::const_iterator earliest() const {
    return std::min_element(at_.begin(), at_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  }

  Map at_;
};

}  // namespace ddrun
