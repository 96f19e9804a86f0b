#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "ddrun/base/duration.hpp"

namespace ddrun::rendezvous {

/// How often agents of each host have gone out of a round, and how long the next one has to wait therefore: each time
/// that a node comes or goes all workers start again, and one that does nothing else must not keep a job from its work.
/// Time comes in as an argument.
class Departures {
 public:
  /// One that took part in a round has left or was lost.
  void add(const std::string& host, Clock::time_point now);
  /// Since it last stayed, or was away, for a longer time.
  [[nodiscard]] int of(const std::string& host) const;
  /// Until when an agent of this host may not have a round stopped for it. `usual`: what each newcomer waits. The first
  /// departures have no effect, then it doubles with each.
  [[nodiscard]] Clock::time_point held_until(const std::string& host, Clock::duration usual) const;

 private:
  static constexpr int free_of_charge = 2;
  static constexpr Clock::duration longest = std::chrono::minutes(5);
  /// So long without one, and those before are forgotten.
  static constexpr Clock::duration memory = std::chrono::minutes(10);

  struct Record {
    int count = 0;
    Clock::time_point last;
  };
  std::map<std::string, Record> records_;
};

inline void Departures::add(const std::string& host, Clock::time_point now) {
  std::erase_if(records_, [&](const auto& entry) { return now - entry.second.last > memory; });
  Record& record = records_[host];
  ++record.count;
  record.last = now;
}

inline int Departures::of(const std::string& host) const {
  const auto found = records_.find(host);
  return found == records_.end() ? 0 : found->second.count;
}

inline Clock::time_point Departures::held_until(const std::string& host, Clock::duration usual) const {
  const auto found = records_.find(host);
  if (found == records_.end() || found->second.count <= free_of_charge) return Clock::time_point::min();
  const int doublings = std::min(found->second.count - free_of_charge, 20);
  const Clock::duration wait = std::max<Clock::duration>(usual, std::chrono::seconds(1)) * (1LL << doublings);
  return found->second.last + std::min(wait, longest);
}

}  // namespace ddrun::rendezvous
