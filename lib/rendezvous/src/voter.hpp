#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/lease/fence.hpp"
#include "vote_messages.hpp"

namespace ddrun::rendezvous {

/// One machine's vote on who leads a job: PROTOCOL.md, section 11. It votes for one candidate at a time, and stands by
/// that until the time to live is over, counted from the last time that it said yes; so candidates with more than half
/// of all voters behind them never overlap. It remembers nothing beyond its process. What it may have said before that
/// is over a time to live after it began: until then it says `fresh` instead of yes.
///
/// No sockets, no clock, no thread.
class Voter {
 public:
  using Time = lease::FenceClock::time_point;

  /// `id` is random, above 0.
  Voter(std::uint64_t id, std::string job, Milliseconds ttl, Time now);

  [[nodiscard]] VoteAnswer ask(const VoteRequest& request, Time now);
  /// The process of a candidate has ended, as is known for certain.
  void ended(const std::string& candidate);

  /// What an agent is told whenever it changes.
  [[nodiscard]] VoteAnswer state(Time now) const;
  /// When it changes by itself.
  [[nodiscard]] std::optional<Time> next_change(Time now) const;

 private:
  struct Vote {
    std::uint64_t term = 0;
    std::string candidate;
    std::string address;
    bool leads = false;  ///< with the votes of others
    Time until{};
  };

  [[nodiscard]] bool bound(Time now) const { return vote_.term != 0 && now < vote_.until; }
  [[nodiscard]] bool is_for(const VoteRequest& request) const {
    return vote_.term == request.term && vote_.candidate == request.candidate;
  }
  [[nodiscard]] VoteAnswer::Ballot vote(const VoteRequest& request, Time now);
  [[nodiscard]] VoteAnswer::Ballot hold(const VoteRequest& request, Time now);
  [[nodiscard]] VoteAnswer::Ballot record(const VoteRequest& request, Time now);

  std::uint64_t id_;
  std::string job_;
  Milliseconds ttl_;
  Time fresh_until_;
  Vote vote_;
  std::uint64_t voted_ = 0;
  std::uint64_t seen_ = 0;
  std::uint64_t deposed_ = 0;
  std::string verdict_;
  std::uint64_t verdict_term_ = 0;  ///< of the leader that asked to record it
  bool sure_ = false;
};

}  // namespace ddrun::rendezvous
