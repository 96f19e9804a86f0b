// When a job on hosts begins, and who runs the coordinator.

#include "start_decision.hpp"

#include <random>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::remote;
using Event = StartDecision::Event;

namespace {

/// "a0 f1 t30": host 0 answers, host 1 fails, 30 s pass; returns "coordinator/answered", or "" without a decision.
std::string decides(std::size_t hosts, int min_nodes, int max_nodes, const std::string& events, int last_call = 30) {
  StartDecision decision(hosts, min_nodes, max_nodes, std::chrono::seconds(last_call));
  Clock::time_point now{std::chrono::hours(1)};
  std::optional<Clock::time_point> tick_at;
  std::string text;
  const auto step = [&](Event event, std::uint32_t host) {
    const auto actions = decision.step(event, host, now);
    tick_at = actions.tick_at;
    if (!actions.coordinator) return;
    CHECK(text.empty());
    text = std::to_string(*actions.coordinator) + "/" + std::to_string(actions.answered);
  };
  std::istringstream words(events);
  for (std::string word; words >> word;) {
    const int number = std::stoi(word.substr(1));
    if (word[0] == 'a') step(Event::answered, static_cast<std::uint32_t>(number));
    if (word[0] == 'f') step(Event::failed, static_cast<std::uint32_t>(number));
    if (word[0] != 't') continue;
    now += std::chrono::seconds(number);
    if (tick_at && *tick_at <= now) step(Event::tick, 0);
  }
  return text;
}

}  // namespace

TEST_CASE("a job begins with the hosts that answer, and the first of them runs the coordinator") {
  struct Row {
    int hosts, min, max;
    std::string events, decided;
  };
  const std::vector<Row> rows{
      // All are needed: the first begins at once.
      {2, 2, 2, "a0", "0/0"},
      {2, 2, 2, "a1 t1000", ""},
      {2, 2, 2, "a1 a0", "0/0"},
      {1, 1, 1, "a0", "0/0"},
      // Those that fail are not waited for.
      {2, 1, 2, "a0", ""},
      {2, 1, 2, "a0 f1", "0/1"},
      {2, 1, 2, "f1 a0", "0/1"},
      {2, 1, 2, "f0 a1", "1/1"},
      {2, 1, 2, "a1 f0", "1/1"},
      {2, 1, 2, "a1 a0", "0/2"},
      {3, 2, 3, "f0 a2 a1", "1/2"},
      {3, 2, 3, "f0 f1 a2 t1000", ""},
      {3, 2, 3, "f0 f1 f2", ""},
      // One that hangs, until the end of the last call.
      {3, 1, 3, "a0 t29 a1", ""},
      {3, 1, 3, "a0 t29 a1 t1", "0/2"},
      {3, 2, 3, "a1 t1000 a2 t29", ""},
      {3, 2, 3, "a1 t1000 a2 t30", "1/2"},
      {3, 2, 3, "a1 a2 t29 a0", "0/3"},
      // What happens after the decision changes nothing.
      {3, 2, 3, "a1 a2 t30 a0 t30", "1/2"},
      {3, 2, 3, "a1 a2 t30 f1 a0 t30", "1/2"},
      // Spares are not waited for, but the first host is.
      {3, 2, 2, "a0 a2", "0/2"},
      {3, 2, 2, "a2 a1", ""},
      {3, 2, 2, "a2 a1 a0", "0/2"},
      {3, 2, 2, "a2 a1 f0", "1/2"},
      {3, 2, 2, "a2 a1 t30", "1/2"},
      // One that is lost after it answered counts no more, and the last call begins anew.
      {3, 2, 3, "a0 a1 f0 t30", ""},
      {3, 2, 3, "a0 a1 f0 a2", "1/2"},
      {3, 2, 3, "a0 a1 t20 f0 t20 a0 t20", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.hosts, row.min, row.max, row.events);
    CHECK(decides(static_cast<std::size_t>(row.hosts), row.min, row.max, row.events) == row.decided);
  }
  CHECK(decides(3, 1, 3, "a1", 0) == "1/1");
}

TEST_CASE("in any order of answers and failures a job with enough hosts begins in time") {
  std::mt19937 random(1);  // NOLINT: the same each time
  for (int seed = 0; seed < 3000; ++seed) {
    const auto hosts = 1 + random() % 6;
    const int min_nodes = 1 + static_cast<int>(random() % hosts);
    const int max_nodes = min_nodes + static_cast<int>(random() % (hosts - static_cast<unsigned>(min_nodes) + 1));
    const Milliseconds last_call{random() % 3 * 10};
    StartDecision decision(hosts, min_nodes, max_nodes, last_call);
    std::vector<char> state(hosts, 'p');
    Clock::time_point now{std::chrono::hours(1)};
    std::optional<Clock::time_point> tick_at;
    std::optional<Clock::time_point> enough_since;
    std::optional<std::uint32_t> coordinator;
    for (int step = 0; step < 40 && !coordinator; ++step) {
      now += Milliseconds(random() % 10);
      Event event = Event::tick;
      const auto host = static_cast<std::uint32_t>(random() % hosts);
      if (tick_at && *tick_at <= now) now = *tick_at;
      else if (state[host] == 'f') continue;
      else event = state[host] == 'a' || random() % 4 == 0 ? Event::failed : Event::answered;
      if (event == Event::failed && random() % 2 == 0) continue;
      if (event != Event::tick) state[host] = event == Event::answered ? 'a' : 'f';
      const auto answered = std::count(state.begin(), state.end(), 'a');
      if (answered < min_nodes) enough_since.reset();
      else if (!enough_since) enough_since = now;
      const auto actions = decision.step(event, host, now);
      tick_at = actions.tick_at;
      coordinator = actions.coordinator;
      CAPTURE(seed, step, std::string(state.begin(), state.end()), min_nodes, max_nodes);
      if (coordinator) {
        CHECK(state[*coordinator] == 'a');
        CHECK(std::count(state.begin(), state.begin() + *coordinator, 'a') == 0);
        if (min_nodes != static_cast<int>(hosts)) {
          CHECK(answered >= min_nodes);
          CHECK(actions.answered == std::min<long>(answered, max_nodes));
        }
      } else if (enough_since) {
        CHECK(now < *enough_since + last_call);
        CHECK(tick_at == *enough_since + last_call);
        CHECK(std::count(state.begin(), state.end(), 'p') > 0);
      }
    }
  }
}
