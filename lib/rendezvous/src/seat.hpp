#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/coordinator.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

/// One member as the coordinator knows it. There may be ten thousand: nothing that all have in common is in here.
struct Seat {
  LinkId link = 0;
  std::uint64_t arrival = 0;  ///< order in which members joined
  std::string agent_id;
  std::string host;
  std::string role;
  IpAddress peer_address;
  IpAddress local_address;
  std::string advertised;
  std::vector<IpAddress> own_addresses;  ///< of its machine, as it says
  int wanted_rank = -1;
  int local_world_size = 1;
  bool runs_coordinator = false;

  bool benched = false;  ///< its host failed too often, but it must stay
  bool leaving = false;  ///< told to end
  int leave_signal = 0;  ///< what told it
  bool told_spare = false;
  std::uint32_t probe = 0;  ///< a ping whose answer settles claims of newcomers; 0: none

  int kept_rank = -1;  ///< node rank in the last round that it started
  int node_rank = -1;  ///< in this round
  bool in_round = false;
  bool told = false;       ///< was given OPEN or START of this round, so STOPPED will come
  bool succeeded = false;  ///< of this round
  bool stopped = false;    ///< of this round

  Clock::time_point last_heard;

  [[nodiscard]] bool available() const { return !leaving && !benched; }
  [[nodiscard]] bool finished() const { return succeeded && stopped; }
  /// As the subject of an event.
  [[nodiscard]] event_text::Node node() const { return {host, peer_address.text(), in_round ? node_rank : -1}; }
};

/// "b (10.0.0.2)" for people.
[[nodiscard]] std::string describe(const Seat& seat);
/// "b (10.0.0.2, node rank 1)".
[[nodiscard]] std::string describe_with_rank(const Seat& seat);

}  // namespace ddrun::rendezvous
