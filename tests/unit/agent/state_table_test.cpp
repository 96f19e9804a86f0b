// Every state and every event: what the machine does, and that it does nothing else.

#include <functional>
#include <map>
#include <utility>

#include "ddrun/test/catch.hpp"
#include "machine_walk.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using ddrun::test::Walk;

namespace {

const std::vector<std::pair<std::string, Event>>& all_events() {
  static const std::vector<std::pair<std::string, Event>> events = {
      {"Start", event::Start{}},
      {"Spawned", event::Spawned{}},
      {"SpawnFailed", event::SpawnFailed{"no room", 125}},
      {"WorkerEnded well", event::WorkerEnded{1, Exited{0}}},
      {"WorkerEnded badly", event::WorkerEnded{1, Exited{3}}},
      {"GroupGone", event::GroupGone{}},
      {"OnlyStraysLeft", event::OnlyStraysLeft{}},
      {"GraceExpired", event::GraceExpired{}},
      {"KillExpired", event::KillExpired{}},
      {"OutputClosed", event::OutputClosed{}},
      {"BackoffExpired", event::BackoffExpired{}},
      {"JobTimeout", event::JobTimeout{}},
      {"EndingSignal", event::EndingSignal{SIGINT, ""}},
      {"ParentLost", event::ParentLost{"the guard was killed"}},
      {"SkewExpired", event::SkewExpired{}},
      {"RoundBegins", event::RoundBegins{0}},
      {"VerdictSpoken", event::VerdictSpoken{}},
      {"CoordinatorLost", event::CoordinatorLost{"gone"}},
  };
  return events;
}

/// A machine in `state`. From `stopping` on, a worker has failed and a restart is wanted.
Walk in_state(State state) {
  Walk walk(test::restarts(1, Milliseconds{1000}), test::grace(Milliseconds{30'000}));
  const std::vector<std::pair<State, Event>> steps = {
      {State::starting, event::Start{}},         {State::running, event::Spawned{}},
      {State::stopping, all_events()[4].second}, {State::killing, event::GraceExpired{}},
      {State::closing, event::GroupGone{}},      {State::backing_off, event::OutputClosed{}},
      {State::finished, event::JobTimeout{}},
  };
  for (const auto& [reached, event] : steps) {
    if (walk.machine.state() == state) break;
    walk.on(event);
    REQUIRE(walk.machine.state() == reached);
  }
  REQUIRE(walk.machine.state() == state);
  return walk;
}

struct Step {
  State next;
  std::string actions;
};

const std::string stop_with_term = "signal 15, grace 30000, check";

/// All that ever happens. A pair that is not here changes no state and asks for nothing.
const std::map<std::pair<State, std::string>, Step>& table() {
  static const std::map<std::pair<State, std::string>, Step> steps = {
      {{State::idle, "Start"}, {State::starting, "spawn 0"}},
      {{State::idle, "JobTimeout"}, {State::finished, "finish"}},
      {{State::idle, "EndingSignal"}, {State::finished, "finish"}},
      {{State::idle, "ParentLost"}, {State::finished, "finish"}},

      {{State::starting, "Spawned"}, {State::running, ""}},
      {{State::starting, "SpawnFailed"}, {State::stopping, stop_with_term}},

      {{State::running, "WorkerEnded badly"}, {State::stopping, stop_with_term}},
      {{State::running, "JobTimeout"}, {State::stopping, stop_with_term}},
      {{State::running, "EndingSignal"}, {State::stopping, "signal 2, grace 30000, check"}},
      {{State::running, "ParentLost"}, {State::stopping, stop_with_term}},

      {{State::stopping, "GroupGone"}, {State::closing, "close"}},
      {{State::stopping, "OnlyStraysLeft"}, {State::killing, "kill, check"}},
      {{State::stopping, "GraceExpired"}, {State::killing, "kill, check"}},
      {{State::stopping, "EndingSignal"}, {State::stopping, "signal 2"}},

      {{State::killing, "GroupGone"}, {State::closing, "close"}},
      {{State::killing, "KillExpired"}, {State::closing, "close"}},

      {{State::closing, "OutputClosed"}, {State::backing_off, "backoff 1000"}},

      {{State::backing_off, "BackoffExpired"}, {State::starting, "spawn 1"}},
      {{State::backing_off, "JobTimeout"}, {State::finished, "finish"}},
      {{State::backing_off, "EndingSignal"}, {State::finished, "finish"}},
      {{State::backing_off, "ParentLost"}, {State::finished, "finish"}},
  };
  return steps;
}

constexpr State all_states[] = {State::idle,    State::starting, State::running,     State::stopping,
                                State::killing, State::closing,  State::backing_off, State::finished};

}  // namespace

TEST_CASE("every event in every state does what the table says and nothing else") {
  std::size_t used = 0;
  for (const State state : all_states) {
    for (const auto& [name, event] : all_events()) {
      INFO(describe(state) << " + " << name);
      Walk walk = in_state(state);
      const std::string actions = walk.on(event);
      const auto found = table().find({state, name});
      const Step expected = found == table().end() ? Step{state, ""} : found->second;
      CHECK(describe(walk.machine.state()) == std::string(describe(expected.next)));
      CHECK(actions == expected.actions);
      if (found != table().end()) ++used;
    }
  }
  CHECK(used == table().size());
}

TEST_CASE("what comes while workers are spawned is done once they are") {
  // What happened while starting, and what is done about it at Spawned.
  const std::map<std::string, std::string> held_back = {{"WorkerEnded badly", stop_with_term},
                                                        {"JobTimeout", stop_with_term},
                                                        {"EndingSignal", "signal 2, grace 30000, check"},
                                                        {"ParentLost", stop_with_term}};
  for (const auto& [name, event] : all_events()) {
    if (name == "Spawned" || name == "SpawnFailed") continue;
    INFO(name);
    Walk walk = in_state(State::starting);
    walk.on(event);
    const auto found = held_back.find(name);
    CHECK(walk.machine.spawn_is_pointless() == (found != held_back.end()));
    CHECK(walk.on(event::Spawned{}) == (found == held_back.end() ? "" : found->second));
  }
}

TEST_CASE("every state has a name of its own") {
  std::set<std::string> names;
  for (const State state : all_states) names.insert(describe(state));
  CHECK(names.size() == std::size(all_states));
  CHECK(names.count(describe(State::meeting)) == 0);
  CHECK(names.count("?") == 0);
}
