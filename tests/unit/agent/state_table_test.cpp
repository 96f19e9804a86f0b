// Each pair of state and event: next state, actions, or an error.

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
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
  add("Spawned services", event::Spawned{Part::services});
  add("SpawnFailed", event::SpawnFailed{"no room", 125});
  add("WorkerEnded well", event::WorkerEnded{1, Exited{0}, "", {"", 1}, 1});
  add("WorkerEnded badly", event::WorkerEnded{1, Exited{3}, "", {"", 1}, 1});
  add("RankFailed", event::RankFailed{1, {"", 1}, 1, 7, 3, "called MPI_Abort(3)"});
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
  add("ServicesReady", event::ServicesReady{});
  add("ReadyExpired", event::ReadyExpired{{1}, "rank 1 was not ready"});
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

/// A machine in `state`; worker 1 is a service only in `serving`. From `looking` on, a worker has failed: it has waited
/// in vain for others.
Walk in_state(GroupState state) {
  const bool serves = state == GroupState::serving;
  Walk walk(rules(true, Milliseconds{30'000}), 2, serves ? std::set<int>{1} : std::set<int>{});
  walk.prepares = true;
  const auto go = [&](GroupState reached, const Event& event) {
    if (walk.machine.state() == state) return;
    walk.on(event);
    REQUIRE(walk.machine.state() == reached);
  };
  go(GroupState::rendezvous, event::Start{});
  go(GroupState::preparing, test::round_begins(0));
  go(GroupState::starting, event::Prepared{});
  if (serves) go(GroupState::serving, event::Spawned{Part::services});
  go(GroupState::running, event::Spawned{});
  go(GroupState::looking, event::WorkerEnded{1, Exited{3}, "rank 1 timed out"});
  go(GroupState::stopping, event::StacksRead{});
  go(GroupState::killing, test::stop_order(SIGKILL));
  go(GroupState::closing, event::GroupGone{});
  if (state == GroupState::finished) {
    go(GroupState::rendezvous, event::OutputClosed{});
    go(GroupState::finished, rendezvous::VerdictMessage{});
  }
  REQUIRE(walk.machine.state() == state);
  return walk;
}

/// The effect of an event.
struct Done {
  GroupState state;
  std::string_view event;
  GroupState next;
  std::string_view actions;
};

constexpr std::string_view stop_with_term = "signal 15, grace 30000, check";

/// All that has an effect in these walks. Another pair that can occur changes no state and causes no action.
constexpr Done table[] = {
    {GroupState::idle, "Start", GroupState::rendezvous, "join"},
    {GroupState::idle, "JobTimeout", GroupState::finished, "send leave 124, finish"},
    {GroupState::idle, "EndingSignal", GroupState::finished, "send leave 2, finish"},
    {GroupState::idle, "ParentLost", GroupState::finished, "abandon, finish"},
    {GroupState::idle, "VerdictMessage", GroupState::finished, "finish"},
    {GroupState::idle, "CoordinatorLost", GroupState::finished, "finish"},

    {GroupState::rendezvous, "RoundBegins", GroupState::preparing, "prepare"},
    {GroupState::rendezvous, "JobTimeout", GroupState::rendezvous, "send leave 124"},
    {GroupState::rendezvous, "EndingSignal", GroupState::rendezvous, "send leave 2"},
    {GroupState::rendezvous, "ParentLost", GroupState::finished, "abandon, finish"},
    {GroupState::rendezvous, "VerdictMessage", GroupState::finished, "finish"},
    {GroupState::rendezvous, "CoordinatorLost", GroupState::finished, "finish"},

    {GroupState::preparing, "Prepared", GroupState::starting, "spawn 0"},
    {GroupState::preparing, "SpawnFailed", GroupState::stopping, "send leave 125, signal 15, grace 30000, check"},
    {GroupState::preparing, "WorkersKilled", GroupState::preparing, "cancel 9"},
    {GroupState::preparing, "JobTimeout", GroupState::preparing, "send leave 124, cancel 15"},
    {GroupState::preparing, "EndingSignal", GroupState::preparing, "send leave 2, cancel 15"},
    {GroupState::preparing, "ParentLost", GroupState::preparing, "cancel 15"},
    {GroupState::preparing, "StopOrder", GroupState::preparing, "cancel 15"},
    {GroupState::preparing, "StopOrder at once", GroupState::preparing, "cancel 9"},
    {GroupState::preparing, "StopOrder soon", GroupState::preparing, "cancel 15"},
    {GroupState::preparing, "VerdictMessage", GroupState::preparing, "cancel 15"},
    {GroupState::preparing, "CoordinatorLost", GroupState::preparing, "cancel 15"},

    {GroupState::starting, "Spawned", GroupState::running, ""},
    {GroupState::starting, "Spawned services", GroupState::serving, "await ready"},
    {GroupState::starting, "SpawnFailed", GroupState::stopping, "send leave 125, signal 15, grace 30000, check"},
    {GroupState::starting, "WorkerEnded badly", GroupState::stopping, "send failed 1, signal 15, grace 30000, check"},
    {GroupState::starting, "RankFailed", GroupState::stopping, "send failed 1, signal 15, grace 30000, check"},
    {GroupState::starting, "WorkersKilled", GroupState::killing, "kill, check"},
    {GroupState::starting, "JobTimeout", GroupState::stopping, "send leave 124, signal 15, grace 30000, check"},
    {GroupState::starting, "EndingSignal", GroupState::stopping, "send leave 2, signal 2, grace 30000, check"},
    {GroupState::starting, "ParentLost", GroupState::stopping, stop_with_term},
    {GroupState::starting, "StopOrder", GroupState::stopping, "signal 2, grace 30000, check"},
    {GroupState::starting, "StopOrder at once", GroupState::killing, "kill, check"},
    {GroupState::starting, "StopOrder soon", GroupState::stopping, "signal 2, grace 5000, check"},
    {GroupState::starting, "VerdictMessage", GroupState::stopping, stop_with_term},
    {GroupState::starting, "CoordinatorLost", GroupState::stopping, stop_with_term},

    {GroupState::serving, "ServicesReady", GroupState::starting, "spawn 0"},
    {GroupState::serving, "ReadyExpired", GroupState::looking, "send leave 124, stacks 15000, grace 30000"},
    {GroupState::serving, "SpawnFailed", GroupState::stopping, "send leave 125, signal 15, grace 30000, check"},
    {GroupState::serving, "WorkerEnded well", GroupState::serving, "margin 1"},
    {GroupState::serving, "WorkerEnded badly", GroupState::stopping, "send failed 1, signal 15, grace 30000, check"},
    {GroupState::serving, "RankFailed", GroupState::stopping, "send failed 1, signal 15, grace 30000, check"},
    {GroupState::serving, "WorkersKilled", GroupState::killing, "kill, check"},
    {GroupState::serving, "JobTimeout", GroupState::looking, "send leave 124, stacks 15000, grace 30000"},
    {GroupState::serving, "EndingSignal", GroupState::stopping, "send leave 2, signal 2, grace 30000, check"},
    {GroupState::serving, "ParentLost", GroupState::stopping, stop_with_term},
    {GroupState::serving, "StopOrder", GroupState::stopping, "signal 2, grace 30000, check"},
    {GroupState::serving, "StopOrder at once", GroupState::killing, "kill, check"},
    {GroupState::serving, "StopOrder soon", GroupState::stopping, "signal 2, grace 5000, check"},
    {GroupState::serving, "VerdictMessage", GroupState::stopping, stop_with_term},
    {GroupState::serving, "CoordinatorLost", GroupState::stopping, stop_with_term},

    {GroupState::running, "SpawnFailed", GroupState::stopping, "send leave 125, signal 15, grace 30000, check"},
    {GroupState::running, "WorkerEnded well", GroupState::running, "skew 500"},
    {GroupState::running, "WorkerEnded badly", GroupState::stopping, "send failed 1, signal 15, grace 30000, check"},
    {GroupState::running, "RankFailed", GroupState::stopping, "send failed 1, signal 15, grace 30000, check"},
    {GroupState::running, "WorkersKilled", GroupState::killing, "kill, check"},
    {GroupState::running, "JobTimeout", GroupState::looking, "send leave 124, stacks 15000, grace 30000"},
    {GroupState::running, "EndingSignal", GroupState::stopping, "send leave 2, signal 2, grace 30000, check"},
    {GroupState::running, "ParentLost", GroupState::stopping, stop_with_term},
    {GroupState::running, "StopOrder", GroupState::stopping, "signal 2, grace 30000, check"},
    {GroupState::running, "StopOrder at once", GroupState::killing, "kill, check"},
    {GroupState::running, "StopOrder soon", GroupState::stopping, "signal 2, grace 5000, check"},
    {GroupState::running, "VerdictMessage", GroupState::stopping, stop_with_term},
    {GroupState::running, "CoordinatorLost", GroupState::stopping, stop_with_term},

    {GroupState::looking, "SpawnFailed", GroupState::looking, "send leave 125"},
    {GroupState::looking, "StacksRead", GroupState::stopping, "give up, signal 15, grace 30000, check"},
    {GroupState::looking, "WorkersKilled", GroupState::killing, "give up, kill, check"},
    {GroupState::looking, "GroupGone", GroupState::closing, "give up, close"},
    {GroupState::looking, "GraceExpired", GroupState::killing, "give up, kill, check"},
    {GroupState::looking, "JobTimeout", GroupState::looking, "send leave 124"},
    {GroupState::looking, "EndingSignal", GroupState::looking, "send leave 2"},
    {GroupState::looking, "ParentLost", GroupState::stopping, "give up, signal 15, grace 30000, check"},
    {GroupState::looking, "StopOrder", GroupState::stopping, "give up, signal 15, grace 30000, check"},
    {GroupState::looking, "StopOrder at once", GroupState::killing, "give up, kill, check"},
    {GroupState::looking, "StopOrder soon", GroupState::stopping, "give up, signal 15, grace 5000, check"},
    {GroupState::looking, "VerdictMessage", GroupState::stopping, "give up, signal 15, grace 30000, check"},
    {GroupState::looking, "CoordinatorLost", GroupState::stopping, "give up, signal 15, grace 30000, check"},

    {GroupState::stopping, "SpawnFailed", GroupState::stopping, "send leave 125"},
    {GroupState::stopping, "GroupGone", GroupState::closing, "close"},
    {GroupState::stopping, "GraceExpired", GroupState::looking, "stacks"},
    {GroupState::stopping, "WorkersKilled", GroupState::killing, "kill, check"},
    {GroupState::stopping, "StopOrder at once", GroupState::killing, "kill, check"},
    {GroupState::stopping, "StopOrder soon", GroupState::stopping, "grace 5000"},
    {GroupState::stopping, "JobTimeout", GroupState::stopping, "send leave 124"},
    {GroupState::stopping, "EndingSignal", GroupState::stopping, "send leave 2, signal 2"},
    {GroupState::stopping, "ParentLost", GroupState::stopping, ""},

    {GroupState::killing, "SpawnFailed", GroupState::killing, "send leave 125"},
    {GroupState::killing, "GroupGone", GroupState::closing, "close"},
    {GroupState::killing, "KillExpired", GroupState::closing, "send leave 125, close"},
    {GroupState::killing, "JobTimeout", GroupState::killing, "send leave 124"},
    {GroupState::killing, "EndingSignal", GroupState::killing, "send leave 2"},
    {GroupState::killing, "ParentLost", GroupState::killing, ""},

    {GroupState::closing, "OutputClosed", GroupState::rendezvous, "send stopped"},
    {GroupState::closing, "JobTimeout", GroupState::closing, "send leave 124"},
    {GroupState::closing, "EndingSignal", GroupState::closing, "send leave 2"},
    {GroupState::closing, "ParentLost", GroupState::closing, "abandon"},
};

constexpr GroupState all_states[] = {GroupState::idle,     GroupState::rendezvous, GroupState::preparing,
                                     GroupState::starting, GroupState::serving,    GroupState::running,
                                     GroupState::looking,  GroupState::stopping,   GroupState::killing,
                                     GroupState::closing,  GroupState::finished};

/// The states in which an event can come; in every other one it is a wrong step.
const std::set<GroupState>& states_of(const Event& event) {
  using enum GroupState;
  static const std::set<GroupState> all(std::begin(all_states), std::end(all_states));
  static const std::map<std::string_view, std::set<GroupState>> states = {
      {"Start", {idle}},
      {"Prepared", {preparing}},
      {"Spawned", {starting, stopping, killing}},
      {"SpawnFailed", {preparing, starting, serving, running, looking, stopping, killing}},
      {"WorkerEnded",
       {GroupState::rendezvous, starting, serving, running, looking, stopping, killing, closing, finished}},
      {"RankFailed", {starting, serving, running, looking, stopping, killing}},
      {"WorkersKilled",
       {GroupState::rendezvous, preparing, starting, serving, running, looking, stopping, killing, closing, finished}},
      {"StacksRead", {looking}},
      {"GroupGone", {looking, stopping, killing, closing}},
      {"GraceExpired", {looking, stopping}},
      {"KillExpired", {killing}},
      {"OutputClosed", {closing}},
      {"SkewExpired", {serving, running, looking, stopping, killing}},
      {"ServicesReady", {serving}},
      {"ReadyExpired", {serving}},
      {"RoundBegins", {GroupState::rendezvous, finished}},
      {"StopOrder",
       {GroupState::rendezvous, preparing, starting, serving, running, looking, stopping, killing, closing, finished}}};
  const auto found = states.find(name(event));
  return found == states.end() ? all : found->second;
}

}  // namespace

TEST_CASE("each pair of state and event does what the table says, or ends the job") {
  std::size_t used = 0;
  for (const GroupState state : all_states) {
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
        CHECK((state == GroupState::finished ? actions.empty() : actions.find("wrong step") < 10));
        if (state != GroupState::finished) {
          CHECK(walk.machine.verdict() == Verdict::launcher_failed);
          CHECK(walk.machine.message() ==
                ddrun::concat("took a wrong step, a defect of ddrun: ", name(event), " in the state ", name(state)));
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
    for (const GroupState state : all_states) {
      INFO(name(state) << " + " << event_name);
      const auto rows = state_table();
      const auto count = std::count_if(rows.begin(), rows.end(), [&, &what = event](const Step& row) {
        if (state == GroupState::finished && row.from == state) CHECK(row.ignored);
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
      std::vector<Walk> walks{Walk(rules(runs_coordinator, grace)), Walk(rules(runs_coordinator, grace), 2, {1})};
      walks.back().serves = true;
      for (int depth = 0; depth < 5; ++depth) {
        std::map<std::tuple<GroupState, std::string, bool>, Walk> next;
        for (const Walk& before : walks) {
          for (const auto& [event_name, event] : all_events()) {
            if (states_of(event).count(before.machine.state()) == 0) continue;
            Walk walk = before;
            walk.prepares = true;
            const std::string actions = walk.on(event);
            INFO(name(before.machine.state()) << " + " << event_name << " -> " << name(walk.machine.state()));
            CHECK(actions.find("wrong step") == std::string::npos);
            if (walk.machine.state() != GroupState::finished) {
              const auto key = ddrun::concat(event_name, " after ", name(walk.machine.state()));
              next.emplace(std::tuple(before.machine.state(), key, walk.serves), walk);
            }
          }
        }
        walks.clear();
        for (auto& [key, walk] : next) walks.push_back(std::move(walk));
      }
    }
  }
}
