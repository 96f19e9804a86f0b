#pragma once

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator.hpp"
#include "ddrun/base/text.hpp"
#include "member_views.hpp"
#include "simulation_scenario.hpp"
#include "survey_invariants.hpp"

namespace ddrun::test {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
void require(bool held, const Parts&... parts) {
  if (!held) throw Violation(concat(parts...));
}

/// The violation in a world of that scenario, with the last events before it; empty if there was none.
template <class World, class Scenario>
std::string play(const Scenario& scenario, typename World::Summary* summary = nullptr) {
  try {
    World world(scenario);
    world.run();
    if (summary != nullptr) *summary = world.summary();
    return "";
  } catch (const Violation& violation) {
    // Once more with tracing, to show what led to it.
    World again(scenario, true);
    try {
      again.run();
    } catch (const Violation&) {
    }
    return concat(again.trace(), scenario.describe(), "\n", violation.what());
  }
}

/// Checks all input and output of a coordinator; throws a Violation if an invariant is broken.
class Invariants {
 public:
  Invariants(const Scenario& scenario, const rendezvous::Coordinator& coordinator)
      : scenario_(scenario), coordinator_(coordinator), survey_(coordinator) {}

  void joins(rendezvous::LinkId link, const rendezvous::Join& join, Clock::time_point now);
  void receives(rendezvous::LinkId link, const rendezvous::FromAgent& message, Clock::time_point now);
  void disconnected(rendezvous::LinkId link);
  void sends(const rendezvous::Coordinator::Output& output, Clock::time_point now);
  /// After each step and its output.
  void after_step(Clock::time_point now, bool ticked);
  /// When the simulation is over.
  void check_finished() const;

  /// This link had a fault, so it may be lost.
  void note_fault(rendezvous::LinkId link) { faulty_.insert(link); }
  void note_coordinator_suspended(Clock::duration time) {
    was_suspended_ = true;
    survey_.note_suspended(time);
  }

 private:
  void mark_lost(rendezvous::LinkId link);
  void check_start();
  void check_places(const std::vector<MemberView>& members, Clock::time_point now) const;
  void check_verdict() const;

  const Scenario& scenario_;
  const rendezvous::Coordinator& coordinator_;
  SurveyInvariants survey_;
  std::map<rendezvous::LinkId, rendezvous::Join> joined_;
  std::map<rendezvous::LinkId, Clock::time_point> last_heard_;
  bool progress_ = false;  ///< in this step
  std::optional<Clock::time_point> progress_at_;
  Clock::time_point started_at_;              ///< the last round
  Clock::time_point fence_until_;             ///< until when workers of silent nodes may run
  std::vector<rendezvous::LinkId> welcomed_;  ///< in this step
  std::set<rendezvous::LinkId> lost_;
  std::set<rendezvous::LinkId> faulty_;
  bool was_suspended_ = false;
  /// OPEN or START of this round was sent, and it has not stopped or been lost.
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
