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
  add("Prepared", event::Prepared{});
  add("Spawned", event::Spawned{});
  add("SpawnFailed", event::SpawnFailed{"no room", 125});
  add("WorkerEnded well", event::WorkerEnded{1, Exited{0}});
  add("WorkerEnded badly", event::WorkerEnded{1, Exited{3}});
  add("WorkersKilled", event::WorkersKilled{});
  add("StacksRead", event::StacksRead{});
  add("GroupGone", event::GroupGone{});
  add("GraceExpired", event::GraceExpired{});
  add("KillExpired", event::KillExpired{"pid 7 (sleep)"});
  add("OutputClosed", event::OutputClosed{});
  add("JobTimeout", event::JobTimeout{});
  add("EndingSignal", event::EndingSignal{SIGINT, ""});
  add("ParentLost", event::ParentLost{"the guard was killed"});
  add("SkewExpired", event::SkewExpired{});
  add("RoundBegins", test::round_begins(0));
  add("StopOrder", test::stop_order(SIGINT));
  add("StopOrder at once", test::stop_order(SIGKILL));
  add("StopOrder soon", test::stop_order(SIGINT, Milliseconds{5'000}));
  add("VerdictMessage", rendezvous::VerdictMessage{});
  add("CoordinatorLost", rendezvous::CoordinatorLost{"gone"});
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

/// A machine in `state`. From `looking` on, a worker has failed: it has waited in vain for others.
Walk in_state(State state) {
  Walk walk(rules(true, Milliseconds{30'000}));
  walk.prepares = true;
  const auto go = [&](State reached, const Event& event) {
    if (walk.machine.state() == state) return;
    walk.on(event);
    REQUIRE(walk.machine.state() == reached);
  };
  go(State::rendezvous, event::Start{});
  go(State::preparing, test::round_begins(0));
  go(State::starting, event::Prepared{});
  go(State::running, event::Spawned{});
  go(State::looking, event::WorkerEnded{1, Exited{3}, "rank 1 timed out"});
  go(State::stopping, event::StacksRead{});
  go(State::killing, test::stop_order(SIGKILL));
  go(State::closing, event::GroupGone{});
  if (state == State::finished) {
    go(State::rendezvous, event::OutputClosed{});
    go(State::finished, rendezvous::VerdictMessage{});
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

/// All that has an effect in these walks. Another pair that can occur changes no state and causes no action.
constexpr Done table[] = {
    {State::idle, "Start", State::rendezvous, "join"},
    {State::idle, "JobTimeout", State::finished, "send leave 124, finish"},
    {State::idle, "EndingSignal", State::finished, "send leave 2, finish"},
    {State::idle, "ParentLost", State::finished, "abandon, finish"},
    {State::idle, "VerdictMessage", State::finished, "finish"},
    {State::idle, "CoordinatorLost", State::finished, "finish"},

    {State::rendezvous, "RoundBegins", State::preparing, "prepare"},
    {State::rendezvous, "JobTimeout", State::rendezvous, "send leave 124"},
    {State::rendezvous, "EndingSignal", State::rendezvous, "send leave 2"},
    {State::rendezvous, "ParentLost", State::finished, "abandon, finish"},
    {State::rendezvous, "VerdictMessage", State::finished, "finish"},
    {State::rendezvous, "CoordinatorLost", State::finished, "finish"},

    {State::preparing, "Prepared", State::starting, "spawn 0"},
    {State::preparing, "SpawnFailed", State::stopping, "send leave 125, signal 15, grace 30000, check"},
    {State::preparing, "WorkersKilled", State::preparing, "cancel 9"},
    {State::preparing, "JobTimeout", State::preparing, "send leave 124, cancel 15"},
    {State::preparing, "EndingSignal", State::preparing, "send leave 2, cancel 15"},
    {State::preparing, "ParentLost", State::preparing, "cancel 15"},
    {State::preparing, "StopOrder", State::preparing, "cancel 15"},
    {State::preparing, "StopOrder at once", State::preparing, "cancel 9"},
    {State::preparing, "StopOrder soon", State::preparing, "cancel 15"},
    {State::preparing, "VerdictMessage", State::preparing, "cancel 15"},
    {State::preparing, "CoordinatorLost", State::preparing, "cancel 15"},

    {State::starting, "Spawned", State::running, ""},
    {State::starting, "SpawnFailed", State::stopping, "send leave 125, signal 15, grace 30000, check"},
    {State::starting, "WorkerEnded badly", State::stopping, "send failed 1, signal 15, grace 30000, check"},
    {State::starting, "WorkersKilled", State::killing, "kill, check"},
    {State::starting, "JobTimeout", State::stopping, "send leave 124, signal 15, grace 30000, check"},
    {State::starting, "EndingSignal", State::stopping, "send leave 2, signal 2, grace 30000, check"},
    {State::starting, "ParentLost", State::stopping, stop_with_term},
    {State::starting, "StopOrder", State::stopping, "signal 2, grace 30000, check"},
    {State::starting, "StopOrder at once", State::killing, "kill, check"},
    {State::starting, "StopOrder soon", State::stopping, "signal 2, grace 5000, check"},
    {State::starting, "VerdictMessage", State::stopping, stop_with_term},
    {State::starting, "CoordinatorLost", State::stopping, stop_with_term},

    {State::running, "WorkerEnded well", State::running, "skew 500"},
    {State::running, "WorkerEnded badly", State::stopping, "send failed 1, signal 15, grace 30000, check"},
    {State::running, "WorkersKilled", State::killing, "kill, check"},
    {State::running, "JobTimeout", State::looking, "send leave 124, stacks 15000, grace 30000"},
    {State::running, "EndingSignal", State::stopping, "send leave 2, signal 2, grace 30000, check"},
    {State::running, "ParentLost", State::stopping, stop_with_term},
    {State::running, "StopOrder", State::stopping, "signal 2, grace 30000, check"},
    {State::running, "StopOrder at once", State::killing, "kill, check"},
    {State::running, "StopOrder soon", State::stopping, "signal 2, grace 5000, check"},
    {State::running, "VerdictMessage", State::stopping, stop_with_term},
    {State::running, "CoordinatorLost", State::stopping, stop_with_term},

    {State::looking, "StacksRead", State::stopping, "give up, signal 15, grace 30000, check"},
    {State::looking, "WorkersKilled", State::killing, "give up, kill, check"},
    {State::looking, "GroupGone", State::closing, "give up, close"},
    {State::looking, "GraceExpired", State::killing, "give up, kill, check"},
    {State::looking, "JobTimeout", State::looking, "send leave 124"},
    {State::looking, "EndingSignal", State::looking, "send leave 2"},
    {State::looking, "ParentLost", State::stopping, "give up, signal 15, grace 30000, check"},
    {State::looking, "StopOrder", State::stopping, "give up, signal 15, grace 30000, check"},
    {State::looking, "StopOrder at once", State::killing, "give up, kill, check"},
    {State::looking, "StopOrder soon", State::stopping, "give up, signal 15, grace 5000, check"},
    {State::looking, "VerdictMessage", State::stopping, "give up, signal 15, grace 30000, check"},
    {State::looking, "CoordinatorLost", State::stopping, "give up, signal 15, grace 30000, check"},

    {State::stopping, "SpawnFailed", State::stopping, "send leave 125"},
    {State::stopping, "GroupGone", State::closing, "close"},
    {State::stopping, "GraceExpired", State::looking, "stacks"},
    {State::stopping, "WorkersKilled", State::killing, "kill, check"},
    {State::stopping, "StopOrder at once", State::killing, "kill, check"},
    {State::stopping, "StopOrder soon", State::stopping, "grace 5000"},
    {State::stopping, "JobTimeout", State::stopping, "send leave 124"},
    {State::stopping, "EndingSignal", State::stopping, "send leave 2, signal 2"},
    {State::stopping, "ParentLost", State::stopping, ""},

    {State::killing, "SpawnFailed", State::killing, "send leave 125"},
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

constexpr State all_states[] = {State::idle,    State::rendezvous, State::preparing, State::starting, State::running,
                                State::looking, State::stopping,   State::killing,   State::closing,  State::finished};

/// The states in which an event can come; in every other one it is a wrong step.
const std::set<State>& states_of(const Event& event) {
  using enum State;
  static const std::set<State> all(std::begin(all_states), std::end(all_states));
  static const std::map<std::string_view, std::set<State>> states = {
      {"Start", {idle}},
      {"Prepared", {preparing}},
      {"Spawned", {starting, stopping, killing}},
      {"SpawnFailed", {preparing, starting, stopping, killing}},
      {"WorkerEnded", {State::rendezvous, starting, running, looking, stopping, killing, closing, finished}},
      {"WorkersKilled",
       {State::rendezvous, preparing, starting, running, looking, stopping, killing, closing, finished}},
      {"StacksRead", {looking}},
      {"GroupGone", {looking, stopping, killing, closing}},
      {"GraceExpired", {looking, stopping}},
      {"KillExpired", {killing}},
      {"OutputClosed", {closing}},
      {"SkewExpired", {running, looking, stopping, killing}},
      {"RoundBegins", {State::rendezvous, finished}},
      {"StopOrder", {State::rendezvous, preparing, starting, running, looking, stopping, killing, closing, finished}}};
  const auto found = states.find(name(event));
  return found == states.end() ? all : found->second;
}

}  // namespace

TEST_CASE("each pair of state and event does what the table says, or ends the job") {
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
      if (states_of(event).count(state) == 0) {
        // A defect of ddrun: the job ends in order.
        CHECK_FALSE(listed);
        CHECK((state == State::finished ? actions.empty() : actions.find("wrong step") < 10));
        if (state != State::finished) {
          CHECK(walk.machine.verdict() == Verdict::launcher_failed);
          CHECK(walk.machine.message() ==
                ddrun::concat("internal error: event ", name(event), " cannot come in state ", name(state)));
        }
        continue;
      }
      const Done expected = listed ? *found : Done{state, event_name, state, ""};
      CHECK(name(walk.machine.state()) == name(expected.next));
      CHECK(actions == expected.actions);
      if (listed) ++used;
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
            walk.prepares = true;
            const std::string actions = walk.on(event);
            INFO(name(before.machine.state()) << " + " << event_name << " -> " << name(walk.machine.state()));
            CHECK(actions.find("wrong step") == std::string::npos);
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
