#pragma once

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/coordinator.hpp"
#include "simulation_scenario.hpp"

namespace ddrun::test {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What went wrong in a world of that scenario, with the last things that happened before; empty if nothing did.
template <class World, class Scenario>
std::string play(const Scenario& scenario, typename World::Summary* summary = nullptr) {
  try {
    World world(scenario);
    world.run();
    if (summary != nullptr) *summary = world.summary();
    return "";
  } catch (const Violation& violation) {
    // The same once more, to tell how it came to it.
    World again(scenario, true);
    try {
      again.run();
    } catch (const Violation&) {
    }
    return concat(again.trace(), scenario.describe(), "\n", violation.what());
  }
}

/// Looks at everything that goes into and comes out of a coordinator; throws a Violation when something that must
/// always be true is not.
class Invariants {
 public:
  Invariants(const Scenario& scenario, const rendezvous::Coordinator& coordinator)
      : scenario_(scenario), coordinator_(coordinator) {}

  void joins(rendezvous::LinkId link, const rendezvous::Join& join, Clock::time_point now);
  void receives(rendezvous::LinkId link, const rendezvous::FromAgent& message, Clock::time_point now);
  void disconnected(rendezvous::LinkId link);
  void sends(const rendezvous::Coordinator::Output& output);
  /// After each step and all that it sent.
  void step_over(Clock::time_point now, bool ticked);
  /// When nothing will happen any more.
  void all_over() const;

  /// Something was done to this link, so it may be lost.
  void note_fault(rendezvous::LinkId link) { faulty_.insert(link); }
  void note_coordinator_suspended() { was_suspended_ = true; }

 private:
  void mark_gone(rendezvous::LinkId link);
  void check_start();
  void check_places(const std::vector<rendezvous::Coordinator::MemberView>& members, Clock::time_point now) const;
  void check_verdict() const;

  const Scenario& scenario_;
  const rendezvous::Coordinator& coordinator_;
  std::map<rendezvous::LinkId, rendezvous::Join> joined_;
  std::map<rendezvous::LinkId, Clock::time_point> heard_at_;
  bool progress_ = false;  ///< in this step
  std::optional<Clock::time_point> progress_at_;
  Clock::time_point started_at_;              ///< the last round
  Clock::time_point fence_until_;             ///< workers of nodes that fell silent may run so long
  std::vector<rendezvous::LinkId> welcomed_;  ///< in this step
  std::set<rendezvous::LinkId> gone_;
  std::set<rendezvous::LinkId> faulty_;
  bool was_suspended_ = false;
  /// Given OPEN or START of this round, and not yet stopped or gone.
  std::map<rendezvous::LinkId, rendezvous::Round> unstopped_;
  std::map<rendezvous::LinkId, RankAssignment> starts_;        ///< of the last round that was started
  std::set<rendezvous::LinkId> stop_sent_;                     ///< in the last round
  std::set<rendezvous::LinkId> succeeded_;                     ///< in the last round
  std::map<rendezvous::LinkId, rendezvous::Stopped> stopped_;  ///< in the last round
  std::map<rendezvous::LinkId, RankAssignment> before_;        ///< of the round before that
  std::optional<std::pair<std::string, int>> first_failure_;   ///< host and rank, in the last round
  std::set<rendezvous::LinkId> leaving_;
  std::set<int> signals_;
  bool aborted_ = false;
  std::set<rendezvous::LinkId> cannot_go_on_;
  bool any_loss_ = false;
  bool reason_for_restart_ = false;  ///< since the last START
  bool new_starts_ = false;
  bool must_stop_ = false;
  rendezvous::Round started_ = 0;
  rendezvous::Round last_round_ = 0;
  int last_restarts_ = 0;
  std::optional<rendezvous::VerdictMessage> verdict_;
};

}  // namespace ddrun::test
