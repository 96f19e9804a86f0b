#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// Own addresses accepted per agent (PROTOCOL.md, section 3); more are ignored.
inline constexpr std::size_t max_own_addresses = 64;

/// A member's way through a round.
enum class Part : std::uint8_t {
  none,       ///< in no round
  chosen,     ///< in the round, and not told yet
  notified,   ///< OPEN or START was sent, so STOPPED will come
  succeeded,  ///< SUCCEEDED has come
  stopped,    ///< STOPPED has come, without SUCCEEDED
  finished,   ///< both have come
};

/// A member. There may be ten thousand, so nothing common to all is stored here.
struct Member {
  LinkId link = 0;
  std::uint64_t arrival = 0;  ///< join order
  std::string agent_id;
  std::string host;     ///< label
  std::string name;     ///< full name
  std::string machine;  ///< see machine_of()
  std::string role;
  IpAddress peer_address;
  IpAddress local_address;
  std::string advertised;
  std::vector<IpAddress> own_addresses;  ///< as reported by JOIN
  int wanted_rank = -1;
  int local_world_size = 1;
  bool runs_coordinator = false;

  bool excluded = false;  ///< its host failed too often, but the coordinator's agent must stay
  std::optional<Leave> leaving;
  bool notified_spare = false;

  int kept_rank = -1;  ///< in the last started round
  int node_rank = -1;  ///< in the current round
  Part part = Part::none;

  Clock::time_point last_heard;
  std::string broken;           ///< how its connection broke, until the next sign of life
  std::uint32_t pong = 0;       ///< number of its last PONG; 0: none
  bool stall_reported = false;  ///< its main thread is blocked, and a notice was sent

  [[nodiscard]] bool available() const { return !leaving && !excluded; }
  /// A sign of life.
  void note_heard(Clock::time_point now) {
    last_heard = now;
    broken.clear();
  }
  [[nodiscard]] bool in_round() const { return part != Part::none; }
  [[nodiscard]] bool was_notified() const { return part >= Part::notified; }
  [[nodiscard]] bool owes_stopped() const { return part == Part::notified || part == Part::succeeded; }
  /// As subject of an event.
  [[nodiscard]] event_text::Node node() const { return {host, peer_address.text(), in_round() ? node_rank : -1}; }
};

/// "b (10.0.0.2)".
[[nodiscard]] std::string describe(const Member& member);
/// "b (10.0.0.2, node rank 1)".
[[nodiscard]] std::string describe_with_rank(const Member& member);

/// Identifies a machine: its full name and boot id.
[[nodiscard]] std::string machine_of(const Join& join);

/// All members, in any state. Lookup, insertion and removal cost O(log n).
class Membership {
 public:
  /// `is_own`: its process runs the coordinator.
  Member& add(LinkId link, const Join& join, const LinkAddresses& addresses, bool is_own, Clock::time_point now);
  void remove(LinkId link);
  [[nodiscard]] Member* find(LinkId link);
  [[nodiscard]] const Member* find(LinkId link) const;

  /// The member with this agent id or node rank, which excludes the joining agent.
  [[nodiscard]] Member* conflicting_member(const Join& join);
  /// The agent in this process; null if it has not joined.
  [[nodiscard]] const Member* own() const { return own_ ? find(*own_) : nullptr; }

  /// Excludes it from new rounds and frees its node rank.
  void set_leaving(Member& member, Leave leave);
  void set_excluded(Member& member);

  /// Labels each member by its short host name, or the full one where that is ambiguous. Call before a round begins:
  /// labels must not change within one.
  void assign_labels();

  [[nodiscard]] std::size_t size() const { return members_.size(); }
  [[nodiscard]] bool empty() const { return members_.empty(); }
  /// Members that can take part in a round.
  [[nodiscard]] int available() const { return static_cast<int>(members_.size() - unavailable_); }
  [[nodiscard]] std::vector<Member*> available_members();

  [[nodiscard]] std::map<LinkId, Member>& all() { return members_; }
  [[nodiscard]] const std::map<LinkId, Member>& all() const { return members_; }
  /// Up to `max` of these, in join order: "a (10.0.0.1), b (10.0.0.2), 3 more".
  [[nodiscard]] std::string names(std::size_t max) const;

 private:
  void release_identity(const Member& member);

  std::map<LinkId, Member> members_;
  std::unordered_map<std::string, LinkId> by_agent_;
  std::unordered_map<int, LinkId> by_wanted_rank_;
  std::unordered_map<std::string, std::string> name_of_label_;  ///< first full name per short name
  std::optional<LinkId> own_;
  std::size_t unavailable_ = 0;
  std::uint64_t arrivals_ = 0;
};

}  // namespace ddrun::rendezvous
