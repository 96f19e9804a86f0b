#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "failover_engine.hpp"
#include "failover_member.hpp"
#include "failover_scenario.hpp"

namespace ddrun::test {

/// Checks all messages of coordinators, and which workers run where; throws a Violation if an invariant is broken.
class FailoverInvariants {
 public:
  FailoverInvariants(const FailoverScenario& scenario, const Timeline& timeline, const Engine& engine)
      : scenario_(scenario), timeline_(timeline), engine_(engine) {}

  // A coordinator.
  void receives(const SimulatedServer& server, rendezvous::LinkId link, const rendezvous::FromAgent& message);
  void on_send(const SimulatedServer& server, rendezvous::LinkId link, const rendezvous::FromCoordinator& message);
  void on_join(const SimulatedServer& server, const rendezvous::Join& join);
  /// `quiet`: only PING and PONG since the last call.
  void after_step(const SimulatedServer& server, bool quiet);

  // A machine.
  void on_lead(const SimulatedMember& node, const std::vector<std::shared_ptr<SimulatedMember>>& all) const;
  /// A message of a coordinator of that term.
  void check_term(const SimulatedMember& node, rendezvous::Term term) const;
  /// `with_coordinator`: in the same process.
  void on_start(const SimulatedMember& node, const rendezvous::Start& start, bool with_coordinator);
  void on_workers_end(const SimulatedMember& node);
  /// Its agent is suspended; nothing stops its workers, unless it is `alone`.
  void on_suspended(const SimulatedMember& node, Clock::time_point until, bool alone);
  void on_coordinator_lost(const SimulatedMember& node, const SimulatedMember* coordinator);
  /// The machine has a network fault, or its process is suspended, until then.
  void note_fault(std::size_t machine, Clock::time_point until);
  void note_engine_fault(Clock::time_point until) { last_fault_ = std::max(last_fault_, until); }
  void on_end(const SimulatedMember& node) const;

  [[nodiscard]] rendezvous::Round rounds() const { return rounds_; }
  /// Number of terms in which rounds were started.
  [[nodiscard]] std::size_t terms() const { return terms_.size(); }
  /// Number of machines with workers of the last round.
  [[nodiscard]] std::size_t running_last_round() const;
  [[nodiscard]] std::pair<rendezvous::Term, rendezvous::Round> last_begun() const { return last_begun_; }

 private:
  using Place = std::pair<rendezvous::Term, rendezvous::Round>;
  struct Running {
    Place place;
    bool with_coordinator = false;  ///< on its own machine
    std::optional<Clock::time_point> ends_by;
    bool was_suspended = false;
    std::string host;
  };
  struct OfServer {
    std::set<rendezvous::LinkId> leaving;
    std::set<Place> claims;  ///< known at takeover
    std::optional<Clock::time_point> gathers_since;
  };
  const FailoverScenario& scenario_;
  const Timeline& timeline_;
  const Engine& engine_;
  void check_overlap(const SimulatedMember& node, Place place);
  void check_gathering(const OfServer& of) const;
  void remove_running(const Running& running);

  std::map<std::size_t, Running> running_;
  std::map<Place, int> running_in_;  ///< of agents that were not suspended
  Place last_begun_;
  std::map<std::size_t, rendezvous::Term> last_start_term_;        ///< of the last START, by node
  std::map<std::size_t, std::pair<rendezvous::Round, int>> last_;  ///< round and restarts, by node
  std::map<rendezvous::Term, std::uint64_t> terms_;                ///< the server that started a round in it
  std::map<Place, int> restarts_;                                  ///< from START
  std::map<Place, Clock::time_point> started_at_;                  ///< START was sent
  rendezvous::Term last_term_ = 0;
  rendezvous::Round last_round_ = 0;
  std::map<std::uint64_t, OfServer> servers_;
  std::map<std::size_t, Clock::time_point> faulty_until_, suspended_until_;
  Clock::time_point last_fault_;
  rendezvous::Round rounds_ = 0;
};

}  // namespace ddrun::test
