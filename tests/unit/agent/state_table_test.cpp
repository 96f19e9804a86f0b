// Each pair of state and event: next state, actions, or an error.

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "machine_walk.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using ddrun::test::Walk;

namespace {

using NamedEvents = std::vector<std::pair<std::string, Event>>;

/// One by one: a braced list of these types takes compilers half a minute.
NamedEvents make_events() {
  NamedEvents events;
  const auto add = [&events](const char* name, Event event) { events.emplace_back(name, std::move(event)); };
  add("Start", event::Start{});
  add("Spawned", event::Spawned{});
  add("SpawnFailed", event::SpawnFailed{"no room", 125});
  add("WorkerEnded well", event::WorkerEnded{1, Exited{0}});
  add("WorkerEnded badly", event::WorkerEnded{1, Exited{3}});
  add("GroupGone", event::GroupGone{});
  add("GraceExpired", event::GraceExpired{});
  add("KillExpired", event::KillExpired{"pid 7 (sleep)"});
  add("OutputClosed", event::OutputClosed{});
  add("JobTimeout", event::JobTimeout{});
  add("EndingSignal", event::EndingSignal{SIGINT, ""});
  add("ParentLost", event::ParentLost{"the guard was killed"});
  add("SkewExpired", event::SkewExpired{});
  add("RoundBegins", event::RoundBegins{0});
  add("StopOrdered", event::StopOrdered{SIGINT});
  add("StopOrdered at once", event::StopOrdered{SIGKILL});
  add("StopOrdered soon", event::StopOrdered{SIGINT, Milliseconds{5'000}});
  add("VerdictReceived", event::VerdictReceived{});
  add("CoordinatorLost", event::CoordinatorLost{"gone"});
  return events;
}

const NamedEvents& all_events() {
  static const NamedEvents events = make_events();
  return events;
}

GroupMachine::Rules rules(bool runs_coordinator, Milliseconds grace) {
  GroupMachine::Rules rules;
  rules.stop = test::grace(grace);
  rules.exit_skew = Milliseconds{500};
  rules.runs_coordinator = [=] { return runs_coordinator; };
  return rules;
}

/// A machine in `state`. From `stopping` on, a worker has failed.
Walk in_state(State state) {
  Walk walk(rules(true, Milliseconds{30'000}));
  const auto go = [&](State reached, const Event& event) {
    if (walk.machine.state() == state) return;
    walk.on(event);
    REQUIRE(walk.machine.state() == reached);
  };
  go(State::rendezvous, event::Start{});
  go(State::starting, event::RoundBegins{0});
  go(State::running, event::Spawned{});
  go(State::stopping, all_events()[4].second);
  go(State::killing, event::GraceExpired{});
  go(State::closing, event::GroupGone{});
  if (state == State::finished) {
    go(State::rendezvous, event::OutputClosed{});
    go(State::finished, event::VerdictReceived{});
  }
  REQUIRE(walk.machine.state() == state);
  return walk;
}

/// The effect of an event.
struct Done {
  State state;
  std::string_view event;
  State next;
  std::string_view actions;
};

constexpr std::string_view stop_with_term = "signal 15, grace 30000, check";

/// All that has an effect in these walks. Another pair changes no state and causes no action, or is refused.
constexpr Done table[] = {
    {State::idle, "Start", State::rendezvous, "join"},
    {State::idle, "JobTimeout", State::finished, "send leave 124, finish"},
    {State::idle, "EndingSignal", State::finished, "send leave 2, finish"},
    {State::idle, "ParentLost", State::finished, "abandon, finish"},
    {State::idle, "VerdictReceived", State::finished, "finish"},
    {State::idle, "CoordinatorLost", State::finished, "finish"},

    {State::rendezvous, "RoundBegins", State::starting, "spawn 0"},
    {State::rendezvous, "JobTimeout", State::rendezvous, "send leave 124"},
    {State::rendezvous, "EndingSignal", State::rendezvous, "send leave 2"},
    {State::rendezvous, "ParentLost", State::finished, "abandon, finish"},
    {State::rendezvous, "VerdictReceived", State::finished, "finish"},
    {State::rendezvous, "CoordinatorLost", State::finished, "finish"},

    {State::starting, "Spawned", State::running, ""},
    {State::starting, "SpawnFailed", State::stopping, "send leave 125, signal 15, grace 30000, check"},
    {State::starting, "WorkerEnded badly", State::starting, "send failed 1, cancel spawn"},
    {State::starting, "JobTimeout", State::starting, "send leave 124, cancel spawn"},
    {State::starting, "EndingSignal", State::starting, "send leave 2, cancel spawn"},
    {State::starting, "ParentLost", State::starting, "cancel spawn"},
    {State::starting, "StopOrdered", State::starting, "cancel spawn"},
    {State::starting, "StopOrdered at once", State::starting, "cancel spawn"},
    {State::starting, "StopOrdered soon", State::starting, "cancel spawn"},
    {State::starting, "VerdictReceived", State::starting, "cancel spawn"},
    {State::starting, "CoordinatorLost", State::starting, "cancel spawn"},

    {State::running, "WorkerEnded well", State::running, "skew 500"},
    {State::running, "WorkerEnded badly", State::stopping, "send failed 1, signal 15, grace 30000, check"},
    {State::running, "JobTimeout", State::stopping, "send leave 124, stacks, signal 15, grace 30000, check"},
    {State::running, "EndingSignal", State::stopping, "send leave 2, signal 2, grace 30000, check"},
    {State::running, "ParentLost", State::stopping, stop_with_term},
    {State::running, "StopOrdered", State::stopping, "signal 2, grace 30000, check"},
    {State::running, "StopOrdered at once", State::killing, "kill, check"},
    {State::running, "StopOrdered soon", State::stopping, "signal 2, grace 5000, check"},
    {State::running, "VerdictReceived", State::stopping, stop_with_term},
    {State::running, "CoordinatorLost", State::stopping, stop_with_term},

    {State::stopping, "GroupGone", State::closing, "close"},
    {State::stopping, "GraceExpired", State::killing, "stacks, kill, check"},
    {State::stopping, "StopOrdered at once", State::killing, "kill, check"},
    {State::stopping, "StopOrdered soon", State::stopping, "grace 5000"},
    {State::stopping, "JobTimeout", State::stopping, "send leave 124"},
    {State::stopping, "EndingSignal", State::stopping, "send leave 2, signal 2"},
    {State::stopping, "ParentLost", State::stopping, ""},

    {State::killing, "GroupGone", State::closing, "close"},
    {State::killing, "KillExpired", State::closing, "send leave 125, close"},
    {State::killing, "JobTimeout", State::killing, "send leave 124"},
    {State::killing, "EndingSignal", State::killing, "send leave 2"},
    {State::killing, "ParentLost", State::killing, ""},

    {State::closing, "OutputClosed", State::rendezvous, "send stopped"},
    {State::closing, "JobTimeout", State::closing, "send leave 124"},
    {State::closing, "EndingSignal", State::closing, "send leave 2"},
    {State::closing, "ParentLost", State::closing, "abandon"},
};

constexpr State all_states[] = {State::idle,     State::rendezvous, State::starting, State::running,
                                State::stopping, State::killing,    State::closing,  State::finished};

/// The states in which an event can come; in every other one it is refused.
const std::set<State>& states_of(const Event& event) {
  using enum State;
  static const std::set<State> all(std::begin(all_states), std::end(all_states));
  static const std::map<std::string_view, std::set<State>> states = {
      {"Start", {idle}},
      {"Spawned", {starting}},
      {"SpawnFailed", {starting}},
      {"WorkerEnded", {State::rendezvous, starting, running, stopping, killing, closing, finished}},
      {"GroupGone", {stopping, killing, closing}},
      {"GraceExpired", {stopping}},
      {"KillExpired", {killing}},
      {"OutputClosed", {closing}},
      {"SkewExpired", {running, stopping, killing}},
      {"RoundBegins", {State::rendezvous, finished}},
      {"StopOrdered", {State::rendezvous, starting, running, stopping, killing, closing, finished}}};
  const auto found = states.find(name(event));
  return found == states.end() ? all : found->second;
}

}  // namespace

TEST_CASE("each pair of state and event does what the table says, or is refused") {
  std::size_t used = 0;
  for (const State state : all_states) {
    for (const auto& [event_name, event] : all_events()) {
      INFO(name(state) << " + " << event_name);
      Walk walk = in_state(state);
      const std::string actions = walk.on(event);
      const auto* found = std::find_if(std::begin(table), std::end(table), [&, &wanted = event_name](const Done& done) {
        return done.state == state && done.event == wanted;
      });
      const bool listed = found != std::end(table);
      const bool refused = states_of(event).count(state) == 0;
      const Done expected = listed ? *found : Done{state, event_name, state, refused ? "refused" : ""};
      CHECK(name(walk.machine.state()) == name(expected.next));
      CHECK(actions == expected.actions);
      if (listed) ++used;
      if (!refused) continue;
      CHECK_FALSE(listed);
      CHECK(walk.refused == ddrun::concat("event ", name(event), " cannot come in state ", name(state)));
    }
  }
  CHECK(used == std::size(table));
}

TEST_CASE("one row of the machine's table applies to each pair that can occur") {
  std::set<std::size_t> walked;
  for (const auto& [event_name, event] : all_events()) {
    CHECK(event_name.starts_with(name(event)));
    walked.insert(event.index());
    for (const State state : all_states) {
      INFO(name(state) << " + " << event_name);
      const auto rows = state_table();
      const auto count = std::count_if(rows.begin(), rows.end(), [&, &what = event](const Step& row) {
        if (state == State::finished && row.from == state) CHECK(row.ignored);
        return row.applies_to(state, what);
      });
      CHECK(count == static_cast<std::ptrdiff_t>(states_of(event).count(state)));
    }
  }
  CHECK(walked.size() == std::variant_size_v<Event>);
}

TEST_CASE("no order of events leads to a step that the table does not have") {
  // Five events in a row; of walks that reached the same state by the same last event, one continues.
  for (const bool runs_coordinator : {false, true}) {
    for (const Milliseconds grace : {Milliseconds{0}, Milliseconds{30'000}}) {
      std::vector<Walk> walks{Walk(rules(runs_coordinator, grace))};
      for (int depth = 0; depth < 5; ++depth) {
        std::map<std::pair<State, std::string>, Walk> next;
        for (const Walk& before : walks) {
          for (const auto& [event_name, event] : all_events()) {
            if (states_of(event).count(before.machine.state()) == 0) continue;
            Walk walk = before;
            walk.on(event);
            INFO(name(before.machine.state()) << " + " << event_name << " -> " << name(walk.machine.state()));
            CHECK(walk.refused.empty());
            if (walk.machine.state() != State::finished) {
              const auto key = ddrun::concat(event_name, " after ", name(walk.machine.state()));
              next.emplace(std::pair(before.machine.state(), key), walk);
            }
          }
        }
        walks.clear();
        for (auto& [key, walk] : next) walks.push_back(std::move(walk));
      }
    }
  }
}

TEST_CASE("events while workers are spawned take effect at Spawned") {
  // The event while starting, and the actions at Spawned.
  const std::map<std::string_view, std::string_view> held_back = {{"WorkerEnded badly", stop_with_term},
                                                                  {"JobTimeout", stop_with_term},
                                                                  {"EndingSignal", "signal 2, grace 30000, check"},
                                                                  {"ParentLost", stop_with_term},
                                                                  {"StopOrdered", "signal 2, grace 30000, check"},
                                                                  {"StopOrdered at once", "kill, check"},
                                                                  {"StopOrdered soon", "signal 2, grace 5000, check"},
                                                                  {"VerdictReceived", stop_with_term},
                                                                  {"CoordinatorLost", stop_with_term}};
  for (const auto& [event_name, event] : all_events()) {
    if (event_name == "Spawned" || event_name == "SpawnFailed") continue;
    INFO(event_name);
    Walk walk = in_state(State::starting);
    walk.on(event);
    const auto found = held_back.find(event_name);
    CHECK(walk.machine.is_stop_pending() == (found != held_back.end()));
    const std::string_view otherwise = event_name == "WorkerEnded well" ? "skew 500" : "";
    CHECK(walk.on(event::Spawned{}) == (found == held_back.end() ? otherwise : found->second));
  }
}
