#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ddrun/rendezvous/coordinator.hpp"
#include "simulation_timeline.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

/// Connections that keep the order of messages, delay each, stall, break at one or both ends, or go dead unnoticed.
class Network {
 public:
  struct Ends {
    std::function<void(LinkId, const FromAgent&)> coordinator_hears;
    std::function<void(LinkId, const std::string& how)> coordinator_loses;
    std::function<void(std::size_t agent, LinkId, const FromCoordinator&)> agent_hears;
    std::function<void(std::size_t agent, LinkId)> agent_loses;
  };
  Network(Timeline& timeline, Random& random, Ends ends)
      : timeline_(timeline), random_(random), ends_(std::move(ends)) {}

  Clock::duration slowest{Milliseconds{5}};

  LinkId connect(std::size_t agent);
  void send_to_coordinator(LinkId link, FromAgent message);
  void send_to_agent(LinkId link, FromCoordinator message);
  /// In order: after everything that was sent.
  void close_by_agent(LinkId link);
  void close_by_coordinator(LinkId link);

  /// What is on its way is gone; each end notices after a while, or never.
  void break_off(LinkId link, bool coordinator_notices, bool agent_notices);
  /// Nothing arrives for so long, but nothing is lost.
  void stall(LinkId link, Clock::duration time);

 private:
  template <class Message>
  struct Way {
    std::deque<std::pair<Clock::time_point, std::optional<Message>>> sent;  ///< no message: closed
  };
  struct Link {
    std::size_t agent = 0;
    Way<FromAgent> up;
    Way<FromCoordinator> down;
    Clock::time_point stalled_until;
    bool up_open = true;    ///< the coordinator still hears
    bool down_open = true;  ///< the agent still hears
    bool coordinator_done = false;
  };
  template <class Message>
  void push(LinkId link, Way<Message>& way, std::optional<Message> message);
  void pump_up(LinkId link);
  void pump_down(LinkId link);

  Timeline& timeline_;
  Random& random_;
  Ends ends_;
  LinkId links_ = 0;
  std::map<LinkId, Link> all_;
};

}  // namespace ddrun::test
