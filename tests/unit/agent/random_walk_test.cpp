// Random lives of a group, checked against what must hold in all of them.

#include <cstdint>
#include <random>

#include "ddrun/test/catch.hpp"
#include "machine_walk.hpp"

using namespace ddrun;
using namespace ddrun::agent;

namespace {

/// The world around a machine: remembers what it was asked for and has not answered yet.
class World {
 public:
  World(RestartPolicy restart, StopPolicy stop, int workers)
      : restart_(restart), workers_(workers), walk_(restart, stop, workers), machine_(walk_.machine) {}

  [[nodiscard]] int finishes() const { return finishes_; }

  void happens(const Event& event) {
    check(machine_.state(), event.index(), [&] {
      if (machine_.state() != State::idle) job_is_over_ = job_is_over_ || ends_the_job(event);
      answer_to(event, machine_.state());
      return walk_.happens(event);
    });
  }
  /// The pause before a restart is over.
  void pause_ends() {
    check(machine_.state(), 99, [&] { return walk_.pause_ends(); });
  }
  [[nodiscard]] bool pauses() const { return walk_.pause().has_value(); }

  /// Something that can happen now.
  Event plausible(std::mt19937& random) {
    std::vector<Event> choice;
    if (machine_.state() == State::idle) return event::Start{};
    if (spawning_) {
      choice.insert(choice.end(), 3, event::Spawned{});
      if (one_in(random, 8)) choice.emplace_back(event::SpawnFailed{"no room", 125});
    }
    for (const int rank : alive_) {
      const ExitStatus status = random() % 2 == 0   ? ExitStatus(Exited{0})
                                : random() % 2 == 0 ? ExitStatus(Exited{static_cast<int>(random() % 4)})
                                                    : ExitStatus(Signaled{SIGKILL, false});
      choice.emplace_back(event::WorkerEnded{rank, status});
    }
    if (check_ && !spawning_ && alive_.empty()) {
      choice.insert(choice.end(), 3, event::GroupGone{});
      choice.emplace_back(event::OnlyStraysLeft{});
    }
    if (grace_) choice.emplace_back(event::GraceExpired{});
    if (check_ && machine_.state() == State::killing && one_in(random, 6)) choice.emplace_back(event::KillExpired{});
    if (close_) choice.insert(choice.end(), 4, event::OutputClosed{});
    if (one_in(random, 12))
      choice.emplace_back(event::EndingSignal{one_in(random, 2) ? SIGINT : SIGTERM, "pid 1", one_in(random, 2)});
    if (one_in(random, 30)) choice.emplace_back(event::JobTimeout{});
    if (one_in(random, 30)) choice.emplace_back(event::ParentLost{"guard"});
    if (choice.empty()) return event::OutputClosed{};
    return choice[random() % choice.size()];
  }

  /// Anything, whether it makes sense or not.
  Event strange(std::mt19937& random) {
    strange_ = true;
    switch (random() % 12) {
      case 0: return event::Start{};
      case 1: return event::Spawned{};
      case 2: return event::SpawnFailed{"no room", 125};
      case 3: return event::WorkerEnded{static_cast<int>(random() % 5) - 1, Exited{static_cast<int>(random() % 3)}};
      case 4: return event::GroupGone{};
      case 5: return event::OnlyStraysLeft{};
      case 6: return event::GraceExpired{};
      case 7: return event::KillExpired{};
      case 8: return event::OutputClosed{};
      case 9: return event::JobTimeout{};
      case 10: return event::EndingSignal{SIGTERM, "", one_in(random, 2)};
      default: return event::ParentLost{"sweeper"};
    }
  }

  /// Whatever was asked for is answered until the end. Gives back whether it came.
  bool answer_all() {
    for (int step = 0; step < 1000 && machine_.state() != State::finished; ++step) {
      if (machine_.state() == State::idle) happens(event::Start{});
      else if (spawning_) happens(event::Spawned{});
      else if (close_) happens(event::OutputClosed{});
      else if (pauses()) pause_ends();
      else if (!alive_.empty()) happens(event::WorkerEnded{*alive_.begin(), Exited{0}});
      else if (check_) happens(event::GroupGone{});
      else return false;
    }
    return machine_.state() == State::finished;
  }

 private:
  template <class Happen>
  void check(State before, std::size_t what, const Happen& happen) {
    const int used_before = walk_.restarts_used();
    const Verdict verdict_before = walk_.verdict();
    history_ += std::string(describe(before)) + " " + std::to_string(what) + "; ";
    INFO(history_);
    walk_.now += Milliseconds{7};
    const auto actions = happen();
    for (const auto& action : actions) {
      std::visit([this](const auto& what) { this->asked(what); }, action);
    }
    const State after = machine_.state();
    if (before == State::finished) {
      REQUIRE(after == State::finished);
      REQUIRE(actions.empty());
      REQUIRE(walk_.verdict() == verdict_before);
    }
    REQUIRE(walk_.restarts_used() >= used_before);
    if (!restart_.window) REQUIRE(walk_.restarts_used() <= restart_.max_restarts);
    // A restart is counted when its pause begins.
    if (after == State::starting || after == State::running) REQUIRE(machine_.attempt() == walk_.restarts_used());
    REQUIRE(finishes_ == (after == State::finished ? 1 : 0));
    // Never a state that nothing can end.
    if (after == State::starting) REQUIRE(spawning_);
    if (after == State::stopping) REQUIRE((grace_ && check_));
    if (after == State::killing) REQUIRE(check_);
    if (after == State::closing) REQUIRE(close_);
    if (after == State::rendezvous) REQUIRE(pauses());
    if (after == State::running) REQUIRE((!alive_.empty() || strange_));
  }

