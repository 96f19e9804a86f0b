#include "failover_scenario.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include "ddrun/base/text.hpp"

namespace ddrun::test {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = FailoverScenario::Kind;

constexpr seconds max_backoff{60};

/// How long workers of a silent machine may run.
Clock::duration silence(const FailoverScenario& scenario) {
  return scenario.fence ? Clock::duration(*scenario.fence) : heartbeat_bound + scenario.grace + seconds(1);
}

Milliseconds max_pause_of(const FailoverScenario& scenario) {
  return std::min<Milliseconds>(scenario.backoff * (1LL << std::min(scenario.max_restarts, 20)), max_backoff);
}

/// In mid-round the coordinator is silent for about the heartbeat limit, or partitioned until others have taken over,
/// and workers stop slowly: worst case for overlaps.
void draw_silence(Random& random, FailoverScenario& drawn) {
  drawn.min_nodes = std::min(drawn.min_nodes, std::max(1, drawn.max_nodes - 1));
  drawn.max_restarts = std::max(drawn.max_restarts, 2);
  drawn.grace = milliseconds(random.between(2'000, 8'000));
  if (drawn.fence) drawn.fence = drawn.grace + milliseconds(5'000);
  drawn.max_run = random.time(seconds(15), seconds(25));
  FailoverScenario::Fault fault;
  fault.when = drawn.arrival_spread + random.time(seconds(3), seconds(12));
  fault.of_leader = true;
  if (random.chance(0.5)) {
    fault.kind = Kind::suspended;
    fault.time = random.time(seconds(2), seconds(5));
  } else {
    fault.kind = Kind::cut_off;
    fault.time = random.time(seconds(10), seconds(25));
    drawn.max_nodes = drawn.agents = random.between(2, 3);
    drawn.min_nodes = 1;
    drawn.ttl = seconds(random.between(2, 4));
    drawn.faults.clear();
  }
  if (drawn.faults.empty()) drawn.faults.push_back(fault);
  else drawn.faults.front() = fault;
}

/// In mid-round a machine is mute, deaf or cut off, each for a while and one after the other, and its workers stop as
/// slowly as they may.
void draw_lost_sight(Random& random, FailoverScenario& drawn) {
  drawn.agents = drawn.max_nodes = random.between(2, 4);
  drawn.min_nodes = random.between(1, drawn.max_nodes - 1);
  drawn.max_restarts = 6;
  drawn.grace = milliseconds(random.between(4'000, 30'000));
  if (drawn.fence) drawn.fence = drawn.grace + milliseconds(5'000);
  drawn.max_run = seconds(60);
  drawn.faults.clear();
  FailoverScenario::Fault fault;
  fault.when = drawn.arrival_spread + random.time(seconds(3), seconds(12));
  fault.of_leader = random.chance(0.2);
  fault.machine = random.below(1'000'000);
  for (int left = random.between(1, 3); left > 0; --left) {
    constexpr Kind kinds[] = {Kind::mute, Kind::deaf, Kind::cut_off};
    fault.kind = kinds[random.below(std::size(kinds))];
    fault.time = random.time(seconds(1), seconds(25));
    drawn.faults.push_back(fault);
    fault.when += random.time({}, seconds(6));
  }
}

/// In mid-round an agent alone, or each, stands still for about as long as its workers may run without it, and they
/// stop as slowly as they may.
void draw_standing_still(Random& random, FailoverScenario& drawn) {
  draw_lost_sight(random, drawn);
  if (random.chance(0.3)) drawn.grace = milliseconds(random.between(0, 3'000));
  const auto bound =
      heartbeat_bound + seconds(1) + (drawn.fence ? drawn.grace : std::min<Milliseconds>(drawn.grace, seconds(5)));
  for (auto& fault : drawn.faults) {
    constexpr Kind kinds[] = {Kind::stopped_alone, Kind::stopped_alone, Kind::all_stopped, Kind::suspended};
    fault.kind = kinds[random.below(std::size(kinds))];
    if (random.chance(0.7)) fault.time = bound + random.time({}, seconds(4)) - seconds(2);
  }
}

}  // namespace

rendezvous::Settings FailoverScenario::settings() const {
  std::map<std::string, std::string> all = {{"min_nodes", std::to_string(min_nodes)},
                                            {"max_nodes", std::to_string(max_nodes)},
                                            {"max_restarts", std::to_string(max_restarts)},
                                            {"restart_backoff_ms", std::to_string(backoff.count())},
                                            {"restart_window_ms", ""},
                                            {"same_cause", "0"},
                                            {"last_call_ms", std::to_string(last_call.count())},
                                            {"join_timeout_ms", std::to_string(join_timeout.count())},
                                            {"exit_skew_ms", ""},
                                            {"node_max_failures", "0"},
                                            {"grace_ms", std::to_string(grace.count())}};
  if (fence) all["fence_ms"] = std::to_string(fence->count());
  return {all.begin(), all.end()};
}

RendezvousSpec FailoverScenario::spec() const {
  RendezvousSpec spec;
  spec.lease = "program";
  spec.min_nodes = min_nodes;
  spec.max_nodes = std::max(max_nodes, 2);  // one machine needs no lease
  spec.join_timeout = join_timeout;
  spec.coordinator_timeout = coordinator_timeout;
  spec.fence = fence;
  return spec;
}

Clock::duration FailoverScenario::max_gathering() const {
  const Clock::duration recovery = std::max<Clock::duration>({seconds(10), silence(*this) + seconds(5), ttl});
  return recovery + last_call + max_pause_of(*this) + seconds(1);
}

Clock::duration FailoverScenario::bound() const {
  // Each round takes at most this long, and each needs a reason.
  const Clock::duration round =
      max_run + 2 * (grace + seconds(30)) + max_gathering() + join_timeout + 2 * coordinator_timeout + 4 * ttl;
  const auto rounds = 1 + max_restarts + agents + 2 * static_cast<int>(faults.size());
  return arrival_spread + rounds * round;
}

std::string FailoverScenario::describe() const {
  return concat("seed ", seed, ": ", agents, " agents for ", min_nodes, ":", max_nodes, ", ", max_restarts,
                " restarts, grace ", grace.count(), " ms, TTL ", ttl.count(), " ms, ", faults.size(),
                " faults, answers of ", max_answer, " bytes at most");
}

FailoverScenario draw_failover(std::uint64_t seed) {
  Random random(seed);
  FailoverScenario drawn;
  drawn.seed = seed;
  drawn.max_nodes = random.between(1, random.chance(0.05) ? 30 : 5);
  drawn.min_nodes = random.chance(0.3) ? drawn.max_nodes : random.between(1, drawn.max_nodes);
  drawn.agents = std::max(1, random.chance(0.7) ? drawn.max_nodes : drawn.max_nodes + random.between(-1, 2));
  drawn.max_restarts = random.between(0, 6);
  drawn.backoff = milliseconds(random.chance(0.7) ? 0 : random.between(1, 1'000));
  drawn.last_call = milliseconds(random.chance(0.5) ? 0 : random.between(1, 3'000));
  drawn.join_timeout = milliseconds(random.between(20'000, 40'000));
  drawn.grace = milliseconds(random.chance(0.5) ? random.between(0, 100) : random.between(0, 8'000));
  if (random.chance(0.15)) drawn.fence = drawn.grace + milliseconds(5'000) + milliseconds(random.between(0, 3'000));
  drawn.ttl = seconds(random.chance(0.5) ? 5 : random.between(2, 10));
  drawn.coordinator_timeout = seconds(random.chance(0.5) ? 30 : random.between(15, 30));
  drawn.arrival_spread = random.time({}, random.chance(0.7) ? seconds(1) : seconds(10));
  drawn.max_run = random.time(milliseconds(1), random.chance(0.2) ? seconds(1) : seconds(20));
  drawn.max_latency = random.time(milliseconds(1), random.chance(0.7) ? milliseconds(3) : milliseconds(100));
  drawn.failing = random.chance(0.7) ? 0 : 0.5 / drawn.max_nodes;
  drawn.lost_requests = random.chance(0.7) ? 0 : 0.2;
  drawn.late_requests = random.chance(0.7) ? 0 : 0.05;
  const int faults = random.chance(0.05) ? 0 : random.between(1, 6);
  for (int i = 0; i < faults; ++i) {
    FailoverScenario::Fault fault;
    constexpr Kind kinds[] = {Kind::process_killed,
                              Kind::machine_killed,
                              Kind::suspended,
                              Kind::stopped_alone,
                              Kind::all_stopped,
                              Kind::cut_off,
                              Kind::cut_apart,
                              Kind::cut_from_engine,
                              Kind::preempted,
                              Kind::engine_unavailable,
                              Kind::cut_from_engine,
                              Kind::slow_clock,
                              Kind::machine_restarted,
                              Kind::newcomer,
                              Kind::mute,
                              Kind::deaf};
    fault.kind = kinds[random.below(std::size(kinds))];
    // Some faults follow closely on another.
    fault.when = i > 0 && random.chance(0.4) ? drawn.faults.back().when + random.time({}, seconds(6))
                                             : random.time({}, drawn.arrival_spread + seconds(25));
    fault.of_leader = random.chance(0.6);
    fault.machine = random.below(1'000'000);
    fault.time = random.time(milliseconds(1), random.chance(0.5) ? seconds(4) : seconds(25));
    drawn.faults.push_back(fault);
  }
  if (random.chance(0.15)) draw_silence(random, drawn);
  else if (random.chance(0.15)) draw_lost_sight(random, drawn);
  else if (random.chance(0.15)) draw_standing_still(random, drawn);
  if (random.chance(0.3)) drawn.ask_interval = random.time(milliseconds(500), seconds(10));
  drawn.max_answer = random.chance(0.9) ? 3'000 : 200'000;
  drawn.waited = random.chance(0.5) ? 0 : 0.7;
  return drawn;
}

FailoverScenario draw_slow_answers(std::uint64_t seed) {
  Random random(seed);
  FailoverScenario drawn;
  drawn.seed = seed;
  drawn.agents = drawn.min_nodes = drawn.max_nodes = random.between(2, 4);
  drawn.max_restarts = 10;
  drawn.grace = milliseconds(random.between(0, 3'000));
  drawn.max_run = seconds(random.between(4, 8));
  drawn.max_latency = random.time(milliseconds(1), milliseconds(100));
  drawn.failing = 0.2 / drawn.agents;
  drawn.waited = 0.7;
  drawn.ask_interval = seconds(2);
  drawn.max_answer = std::size_t{4} << 20U;
  drawn.min_answer = drawn.max_answer / static_cast<std::size_t>(drawn.agents);
  drawn.bandwidth = 1'000'000;
  return drawn;
}

FailoverScenario draw_preemption(std::uint64_t seed) {
  FailoverScenario drawn;
  drawn.seed = seed;
  drawn.agents = drawn.max_nodes = 2 + static_cast<int>(seed % 3);
  drawn.join_timeout = seconds(60);
  drawn.arrival_spread = seconds(1);
  drawn.max_run = seconds(3'600);
  drawn.max_latency = milliseconds(900);
  drawn.ttl = seconds(10);
  drawn.quick_lease = true;
  return drawn;
}

}  // namespace ddrun::test
