#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

/// Machines that were refused, with the reasons, for the user. Bounded, whatever clients send.
class TurnedAway {
 public:
  /// Warns, unless this machine was refused for this reason before, or the list is full.
  void add(const std::string& machine, std::string why) {
    why.resize(std::min(why.size(), max_why_bytes));
    for (Entry& entry : entries_) {
      if (entry.machine != machine || entry.why != why) continue;
      entry.admitted = false;
      return;
    }
    is_full_ = is_full_ || entries_.size() == max_entries;
    if (is_full_) return;
    entries_.push_back({machine, why, false});
    warnings_.push_back(concat(machine, " was turned away: ", why));
  }
  /// Empties the list.
  [[nodiscard]] std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  /// It was admitted later.
  void set_admitted(const std::string& machine) {
    for (Entry& entry : entries_) entry.admitted = entry.admitted || entry.machine == machine;
  }
  /// "; turned away: a (10.0.0.1): ...; b (10.0.0.2): ..."; empty: none that was not admitted later.
  [[nodiscard]] std::string text() const {
    std::string all;
    for (const Entry& entry : entries_) {
      if (!entry.admitted) all += concat("; ", all.empty() ? "turned away: " : "", entry.machine, ": ", entry.why);
    }
    return is_full_ ? concat(all, all.empty() ? "; turned away: others" : "; others") : all;
  }

 private:
  struct Entry {
    std::string machine, why;
    bool admitted = false;
  };
  static constexpr std::size_t max_entries = 10;
  static constexpr std::size_t max_why_bytes = 400;
  std::vector<Entry> entries_;
  std::vector<std::string> warnings_;
  bool is_full_ = false;  ///< and more came
};

}  // namespace ddrun::rendezvous
