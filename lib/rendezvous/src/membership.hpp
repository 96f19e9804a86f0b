#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/coordinator.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

/// What an agent may say of its own machine's addresses (PROTOCOL.md, section 3); more are not looked at.
inline constexpr std::size_t max_own_addresses = 64;

/// One member as the coordinator knows it. There may be ten thousand: nothing that all have in common is in here.
struct Member {
  LinkId link = 0;
  std::uint64_t arrival = 0;  ///< order in which members joined
  std::string agent_id;
  std::string host;     ///< label
  std::string name;     ///< full name
  std::string machine;  ///< identity: see machine_of()
  std::string role;
  IpAddress peer_address;
  IpAddress local_address;
  std::string advertised;
  std::vector<IpAddress> own_addresses;  ///< of its machine, as it says
  int wanted_rank = -1;
  int local_world_size = 1;
  bool runs_coordinator = false;

  bool excluded = false;         ///< its host failed too often, but it must stay
  bool leaving = false;          ///< told to end
  int leave_signal = 0;          ///< what told it
  std::optional<Abort> aborted;  ///< why it cannot go on, and leaves
  bool notified_spare = false;

  int kept_rank = -1;  ///< node rank in the last round that it started
  int node_rank = -1;  ///< in this round
  bool in_round = false;
  bool notified = false;   ///< was given OPEN or START of this round, so STOPPED will come
  bool succeeded = false;  ///< of this round
  bool stopped = false;    ///< of this round

  Clock::time_point last_heard;
  std::string broken;  ///< how its connection broke, until it is heard again
  /// Its agent answers, but the agent's main thread has not come round since then; unset: it does.
  std::optional<Clock::time_point> stalled_since;
  bool stall_reported = false;

  [[nodiscard]] bool available() const { return !leaving && !excluded; }
  [[nodiscard]] bool finished() const { return succeeded && stopped; }
  /// As the subject of an event.
  [[nodiscard]] event_text::Node node() const { return {host, peer_address.text(), in_round ? node_rank : -1}; }
};

/// "b (10.0.0.2)" for people.
[[nodiscard]] std::string describe(const Member& member);
/// "b (10.0.0.2, node rank 1)".
[[nodiscard]] std::string describe_with_rank(const Member& member);

/// What tells a machine from all others: its full name and what it says of itself.
[[nodiscard]] std::string machine_of(const Join& join);

/// Who is there, whatever they do. Looking up, adding and removing one costs O(log n).
class Membership {
 public:
  /// `is_own`: the coordinator is in its process.
  Member& add(LinkId link, const Join& join, const LinkFacts& facts, bool is_own, Clock::time_point now);
  void remove(LinkId link);
  [[nodiscard]] Member* find(LinkId link);
  [[nodiscard]] const Member* find(LinkId link) const;

  /// The member that a newcomer cannot be there beside: of the same agent id, or with its node rank.
  [[nodiscard]] Member* conflicting_member(const Join& join);
  /// The link of the agent whose process this is, if it is there.
  [[nodiscard]] std::optional<LinkId> own_link() const { return own_; }

  /// From now on it takes part in no new round, and its node rank is free.
  void set_leaving(Member& member, int signal);
  void set_excluded(Member& member);

  /// Gives each member its short name as label where no other one has it, else the full one. Labels that agents were
  /// told stay while a round lasts: called before one begins.
  void assign_labels();

  [[nodiscard]] std::size_t size() const { return members_.size(); }
  [[nodiscard]] bool empty() const { return members_.empty(); }
  /// Who could take part in a round.
  [[nodiscard]] int available() const { return static_cast<int>(members_.size() - unavailable_); }

  [[nodiscard]] std::map<LinkId, Member>& all() { return members_; }
  [[nodiscard]] const std::map<LinkId, Member>& all() const { return members_; }
  /// Up to `max` of those who could take part, in order of arrival: "a (10.0.0.1), b (10.0.0.2), 3 more".
  [[nodiscard]] std::string names(std::size_t max) const;

 private:
  void release_identity(const Member& member);

  std::map<LinkId, Member> members_;
  std::unordered_map<std::string, LinkId> by_agent_;
  std::unordered_map<int, LinkId> by_wanted_rank_;
  std::unordered_map<std::string, std::string> name_of_label_;  ///< the first full name with this short one
  std::optional<LinkId> own_;
  std::size_t unavailable_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace ddrun::rendezvous
