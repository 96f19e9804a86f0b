// A Dialer and a Coordinator on a bad wire, in virtual time: what one thinks of the other's silence, and whether
// workers of two rounds ever run at once.

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "dialer.hpp"
#include "scripted_job.hpp"
#include "simulation_timeline.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace std::chrono_literals;
using test::Random;
using test::Timeline;

namespace {

constexpr LinkId own = 1, other = 2;

struct Scenario {
  Milliseconds interval{1'000};
  int misses = 3;
  Milliseconds grace{30'000};
  Clock::duration max_delay = 1ms;
  double held_up = 0;  ///< probability of a message that waits for several seconds, and all behind it
  std::optional<Clock::duration> deaf_after, mute_after;  ///< of the other agent, for ever
  std::optional<Clock::duration> suspended_after;         ///< the coordinator, for up to 6 s
  std::optional<Clock::duration> failure_after;           ///< a worker on the coordinator's machine
};

/// The coordinator's own agent answers everything at once. The workers of the other one use up all of their grace.
class Pair {
 public:
  Pair(std::uint64_t seed, const Scenario& scenario)
      : random_(seed),
        scenario_(scenario),
        job_(1, 2, {{"grace_ms", std::to_string(scenario.grace.count())}}),
        dialer_(dialer_options()) {
    job_.options.heartbeat_interval = scenario.interval;
    job_.options.heartbeat_misses = scenario.misses;
    const Join join = job_.own_join_of("a");
    coordinator_.emplace(job_.options);
    tell([=, this] { coordinator_->join(own, join, addresses("10.0.0.1"), now()); });
    dialer_.begin(now());
    dialer_.connected(now());
    const auto greeting = dialer_.shook_hands(HandshakeState::done, protocol_version, now());
    send(std::get<FromAgent>(greeting->next));
    if (scenario.suspended_after) {
      timeline_.in(*scenario.suspended_after, [this] { suspended_until_ = now() + random_.time(0s, 6s); });
    }
    if (scenario.failure_after) {
      timeline_.in(*scenario.failure_after, [this] { from_own(Failed{.round = latest_}); });
    }
  }

  void run(Clock::duration time) {
    const auto end = now() + time;
    while (now() < end && timeline_.step()) {
      INFO("at " << (now() - start_) / 1ms << " ms");
      REQUIRE_FALSE((running_ && round_ < latest_));
    }
  }

  [[nodiscard]] bool gave_up() const { return gave_up_; }
  [[nodiscard]] Round latest() const { return latest_; }

 private:
  [[nodiscard]] Clock::time_point now() const { return timeline_.now(); }
  static LinkAddresses addresses(const std::string& peer) { return {test::ip(peer), test::ip("10.0.0.1")}; }
  static DialerOptions dialer_options() {
    DialerOptions options;
    options.coordinators = {{"10.0.0.1", 7}};
    return options;
  }

  // ---- the coordinator's machine

  /// After a suspension what has come and what is due are handled in either order.
  void tell(std::function<void()> what) {
    if (now() < suspended_until_) {
      const auto late = random_.time(0s, 1ms);
      return timeline_.at(suspended_until_ + late, [this, what = std::move(what)] { tell(what); });
    }
    what();
    for (const Output& output : coordinator_->take_outputs()) {
      if (!output.message) continue;
      const FromCoordinator message = *output.message;
      if (output.link == own) own_receives(message);
      else transfer(to_agent_, scenario_.deaf_after, [this, message] { receive(message); });
    }
    if (const auto due = coordinator_->next_deadline()) {
      timeline_.at(*due, [this, armed = ++armed_] {
        if (armed == armed_) tell([this] { coordinator_->tick(now()); });
      });
    }
  }
  void from_own(const FromAgent& message) {
    timeline_.in(0s, [this, message] { tell([this, message] { coordinator_->receive(own, message, now()); }); });
  }
  void own_receives(const FromCoordinator& message) {
    if (const auto* ping = std::get_if<Ping>(&message)) from_own(Pong{ping->number});
    else if (const auto* open = std::get_if<Open>(&message)) from_own(Opened{open->round, 29'500});
    else if (const auto* start = std::get_if<Start>(&message)) latest_ = start->round;
    else if (const auto* stop = std::get_if<Stop>(&message)) from_own(Stopped{stop->round});
  }

  // ---- the wire

  void transfer(Clock::time_point& arrives, const std::optional<Clock::duration>& until, std::function<void()> what) {
    if (until && now() - start_ >= *until) return;
    const bool held_up = random_.chance(scenario_.held_up);
    arrives = std::max(arrives, now() + random_.time(0s, held_up ? 5s : scenario_.max_delay));
    timeline_.at(arrives, std::move(what));
  }

  // ---- the other machine

  void send(const FromAgent& message) {
    transfer(to_coordinator_, scenario_.mute_after, [this, message] {
      tell([this, message] {
        const auto* join = std::get_if<Join>(&message);
        if (join == nullptr) return coordinator_->receive(other, message, now());
        Join own_like = job_.join_of("b");
        own_like.agent_id = "b";
        coordinator_->join(other, own_like, addresses("10.0.0.2"), now());
      });
    });
  }
  void receive(const FromCoordinator& message) {
    if (gave_up_) return;
    dialer_.heard(now());
    if (const auto* ping = std::get_if<Ping>(&message)) {
      if (const auto step = dialer_.pinged(*ping, now())) take(*step);
      if (gave_up_) return;
      return send(Pong{ping->number});
    }
    if (const auto step = dialer_.received(message, now())) take(*step);
    if (gave_up_) return;
    if (const auto* start = std::get_if<Start>(&message)) {
      running_ = true;
      round_ = start->round;
      ends_ = Clock::time_point::max();
    } else if (std::holds_alternative<Stop>(message)) {
      end_workers_within(scenario_.grace);
    } else if (std::holds_alternative<Refused>(message)) {
      lose_sight();
    }
  }
  void take(const DialStep& step) {
    if (std::holds_alternative<LinkLoss>(step.next)) return lose_sight();
    if (step.due == Deadline::max()) return;
    timeline_.at(step.due, [this, armed = ++dialer_armed_] {
      if (armed == dialer_armed_ && !gave_up_) take(dialer_.timed_out(now()));
    });
  }
  void lose_sight() {
    gave_up_ = true;
    end_workers_within(std::min(scenario_.grace, shutdown::lost_sight_grace) + shutdown::owner_margin);
  }
  void end_workers_within(Milliseconds time) {
    ends_ = std::min(ends_, now() + time);
    timeline_.at(ends_, [this] {
      if (now() < ends_ || !std::exchange(running_, false) || gave_up_) return;
      dialer_.workers_ended();
      send(Stopped{round_});
    });
  }

  Random random_;
  Scenario scenario_;
  Timeline timeline_;
  const Clock::time_point start_ = timeline_.now();
  test::ScriptedJob job_;  ///< for its settings only
  std::optional<Coordinator> coordinator_;
  Clock::time_point suspended_until_;
  std::uint64_t armed_ = 0;
  Round latest_ = 0;  ///< begun by the coordinator's agent
  Clock::time_point to_agent_, to_coordinator_;
  Dialer dialer_;
  std::uint64_t dialer_armed_ = 0;
  bool gave_up_ = false;
  bool running_ = false;
  Round round_ = 0;
  Clock::time_point ends_ = Clock::time_point::max();
};

}  // namespace

TEST_CASE("workers of a machine that is not heard have ended when the next round begins") {
  int next_rounds = 0;
  const std::uint64_t runs = test::number_from("DDRUN_SIMULATION_RUNS", 2'000);
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    const auto some_time = [&] { return random.time(0s, 20s); };
    Scenario bad;
    bad.interval = Milliseconds(random.chance(0.5) ? 1'000 : random.between(100, 3'000));
    bad.misses = random.between(1, 5);
    bad.grace = Milliseconds(random.chance(0.5) ? 30'000 : random.between(0, 8'000));
    bad.max_delay = random.time(1ms, random.chance(0.5) ? 10ms : 600ms);
    bad.held_up = random.chance(0.5) ? 0 : 0.05;
    if (random.chance(0.7)) bad.mute_after = some_time();
    if (random.chance(bad.mute_after ? 0.3 : 1)) bad.deaf_after = some_time();
    if (random.chance(0.2)) bad.suspended_after = some_time();
    if (random.chance(0.4)) bad.failure_after = some_time();
    Pair pair(seed, bad);
    pair.run(120s);
    next_rounds += pair.latest() > 1 ? 1 : 0;
  }
  CHECK(next_rounds > static_cast<int>(runs) * 3 / 4);  // else nothing was tried
}

TEST_CASE("an agent on a wire that delays a little is not lost and does not give up") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    INFO("seed " << seed);
    Scenario good;
    good.misses = 1 + static_cast<int>(seed % 3);
    good.max_delay = 200ms;
    Pair pair(seed, good);
    pair.run(100s);
    CHECK_FALSE(pair.gave_up());
    CHECK(pair.latest() == 1);
  }
}
