#include "failover_world.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "codec.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds time_to_connect{5};

}  // namespace

FailoverWorld::FailoverWorld(FailoverScenario drawn, bool tracing)
    : scenario(std::move(drawn)),
      random(scenario.seed + 1),
      survey_random(~scenario.seed),
      engine(timeline, scenario.ttl,
             [this] {
               note([&] {
                 return concat("the lease: term ", engine.state().term, " of ", engine.state().holder, " ",
                               engine.state().address, engine.state().verdict ? ", with a verdict" : "");
               });
               for (const auto& node : nodes_) {
                 if (node->is_alive()) node->lease_changed();
               }
             }),
      invariants(scenario, timeline, engine),
      tracing_(tracing),
      network_(timeline, random,
               Network::Handlers{[this](LinkId link, const FromAgent& message) {
                                   const auto server = server_at(link);
                                   if (!server) return;
                                   const Connection& at = connections_.at(link);
                                   nodes_[at.coordinator]->turn([server, link, message, addresses = at.addresses] {
                                     server->receives(link, message, addresses);
                                   });
                                 },
                                 [this](LinkId link, const std::string& how) {
                                   const auto server = server_at(link);
                                   if (!server) return;
                                   nodes_[connections_.at(link).coordinator]->turn(
                                       [server, link, how] { server->disconnected(link, how); });
                                 },
                                 [this](std::size_t node, LinkId link, const FromCoordinator& message) {
                                   nodes_[node]->receives(link, message);
                                 },
                                 [this](std::size_t node, LinkId link) { nodes_[node]->disconnected(link); }}),
      start_(timeline.now()) {
  network_.max_latency = scenario.max_latency;
  network_.bandwidth = scenario.bandwidth;
  for (int i = 0; i < scenario.agents; ++i) add_machine(random.time({}, scenario.arrival_spread));
  for (const auto& fault : scenario.faults) timeline.in(fault.when, [this, fault] { inject(fault); });
}

