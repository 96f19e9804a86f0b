#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "seat.hpp"

namespace ddrun::rendezvous {

/// Who is there, whatever they do. Looking up, adding and removing one costs O(log n).
class Membership {
 public:
  Seat& add(LinkId link, const Join& join, const LinkFacts& facts, Clock::time_point now);
  void remove(LinkId link);
  [[nodiscard]] Seat* find(LinkId link);
  [[nodiscard]] const Seat* find(LinkId link) const;

  /// The member that a newcomer cannot be there beside: of the same agent id, or with its node rank.
  [[nodiscard]] Seat* rival(const Join& join);
  /// The link of the agent whose process this is, if it is there.
  [[nodiscard]] std::optional<LinkId> coordinators_own_link() const { return own_; }

  /// From now on it takes part in no new round, and its node rank is free.
  void set_leaving(Seat& seat, int signal);
  void set_benched(Seat& seat);

  [[nodiscard]] std::size_t size() const { return seats_.size(); }
  [[nodiscard]] bool empty() const { return seats_.empty(); }
  /// Who could take part in a round.
  [[nodiscard]] int available() const { return static_cast<int>(seats_.size() - unavailable_); }

  [[nodiscard]] std::map<LinkId, Seat>& all() { return seats_; }
  [[nodiscard]] const std::map<LinkId, Seat>& all() const { return seats_; }
  /// Up to `most` of those who could take part, in order of arrival: "a (10.0.0.1), b (10.0.0.2), 3 more".
  [[nodiscard]] std::string names(std::size_t most) const;

 private:
  void drop_claims(const Seat& seat);

  std::map<LinkId, Seat> seats_;
  std::unordered_map<std::string, LinkId> by_agent_;
  std::unordered_map<int, LinkId> by_wanted_rank_;
  std::optional<LinkId> own_;
  std::size_t unavailable_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace ddrun::rendezvous
