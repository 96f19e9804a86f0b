#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ddrun/rendezvous/messages.hpp"
#include "simulation_timeline.hpp"

namespace ddrun::test {

/// What decides who leads a simulated job: one lease, whose terms rise, and one record of a verdict. Each call is a
/// request in the moment of its arrival.
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

  /// Answers nothing until then. `extends`: a lease has its whole time again afterwards, as with a new leader of etcd.
  void go_away(Clock::time_point until, bool extends);
  [[nodiscard]] bool is_there() const { return timeline_.now() >= away_until_; }

  /// Renews the lease that `who` has, or takes one that is free.
  State tick(std::uint64_t who, bool campaigns, const std::string& address);
  void resign(std::uint64_t who);
  /// Takes the lease from who has it in that term, but not from `who`.
  void depose(std::uint64_t who, rendezvous::Term term);
  /// Whether the verdict of `who` is recorded.
  bool record(std::uint64_t who, const std::string& text);
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