void FailoverWorld::run() {
  const auto end = start_ + scenario.bound();
  const auto over = [](const auto& node) {
    return node->outcome() != SimulatedMember::Outcome::none && !node->is_alive();
  };
  // Ended ones need no second look.
  std::size_t ended = 0;
  auto moment = timeline.now();
  std::uint64_t steps = 0;
  while (timeline.step()) {
    steps = std::exchange(moment, timeline.now()) == moment ? steps + 1 : 0;
    if (steps > 100'000) throw Violation("time stands still");
    while (ended < nodes_.size() && over(nodes_[ended])) ++ended;
    if (ended == nodes_.size()) return;
    if (timeline.now() > end) {
      throw Violation(concat("it is not over after its time: ", nodes_[ended]->host(), " still lives"));
    }
  }
  throw Violation("nothing happens any more, but it is not over");
}

bool FailoverWorld::run_until_started(Round round, std::size_t machines, Clock::duration time) {
  const auto end = timeline.now() + time;
  while (timeline.now() < end && timeline.step()) {
    if (invariants.last_begun().second >= round && invariants.running_last_round() >= machines) return true;
  }
  return false;
}

void FailoverWorld::preempt(std::size_t node) {
  nodes_[node]->turn([agent = nodes_[node]] { agent->leave(SIGTERM); });
}

std::size_t FailoverWorld::add_machine(Clock::duration when) {
  const std::size_t machine = machines_.size();
  machines_.push_back({concat("host", machine), true, 0});
  add_node(machine, when);
  return machine;
}

void FailoverWorld::add_node(std::size_t machine, Clock::duration when) {
  const std::size_t index = nodes_.size();
  machines_[machine].node = index;
  const auto node = std::make_shared<SimulatedMember>(*this, index, machine, machines_[machine].host);
  nodes_.push_back(node);
  timeline.in(when, [node] { node->turn([node] { node->begin(); }); });
}

IpAddress FailoverWorld::address_of(std::size_t machine) const {
  return *IpAddress::parse(concat("10.", machine / 62'500, ".", machine / 250 % 250, ".", machine % 250));
}

std::optional<std::size_t> FailoverWorld::leader() const {
  for (const auto& node : nodes_) {
    if (node->is_leader()) return node->index();
  }
  return std::nullopt;
}

// ---- the network

bool FailoverWorld::reaches_engine(std::size_t machine) const {
  return std::none_of(cuts_.begin(), cuts_.end(), [&](const Cut& one) {
    return one.until > timeline.now() && !one.one_way && (one.inside.count(machine) != 0) != one.engine_inside;
  });
}

Clock::time_point FailoverWorld::apart_until(std::size_t a, std::size_t b) const {
  Clock::time_point until;
  for (const Cut& one : cuts_) {
    if (one.others_inside || one.inside.count(a) == one.inside.count(b)) continue;
    until = std::max(until, one.until);
  }
  return until;
}

void FailoverWorld::cut(Cut what, Clock::duration time) {
  what.until = timeline.now() + time;
  cuts_.push_back(what);
  for (std::size_t machine = 0; machine < machines_.size(); ++machine) {
    if (what.inside.count(machine) != 0) invariants.note_fault(machine, what.until);
  }
  invariants.note_engine_fault(what.until);
  if (what.others_inside) return;
  for (const auto& [link, at] : connections_) {
    const std::size_t a = nodes_[at.node]->machine();
    const std::size_t b = nodes_[at.coordinator]->machine();
    if (what.inside.count(a) == what.inside.count(b)) continue;
    const bool agent_hears = what.inside.count(a) != 0 ? what.one_way == FailoverScenario::Kind::mute
                                                       : what.one_way == FailoverScenario::Kind::deaf;
    network_.stall(link, time,
                   !what.one_way ? Network::Stalls::both
                   : agent_hears ? Network::Stalls::to_coordinator
                                 : Network::Stalls::to_agent);
  }
}

void FailoverWorld::connect(const SimulatedMember& from, const Endpoint& to, OnConnect done) {
  std::size_t machine = 0;
  while (address_of(machine).text() != to.host) ++machine;
  try_connect(from.index(), machine, to.port, timeline.now() + time_to_connect, std::move(done));
}

/// SYN is repeated until there is a reply, or the time is over.
void FailoverWorld::try_connect(std::size_t node, std::size_t machine, std::uint64_t server, Clock::time_point until,
                                OnConnect done) {
  const auto apart = apart_until(nodes_[node]->machine(), machine);
  const bool is_up = machines_[machine].up;
  if (!is_up || apart > timeline.now()) {
    // After the time the agent has given up.
    const auto next = is_up ? std::min(until, apart + random.time({}, seconds(1))) : until;
    timeline.at(next, [this, node, machine, server, until, done = std::move(done)] {
      if (timeline.now() < until) try_connect(node, machine, server, until, done);
    });
    return;
  }
  timeline.in(
      random.time(Clock::duration{1}, 2 * scenario.max_latency), [this, node, machine, server, done = std::move(done)] {
        const std::size_t coordinator = machines_[machine].node;
        const auto found = nodes_[coordinator]->is_alive() ? nodes_[coordinator]->server_of(server) : nullptr;
        if (!found) return done(0, true);
        const LinkId link = network_.connect(node);
        connections_[link] = {node, coordinator, server, {address_of(nodes_[node]->machine()), address_of(machine)}};
        done(link, false);
      });
}

std::shared_ptr<SimulatedServer> FailoverWorld::server_at(LinkId link) const {
  const Connection& at = connections_.at(link);
  return nodes_[at.coordinator]->is_alive() ? nodes_[at.coordinator]->server_of(at.server) : nullptr;
}

const SimulatedMember* FailoverWorld::coordinator_node(LinkId link) const {
  return server_at(link) ? nodes_[connections_.at(link).coordinator].get() : nullptr;
}

void FailoverWorld::to_coordinator(LinkId link, const FromAgent& message) {
  network_.send_to_coordinator(link, message);
}

void FailoverWorld::to_agent(LinkId link, const FromCoordinator& message) { network_.send_to_agent(link, message); }

void FailoverWorld::on_node_ended(const SimulatedMember& node, bool with_its_machine) {
  note([&] { return concat(node.host(), with_its_machine ? " loses its power" : " is killed"); });
  if (with_its_machine) machines_[node.machine()].up = false;
  invariants.note_engine_fault(timeline.now());
  for (const auto& [link, at] : connections_) {
    const bool is_agent = at.node == node.index();
    const bool is_coordinator = at.coordinator == node.index();
    if (!is_agent && !is_coordinator) continue;
    // The peer notices, unless it is partitioned.
    const bool notices = !with_its_machine &&
                         apart_until(nodes_[at.node]->machine(), nodes_[at.coordinator]->machine()) <= timeline.now();
    network_.break_link(link, notices && !is_coordinator, notices && !is_agent);
  }
}

// ---- faults

void FailoverWorld::inject(const FailoverScenario::Fault& fault) {
  using Kind = FailoverScenario::Kind;
  const auto leading = leader();
  const std::size_t machine =
      fault.of_leader && leading ? nodes_[*leading]->machine() : fault.machine % machines_.size();
  SimulatedMember& node = *nodes_[machines_[machine].node];
  note([&] {
    const double time = std::chrono::duration<double>(fault.time).count();
    return concat("fault ", static_cast<int>(fault.kind), " at ", machines_[machine].host, " for ",
                  std::to_string(time));
  });
  switch (fault.kind) {
    case Kind::process_killed: node.kill(false, random.chance(0.5)); break;
    case Kind::machine_killed: node.kill(true, false); break;
    case Kind::suspended: stop(node, fault.time, false); break;
    case Kind::stopped_alone: stop(node, fault.time, true); break;
    case Kind::all_stopped:
      for (const Machine& one : machines_) stop(*nodes_[one.node], fault.time, true);
      break;
    case Kind::cut_off: cut({{machine}, false, false, {}}, fault.time); break;
    case Kind::cut_apart: {
      Cut what{{machine}, random.chance(0.5), false, {}};
      for (std::size_t other = 0; other < machines_.size(); ++other) {
        if (random.chance(0.5)) what.inside.insert(other);
      }
      cut(std::move(what), fault.time);
      break;
    }
    case Kind::cut_from_engine: cut({{machine}, false, true, {}}, fault.time); break;
    case Kind::mute:
    case Kind::deaf: cut({{machine}, false, false, {}, fault.kind}, fault.time); break;
    case Kind::preempted:
      if (node.is_alive()) node.turn([&node] { node.leave(SIGTERM); });
      break;
    case Kind::engine_unavailable:
      engine.set_unavailable(timeline.now() + fault.time, random.chance(0.5));
      invariants.note_engine_fault(timeline.now() + fault.time);
      break;
    case Kind::slow_clock:
      if (node.is_alive()) node.slow_clock(1.08);
      break;
    case Kind::machine_restarted:
      if (random.chance(0.5)) node.kill(true, false);
      else node.kill(false, true);
      machines_[machine].up = true;
      add_node(machine, fault.time);
      break;
    case Kind::newcomer: add_machine({}); break;
  }
}

void FailoverWorld::stop(SimulatedMember& node, Clock::duration time, bool alone) {
  if (!node.is_alive()) return;
  node.suspend_for(time, alone);
  for (const auto& [link, at] : connections_) {
    if (at.node == node.index() || at.coordinator == node.index()) network_.stall(link, time);
  }
  const auto until = timeline.now() + time;
  invariants.on_suspended(node, until, alone);
  invariants.note_fault(node.machine(), until);
  invariants.note_engine_fault(until);
}

// ---- output

void FailoverWorld::note(const std::function<std::string()>& text) {
  if (!tracing_) return;
  const double at = std::chrono::duration<double>(timeline.now() - start_).count();
  trace_.push_back(concat(std::to_string(at), " ", text()));
  if (trace_.size() > 200) trace_.pop_front();
}

std::string FailoverWorld::trace() const {
  std::string lines;
  for (const auto& line : trace_) lines += line + "\n";
  return lines;
}

FailoverWorld::Summary FailoverWorld::summary() const {
  Summary summary;
  if (engine.state().verdict) summary.verdict = parse_verdict(*engine.state().verdict);
  summary.rounds = invariants.rounds();
  summary.terms = invariants.terms();
  summary.hash = network_.hash();
  return summary;
}

}  // namespace ddrun::test
