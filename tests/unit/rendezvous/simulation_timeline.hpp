#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"

namespace ddrun::test {

/// A number from the environment, such as DDRUN_SIMULATION_RUNS.
inline std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

/// With DDRUN_SIMULATION_HASHES set: prints the hash of a seed's history, by which two builds can be compared.
inline void print_hash(const char* test, std::uint64_t seed, std::uint64_t hash) {
  if (std::getenv("DDRUN_SIMULATION_HASHES") == nullptr) return;
  std::printf("%s %llu %016llx\n", test, static_cast<unsigned long long>(seed), static_cast<unsigned long long>(hash));
}

/// Equal numbers for equal seeds with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  int between(int low, int high) { return low + static_cast<int>(below(static_cast<std::uint64_t>(high - low) + 1)); }
  bool chance(double probability) { return static_cast<double>(below(1'000'000)) < probability * 1e6; }
  Clock::duration time(Clock::duration low, Clock::duration high) {
    return low + Clock::duration(below(static_cast<std::uint64_t>((high - low).count()) + 1));
  }

 private:
  std::mt19937_64 engine_;
};

/// Virtual time: an ordered event queue.
class Timeline {
 public:
  [[nodiscard]] Clock::time_point now() const { return now_; }
  void at(Clock::time_point when, std::function<void()> what) {
    queue_.push(Entry{std::max(when, now_), ++count_, std::move(what)});
  }
  void in(Clock::duration time, std::function<void()> what) { at(now_ + time, std::move(what)); }
  /// False if there are no more events.
  bool step() {
    if (queue_.empty()) return false;
    now_ = queue_.top().when;
    const auto what = std::move(const_cast<Entry&>(queue_.top()).what);
    queue_.pop();
    what();
    return true;
  }

 private:
  struct Entry {
    Clock::time_point when;
    std::uint64_t number;
    std::function<void()> what;
    bool operator<(const Entry& other) const { return std::pair(other.when, other.number) < std::pair(when, number); }
  };
  Clock::time_point now_{std::chrono::hours(1)};
  std::uint64_t count_ = 0;
  std::priority_queue<Entry> queue_;
};

}  // namespace ddrun::test
