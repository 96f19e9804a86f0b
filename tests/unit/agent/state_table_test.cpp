// Every state and every event: what the machine does, and that it does nothing else.

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/test/catch.hpp"
#include "machine_walk.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using ddrun::test::Walk;

namespace {

using NamedEvents = std::vector<std::pair<std::string, Event>>;

/// One by one: a list in braces of what has to be destroyed takes compilers half a minute.
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

/// What becomes of an event, and what is done about it.
struct Done {
  State state;
  std::string_view event;
  State next;
  std::string_view actions;
};

constexpr std::string_view stop_with_term = "signal 15, grace 30000, check";

/// All that ever happens in these walks. A pair that is not here changes no state and asks for nothing.
constexpr Done table[] = {
    {State::idle, "Start", State::rendezvous, "join"},
    {State::idle, "JobTimeout", State::finished, "send abort 124, finish"},
    {State::idle, "EndingSignal", State::finished, "send leave 2, finish"},
    {State::idle, "ParentLost", State::finished, "abandon, finish"},
    {State::idle, "VerdictReceived", State::finished, "finish"},
    {State::idle, "CoordinatorLost", State::finished, "finish"},

    {State::rendezvous, "RoundBegins", State::starting, "spawn 0"},
    {State::rendezvous, "JobTimeout", State::rendezvous, "send abort 124"},
    {State::rendezvous, "EndingSignal", State::rendezvous, "send leave 2"},
    {State::rendezvous, "ParentLost", State::finished, "abandon, finish"},
    {State::rendezvous, "VerdictReceived", State::finished, "finish"},
    {State::rendezvous, "CoordinatorLost", State::finished, "finish"},

    {State::starting, "Spawned", State::running, ""},
    {State::starting, "SpawnFailed", State::stopping, "send abort 125, signal 15, grace 30000, check"},
    {State::starting, "WorkerEnded badly", State::starting, "send failed 1"},
    {State::starting, "JobTimeout", State::starting, "send abort 124"},
    {State::starting, "EndingSignal", State::starting, "send leave 2"},
    {State::starting, "ParentLost", State::starting, ""},

    {State::running, "WorkerEnded well", State::running, "skew 500"},
    {State::running, "WorkerEnded badly", State::stopping, "send failed 1, signal 15, grace 30000, check"},
    {State::running, "JobTimeout", State::stopping, "send abort 124, signal 15, grace 30000, check"},
    {State::running, "EndingSignal", State::stopping, "send leave 2, signal 2, grace 30000, check"},
    {State::running, "ParentLost", State::stopping, stop_with_term},
    {State::running, "StopOrdered", State::stopping, "signal 2, grace 30000, check"},
    {State::running, "StopOrdered at once", State::killing, "kill, check"},
    {State::running, "VerdictReceived", State::stopping, stop_with_term},
    {State::running, "CoordinatorLost", State::stopping, stop_with_term},

    {State::stopping, "GroupGone", State::closing, "close"},
    {State::stopping, "GraceExpired", State::killing, "kill, check"},
    {State::stopping, "StopOrdered at once", State::killing, "kill, check"},
    {State::stopping, "JobTimeout", State::stopping, "send abort 124"},
    {State::stopping, "EndingSignal", State::stopping, "send leave 2, signal 2"},
    {State::stopping, "ParentLost", State::stopping, ""},

    {State::killing, "GroupGone", State::closing, "close"},
    {State::killing, "KillExpired", State::closing, "send abort 125, close"},
    {State::killing, "JobTimeout", State::killing, "send abort 124"},
    {State::killing, "EndingSignal", State::killing, "send leave 2"},
    {State::killing, "ParentLost", State::killing, ""},

    {State::closing, "OutputClosed", State::rendezvous, "send stopped"},
    {State::closing, "JobTimeout", State::closing, "send abort 124"},
    {State::closing, "EndingSignal", State::closing, "send leave 2"},
    {State::closing, "ParentLost", State::closing, "abandon"},
};

/// Whether the machine's own table has this step, or needs none.
bool allows(State before, const Event& event, State after, const std::string& actions) {
  const auto steps = state_table();
  const auto found = std::find_if(steps.begin(), steps.end(),
                                  [&](const Step& step) { return step.from == before && step.event == event.index(); });
  return found == steps.end() ? after == before && actions.empty() : found->may_lead_to(after);
}

constexpr State all_states[] = {State::idle,     State::rendezvous, State::starting, State::running,
                                State::stopping, State::killing,    State::closing,  State::finished};

}  // namespace

