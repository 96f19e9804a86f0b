#include "simulation_scenario.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include "ddrun/base/text.hpp"

namespace ddrun::test {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = Scenario::Kind;

void disturb(Scenario& scenario, Random& random, int count, Clock::duration within) {
  for (int i = 0; i < count; ++i) {
    Scenario::Disturbance what;
    // Some disturbances are rarer.
    constexpr Kind often[] = {Kind::crash,         Kind::vanish,   Kind::stall,
                              Kind::leave,         Kind::newcomer, Kind::machine_restarted,
                              Kind::wrong_settings};
    constexpr Kind rare[] = {Kind::leave_all, Kind::coordinator_suspended};
    what.kind = random.chance(0.9) ? often[random.below(std::size(often))] : rare[random.below(std::size(rare))];
    what.when = random.time({}, within);
    what.agent = random.below(1'000'000);
    what.time = random.time({}, random.chance(0.5) ? seconds(2) : seconds(8));
    scenario.disturbances.push_back(what);
  }
}

/// Some come close together, also from one agent, or just before a disturbance.
void draw_questions(Random& random, Scenario& drawn) {
  drawn.mute = random.chance(0.7) ? 0 : 0.2;
  // Seldom more than the coordinator keeps, as it takes long to simulate.
  drawn.max_answer = static_cast<std::size_t>(random.chance(0.9) ? 3'000 : 20 * 32 * 1024);
  drawn.max_reading = milliseconds(random.chance(0.7) ? 200 : 4'000);
  drawn.waited = random.chance(0.5) ? 0 : 0.7;
  drawn.bandwidth = random.chance(0.8) ? 0 : 1'000'000;
  for (int left = random.chance(0.3) ? 0 : random.between(1, 8); left > 0; --left) {
    Scenario::Question question;
    const bool follows = !drawn.questions.empty() && random.chance(0.4);
    question.when = follows ? drawn.questions.back().when + random.time({}, milliseconds(300))
                            : random.time({}, drawn.arrival_spread + seconds(25));
    if (!follows && !drawn.disturbances.empty() && random.chance(0.4)) {
      const auto& what = drawn.disturbances[random.below(drawn.disturbances.size())];
      question.when = what.when - std::min(what.when, random.time({}, seconds(1)));
    }
    question.agent = follows && random.chance(0.5) ? drawn.questions.back().agent : random.below(1'000'000);
    question.options = random.chance(0.7) ? "" : "all";
    question.is_for_stop = random.chance(0.2);
    drawn.questions.push_back(question);
  }
}

}  // namespace

rendezvous::Settings Scenario::settings() const {
  const std::map<std::string, std::string> all = {
      {"min_nodes", std::to_string(min_nodes)},
      {"max_nodes", std::to_string(max_nodes)},
      {"max_restarts", std::to_string(max_restarts)},
      {"restart_backoff_ms", std::to_string(backoff.count())},
      {"restart_window_ms", window_s == 0 ? "" : std::to_string(window_s * 1000)},
      {"same_cause", "0"},
      {"last_call_ms", std::to_string(last_call.count())},
      {"join_timeout_ms", std::to_string(join_timeout.count())},
      {"exit_skew_ms", skew_s == 0 ? "" : std::to_string(skew_s * 1000)},
      {"node_max_failures", std::to_string(node_max_failures)},
      {"grace_ms", std::to_string(grace.count())}};
  return {all.begin(), all.end()};
}

Clock::duration Scenario::max_wait() const {
  const Clock::duration too_few = join_timeout + seconds(60);
  return std::max({max_run, Clock::duration(grace + seconds(30)), too_few}) + seconds(20);
}

Clock::duration Scenario::bound() const {
  // Each round takes at most this long, and each needs a reason: a restart, a disturbance, a joining or stuck agent.
  // With a window restarts are unlimited, but here workers fail in the first rounds only.
  const Clock::duration round = max_run + 2 * (grace + seconds(30)) + seconds(30) + seconds(60) + join_timeout +
                                2 * last_call + seconds(20) + grace + seconds(4);
  const int rounds =
      1 + max_restarts + 2 * agents + 2 * static_cast<int>(disturbances.size()) + (window_s != 0 ? 50 : 0);
  return arrival_spread + rounds * round + seconds(5);
}

std::string Scenario::describe() const {
  return concat("seed ", seed, ": ", agents, " agents for ", min_nodes, ":", max_nodes,
                given_ranks ? " ranks given" : "", embedded ? " embedded" : " alone", ", ", max_restarts, " restarts, ",
                disturbances.size(), " disturbances, ", questions.size(), " questions with answers of ", max_answer,
                " bytes at most, ", bandwidth, " bytes per second");
}

Scenario draw_scenario(std::uint64_t seed) {
  Random random(seed);
  Scenario drawn;
  drawn.seed = seed;
  const int size = random.chance(0.03) ? 60 : random.chance(0.2) ? 16 : 5;
  drawn.max_nodes = random.between(1, size);
  drawn.min_nodes = random.chance(0.4) ? drawn.max_nodes : random.between(1, drawn.max_nodes);
  drawn.given_ranks = random.chance(0.25);
  drawn.embedded = random.chance(0.6);
  drawn.max_restarts = random.between(0, 5);
  drawn.backoff = milliseconds(random.chance(0.5) ? 0 : random.between(1, 3000));
  drawn.window_s = random.chance(0.15) ? random.between(1, 60) : 0;
  drawn.last_call = milliseconds(random.chance(0.3) ? 0 : random.between(1, 10'000));
  drawn.join_timeout = milliseconds(random.between(5'000, 60'000));
  drawn.grace = milliseconds(random.between(0, 5'000));
  drawn.skew_s = random.chance(0.2) ? random.between(1, 10) : 0;
  drawn.node_max_failures = random.chance(0.2) ? random.between(1, 2) : 0;
  drawn.agents = std::max(1, random.chance(0.7) ? drawn.max_nodes : drawn.max_nodes + random.between(-2, 3));
  drawn.arrival_spread = random.time({}, random.chance(0.5) ? seconds(1) : seconds(20));
  drawn.max_run = random.time(milliseconds(1), random.chance(0.3) ? milliseconds(50) : milliseconds(20'000));
  drawn.failing = random.chance(0.5) ? 0 : 0.5 / drawn.max_nodes;
  drawn.stuck = random.chance(0.8) ? 0 : 0.3 / drawn.max_nodes;
  drawn.aborting = random.chance(0.9) ? 0 : 0.3 / drawn.max_nodes;
  drawn.reconnecting = random.chance(0.8) ? 0 : 0.2;
  drawn.max_latency = random.time(milliseconds(1), random.chance(0.7) ? milliseconds(5) : milliseconds(400));
  disturb(drawn, random, random.chance(0.3) ? 0 : random.between(1, 8), drawn.arrival_spread + seconds(25));
  draw_questions(random, drawn);
  return drawn;
}

}  // namespace ddrun::test
