#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "coordinator.hpp"
#include "failover_scenario.hpp"
#include "survey_invariants.hpp"

namespace ddrun::test {

class FailoverInvariants;

/// A coordinator of a term with its transport, on one machine: what CoordinatorServer does with a lease.
class SimulatedServer : public std::enable_shared_from_this<SimulatedServer> {
 public:
  struct Place {
    Timeline& timeline;
    const FailoverScenario& scenario;
    FailoverInvariants& invariants;
    std::uint64_t number = 0;
    std::string host;
    std::function<bool()> holds_lease;
    std::function<void(rendezvous::LinkId, const rendezvous::FromCoordinator&)> send;
    std::function<void(rendezvous::LinkId)> close_link;
    std::function<void(const std::function<std::string()>&)> note;
    /// On the server's thread: at once, or once the process goes on.
    std::function<void(std::function<void()>)> on_thread;
    /// On the thread of the agent.
    std::function<void(const rendezvous::VerdictMessage&)> on_verdict;
    std::function<void()> on_stepped_down;
    std::function<void()> on_done;
  };
  SimulatedServer(Place place, rendezvous::CoordinatorOptions options);

  void receives(rendezvous::LinkId link, const rendezvous::FromAgent& message,
                const rendezvous::LinkAddresses& addresses);
  void disconnected(rendezvous::LinkId link, const std::string& how);
  void suspend();
  void lead(rendezvous::Term term);
  void step_down(const std::string& why);
  void recorded();
  /// The process stood still for so long.
  void skip(Clock::duration time) { stopped_time_ += time; }
  /// Its process has ended, or has no more use for it. Gives the links that it had.
  std::set<rendezvous::LinkId> close();

  [[nodiscard]] bool is_open() const { return !closed_; }
  [[nodiscard]] std::uint64_t number() const { return place_.number; }
  [[nodiscard]] const rendezvous::Coordinator& coordinator() const { return coordinator_; }
  [[nodiscard]] bool holds_lease() const { return place_.holds_lease(); }
  [[nodiscard]] bool suspended() const { return suspended_; }

 private:
  void acts(const std::function<void()>& what);
  void apply_outputs();
  void check_lease();
  void schedule_tick();
  void check_done();
  [[nodiscard]] Clock::time_point now() const { return place_.timeline.now() - stopped_time_; }

  Place place_;
  rendezvous::Coordinator coordinator_;
  SurveyInvariants survey_;
  std::set<rendezvous::LinkId> links_;
  std::map<rendezvous::LinkId, std::uint64_t> received_;  ///< messages that are counted
  Clock::duration stopped_time_{0};
  std::optional<Clock::time_point> tick_at_;
  bool quiet_ = true;  ///< nothing but PING and PONG since the last look
  bool closed_ = false, suspended_ = false, step_down_reported_ = false, done_reported_ = false;
};

}  // namespace ddrun::test
