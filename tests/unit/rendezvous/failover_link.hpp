#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dialer.hpp"
#include "simulated_survey.hpp"
#include "simulation_network.hpp"

namespace ddrun::test {

class FailoverWorld;
class SimulatedMember;

/// What AgentLink does in virtual time: carries out the steps of a Dialer. Names and broken connections that are
/// resumed are not simulated.
class SimulatedLink : public std::enable_shared_from_this<SimulatedLink> {
 public:
  struct Callbacks {
    std::function<void(const FromCoordinator&)> on_message;
    std::function<void(const LinkLoss&)> on_lost;
    std::function<void(const std::string&)> on_retry;
    std::function<void()> on_not_listening;
  };
  /// To be started. `owner`: outlives it.
  SimulatedLink(FailoverWorld& world, SimulatedMember& owner, DialerOptions options, Callbacks callbacks);

  void start();
  void send(const FromAgent& message);
  /// Closes the connection; no callback follows.
  void hang();

  // Of the network.
  void receives(const FromCoordinator& message);
  void disconnected();
  /// The connection in use, or kept open after its loss; 0: none.
  [[nodiscard]] LinkId id() const { return id_; }

 private:
  void dial(const DialStep& step);
  void carry_out(const dial::LookUp& order);
  void carry_out(const dial::Connect& order);
  void carry_out(const dial::Pause&) { end_attempt(); }
  void carry_out(const dial::Greet&);
  void carry_out(const FromAgent& greeting);
  void carry_out(const dial::Open&) {}
  void carry_out(const dial::Watch&) {}
  void carry_out(const LinkLoss& loss);
  void send_now(const FromAgent& message);
  void send_answers();
  void end_attempt();
  void note_workers();
  void order_stop(Grace grace);
  /// On the link's thread, unless another attempt has begun by then.
  void later(Clock::duration time, std::function<void()> what);
  /// On the owner's thread, unless the link is gone by then.
  void notify(std::function<void()> what);
  void connected(std::uint64_t attempt, LinkId link, bool refused);

  FailoverWorld& world_;
  SimulatedMember& owner_;
  Callbacks callbacks_;
  Dialer dialer_;
  SimulatedAnswers answers_;
  LinkId id_ = 0;
  std::uint64_t attempt_ = 0;  ///< what belongs to an earlier one is ignored
  std::uint64_t timer_ = 0;
  bool is_over_ = false;
};

}  // namespace ddrun::test