TEST_CASE("every event in every state does what the table says and nothing else") {
  std::size_t used = 0;
  for (const State state : all_states) {
    for (const auto& [name, event] : all_events()) {
      INFO(describe(state) << " + " << name);
      Walk walk = in_state(state);
      const std::string actions = walk.on(event);
      const auto* found = std::find_if(std::begin(table), std::end(table), [&, &event_name = name](const Done& done) {
        return done.state == state && done.event == event_name;
      });
      const bool listed = found != std::end(table);
      const Done expected = listed ? *found : Done{state, name, state, ""};
      CHECK(describe(walk.machine.state()) == std::string(describe(expected.next)));
      CHECK(actions == expected.actions);
      CHECK(allows(state, event, walk.machine.state(), actions));
      if (listed) ++used;
    }
  }
  CHECK(used == std::size(table));
}

TEST_CASE("the machine's table has every event, and no pair twice") {
  std::set<std::size_t> events;
  std::set<std::pair<State, std::size_t>> pairs;
  for (const Step& step : state_table()) {
    CHECK(step.from != State::finished);
    events.insert(step.event);
    pairs.emplace(step.from, step.event);
  }
  CHECK(events.size() == std::variant_size_v<Event>);
  CHECK(pairs.size() == state_table().size());
  std::set<std::size_t> walked;
  for (const auto& [name, event] : all_events()) walked.insert(event.index());
  CHECK(walked == events);
}

TEST_CASE("only what the table has happens, in any order") {
  // Five events after each other; of those that came to the same state by the same last event, one goes on.
  for (const bool runs_coordinator : {false, true}) {
    for (const Milliseconds grace : {Milliseconds{0}, Milliseconds{30'000}}) {
      std::vector<Walk> walks{Walk(rules(runs_coordinator, grace))};
      for (int depth = 0; depth < 5; ++depth) {
        std::map<std::pair<State, std::string>, Walk> next;
        for (const Walk& before : walks) {
          for (const auto& [name, event] : all_events()) {
            Walk walk = before;
            const std::string actions = walk.on(event);
            INFO(describe(before.machine.state()) << " + " << name << " -> " << describe(walk.machine.state()));
            CHECK(allows(before.machine.state(), event, walk.machine.state(), actions));
            if (walk.machine.state() != State::finished) {
              next.emplace(std::pair(before.machine.state(), name + " after " + describe(walk.machine.state())), walk);
            }
          }
        }
        walks.clear();
        for (auto& [key, walk] : next) walks.push_back(std::move(walk));
      }
    }
  }
}

TEST_CASE("what comes while workers are spawned is done once they are") {
  // What happened while starting, and what is done about it at Spawned.
  const std::map<std::string_view, std::string_view> held_back = {{"WorkerEnded badly", stop_with_term},
                                                                  {"JobTimeout", stop_with_term},
                                                                  {"EndingSignal", "signal 2, grace 30000, check"},
                                                                  {"ParentLost", stop_with_term},
                                                                  {"StopOrdered", "signal 2, grace 30000, check"},
                                                                  {"StopOrdered at once", "kill, check"},
                                                                  {"VerdictReceived", stop_with_term},
                                                                  {"CoordinatorLost", stop_with_term}};
  for (const auto& [name, event] : all_events()) {
    if (name == "Spawned" || name == "SpawnFailed") continue;
    INFO(name);
    Walk walk = in_state(State::starting);
    walk.on(event);
    const auto found = held_back.find(name);
    CHECK(walk.machine.is_stop_pending() == (found != held_back.end()));
    const std::string_view otherwise = name == "WorkerEnded well" ? "skew 500" : "";
    CHECK(walk.on(event::Spawned{}) == (found == held_back.end() ? otherwise : found->second));
  }
}