  static bool one_in(std::mt19937& random, unsigned n) { return random() % n == 0; }

  static bool ends_the_job(const Event& event) {
    return std::holds_alternative<event::EndingSignal>(event) || std::holds_alternative<event::JobTimeout>(event) ||
           std::holds_alternative<event::ParentLost>(event);
  }

  /// The machine's requests that this event settles; as the agent does, timers stop with the state they belong to.
  void answer_to(const Event& event, State state) {
    if (const auto* ended = std::get_if<event::WorkerEnded>(&event)) alive_.erase(ended->local_rank);
    if (std::holds_alternative<event::Spawned>(event) && state == State::starting) spawning_ = false;
    if (std::holds_alternative<event::SpawnFailed>(event) && state == State::starting) {
      spawning_ = false;
      if (!alive_.empty()) alive_.erase(std::prev(alive_.end()));
    }
    if (std::holds_alternative<event::OutputClosed>(event) && state == State::closing) close_ = false;
    if (std::holds_alternative<event::GraceExpired>(event)) grace_ = false;
    const bool gone =
        std::holds_alternative<event::GroupGone>(event) || std::holds_alternative<event::KillExpired>(event);
    if (gone && (state == State::stopping || state == State::killing)) {
      if (std::holds_alternative<event::KillExpired>(event) && state == State::stopping) return;
      grace_ = check_ = false;
    }
  }

  void asked(const action::SpawnWorkers& spawn) {
    REQUIRE_FALSE(job_is_over_);
    REQUIRE(spawn.attempt == attempts_++);
    REQUIRE((!check_ && !close_ && !grace_));
    spawning_ = true;
    for (int rank = 0; rank < workers_; ++rank) alive_.insert(rank);
  }
  void asked(const action::SignalGroup& sent) { REQUIRE(sent.signal > 0); }
  void asked(const action::StartGrace& grace) {
    REQUIRE(grace.duration.count() > 0);
    grace_ = true;
  }
  void asked(const action::KillGroup&) {}
  void asked(const action::CheckGone&) { check_ = true; }
  void asked(const action::CloseOutput&) {
    REQUIRE_FALSE(close_);
    close_ = true;
  }
  template <class Other>
  void asked(const Other&) {
    FAIL("an action that is the coordinator's");
  }
  void asked(const action::Finish&) { ++finishes_; }

  RestartPolicy restart_;
  int workers_;
  test::Walk walk_;
  GroupMachine& machine_;
  std::string history_;
  std::set<int> alive_;
  int attempts_ = 0;
  int finishes_ = 0;
  bool spawning_ = false;
  bool check_ = false;
  bool grace_ = false;
  bool close_ = false;
  bool job_is_over_ = false;
  bool strange_ = false;  ///< the world has lied: who lives is not known
};

World random_world(std::mt19937& random) {
  RestartPolicy restart = test::restarts(static_cast<int>(random() % 4), Milliseconds{random() % 2 == 0 ? 0 : 500});
  if (random() % 4 == 0) restart.no_restart_on = {1, 2};
  if (random() % 4 == 0) restart.success_on = {0, 3};
  return {restart, test::grace(Milliseconds{random() % 4 == 0 ? 0 : 30'000}), 1 + static_cast<int>(random() % 3)};
}

}  // namespace

TEST_CASE("random lives keep to the rules and come to an end") {
  for (std::uint32_t seed = 0; seed < 2'000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    World world = random_world(random);
    const unsigned steps = random() % 60;
    for (unsigned step = 0; step < steps; ++step) {
      if (world.pauses() && random() % 2 == 0) world.pause_ends();
      else world.happens(world.plausible(random));
    }
    REQUIRE(world.answer_all());
    REQUIRE(world.finishes() == 1);
    // Nothing wakes it again.
    world.pause_ends();
    world.happens(event::EndingSignal{SIGTERM, ""});
    world.happens(event::Start{});
  }
}

TEST_CASE("events that make no sense break no rule") {
  for (std::uint32_t seed = 0; seed < 2'000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    World world = random_world(random);
    const unsigned steps = random() % 60;
    for (unsigned step = 0; step < steps; ++step) {
      world.happens(random() % 3 == 0 ? world.plausible(random) : world.strange(random));
    }
    REQUIRE(world.answer_all());
    REQUIRE(world.finishes() == 1);
  }
}
