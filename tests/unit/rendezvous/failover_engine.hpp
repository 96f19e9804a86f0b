#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ddrun/rendezvous/messages.hpp"
#include "simulation_timeline.hpp"

namespace ddrun::test {

/// The engine of a simulated job's leader election: one lease with rising terms, and one verdict record. Each call is a
/// request at the time of its arrival.
class Engine {
 public:
  struct State {
    rendezvous::Term term = 0;
    std::uint64_t holder = 0;  ///< 0: the lease is free
    std::string address;
    std::optional<std::string> verdict;
  };
  Engine(Timeline& timeline, Milliseconds ttl, std::function<void()> on_change)
      : timeline_(timeline), ttl_(ttl), on_change_(std::move(on_change)) {}

  /// Does not respond until then. `extends`: afterwards a lease has its full time again, as after an etcd election.
  void set_unavailable(Clock::time_point until, bool extends);
  [[nodiscard]] bool is_available() const { return timeline_.now() >= away_until_; }

  /// Renews the lease held by `who`, or acquires a free one.
  State tick(std::uint64_t client, bool campaigns, const std::string& address);
  void resign(std::uint64_t client);
  /// Revokes the lease of that term, unless `who` holds it.
  void depose(std::uint64_t client, rendezvous::Term term);
  /// Whether the verdict of `who` is recorded.
  bool record(std::uint64_t client, const std::string& text);
  [[nodiscard]] const State& state() const { return state_; }

 private:
  void renew();
  void watch();

  Timeline& timeline_;
  Clock::duration ttl_;
  std::function<void()> on_change_;
  State state_;
  std::uint64_t recorder_ = 0;
  Clock::time_point expires_;
  Clock::time_point away_until_;
};

}  // namespace ddrun::test
