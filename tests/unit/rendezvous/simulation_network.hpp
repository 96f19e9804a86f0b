#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "coordinator.hpp"
#include "simulation_timeline.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

/// Connections that keep messages in order, delay or stall them, break at one or both ends, or die unnoticed.
class Network {
 public:
  struct Handlers {
    std::function<void(LinkId, const FromAgent&)> coordinator_receives;
    std::function<void(LinkId, const std::string& how)> coordinator_disconnected;
    std::function<void(std::size_t agent, LinkId, const FromCoordinator&)> agent_receives;
    std::function<void(std::size_t agent, LinkId)> agent_disconnected;
  };
  Network(Timeline& timeline, Random& random, Handlers ends)
      : timeline_(timeline), random_(random), handlers_(std::move(ends)) {}

  Clock::duration max_latency{Milliseconds{5}};
  std::size_t bandwidth = 0;  ///< of each direction of a link, bytes per second; 0: unlimited

  LinkId connect(std::size_t agent);
  void send_to_coordinator(LinkId link, FromAgent message);
  void send_to_agent(LinkId link, FromCoordinator message);
  /// Orderly: after everything sent.
  void close_by_agent(LinkId link);
  void close_by_coordinator(LinkId link);

  /// Messages in flight are lost; each end notices after a while, or never.
  void break_link(LinkId link, bool coordinator_notices, bool agent_notices);
  /// What delays a link, as TCP sends again what is lost.
  enum class Stalls { both, to_coordinator, to_agent };
  /// Delays everything by this time; nothing is lost.
  void stall(LinkId link, Clock::duration time, Stalls which = Stalls::both);

  /// Of all that both ends have sent, with its times: equal histories have equal hashes.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  template <class Message>
  struct Direction {
    std::deque<std::pair<Clock::time_point, std::optional<Message>>> sent;  ///< no message: closed
    Clock::time_point stalled_until;
    Clock::time_point busy_until;  ///< sending what was sent before
  };
  struct Link {
    std::size_t agent = 0;
    Direction<FromAgent> up;
    Direction<FromCoordinator> down;
    bool up_open = true;    ///< the coordinator still receives
    bool down_open = true;  ///< the agent still receives
    bool coordinator_done = false;
  };
  template <class Message>
  void enqueue(LinkId link, Direction<Message>& direction, std::optional<Message> message);
  void pump_up(LinkId link);
  void pump_down(LinkId link);
  template <class Message>
  std::size_t note(LinkId link, const std::optional<Message>& message);

  Timeline& timeline_;
  Random& random_;
  Handlers handlers_;
  LinkId links_ = 0;
  std::uint64_t hash_ = 0xcbf29ce484222325;  // FNV-1a
  std::map<LinkId, Link> all_;
};

}  // namespace ddrun::test
