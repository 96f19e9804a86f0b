#pragma once

#include <signal.h>

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator.hpp"
#include "group_machine.hpp"
#include "settings.hpp"

namespace ddrun::test {

/// The first actions of a stop.
inline const std::string stop_with_term = "signal 15, grace 30000, check";

/// The same when the stacks have been read.
inline const std::string then_stop = "give up, " + stop_with_term;

/// Names of actions, in order: "signal 15, grace 30000, check".
inline std::string describe(const std::vector<agent::Action>& actions) {
  struct Name {
    std::string operator()(const agent::action::SpawnWorkers& spawn) const {
      return (spawn.part == agent::Part::services ? "spawn services " : "spawn ") + std::to_string(spawn.attempt);
    }
    std::string operator()(const agent::action::AwaitReady&) const { return "await ready"; }
    std::string operator()(const agent::action::StartServiceMargin& ended) const {
      return "margin " + std::to_string(ended.slot);
    }
    std::string operator()(const agent::action::Prepare&) const { return "prepare"; }
    std::string operator()(const agent::action::CancelPrepare& cancel) const {
      return "cancel " + std::to_string(cancel.signal);
    }
    std::string operator()(const agent::action::ReadStacks& read) const {
      using Scope = agent::action::ReadStacks::Scope;
      const std::string text = read.scope == Scope::machine ? "stacks"
                               : read.scope == Scope::asks  ? "ask for stacks"
                                                            : "stacks of order " + std::to_string(read.look);
      return read.limit == Milliseconds::max() ? text : text + " " + std::to_string(read.limit.count());
    }
    std::string operator()(const agent::action::AnswerOrder& order) const {
      return "answer " + std::to_string(order.look);
    }
    std::string operator()(const agent::action::GiveUpStacks&) const { return "give up"; }
    std::string operator()(const agent::action::SignalGroup& sent) const {
      return "signal " + std::to_string(sent.signal);
    }
    std::string operator()(const agent::action::StartGrace& grace) const {
      return "grace " + std::to_string(grace.duration.count());
    }
    std::string operator()(const agent::action::KillGroup&) const { return "kill"; }
    std::string operator()(const agent::action::CheckGone&) const { return "check"; }
    std::string operator()(const agent::action::CloseOutput&) const { return "close"; }
    std::string operator()(const agent::action::StartSkew& skew) const {
      return "skew " + std::to_string(skew.duration.count());
    }
    std::string operator()(const agent::action::Finish&) const { return "finish"; }
    std::string operator()(const agent::action::Join&) const { return "join"; }
    std::string operator()(const agent::action::Send& send) const {
      if (const auto* failed = std::get_if<rendezvous::Failed>(&send.message)) {
        return "send failed " + std::to_string(failed->local_rank);
      }
      if (std::holds_alternative<rendezvous::Succeeded>(send.message)) return "send succeeded";
      if (std::holds_alternative<rendezvous::Stopped>(send.message)) return "send stopped";
      const auto& leave = std::get<rendezvous::Leave>(send.message);
      return leave.text.starts_with("took a wrong step") ? "wrong step" : "send leave " + std::to_string(leave.code);
    }
    std::string operator()(const agent::action::Abandon&) const { return "abandon"; }
  };
  std::string text;
  for (const auto& action : actions) text += (text.empty() ? "" : ", ") + std::visit(Name{}, action);
  return text;
}

/// The coordinator of a job on one machine: turns actions of the machine into events.
class OneMachine {
 public:
  OneMachine(const RestartPolicy& restart, const StopPolicy& stop, int workers) {
    rendezvous::CoordinatorOptions options;
    options.host = "a";
    options.single_member = true;
    options.with_events = false;
    coordinator_ = std::make_unique<rendezvous::Coordinator>(options);
    LaunchSpec spec;
    spec.restart = restart;
    spec.stop = stop;
    join_.agent_id = "1";
    join_.host = "a";
    join_.local_world_size = static_cast<std::uint32_t>(workers);
    join_.settings = rendezvous::join_settings(spec);
  }

  /// False if the action is no message to the coordinator.
  bool take(const agent::Action& action, Clock::time_point now) {
    using namespace agent::action;
    if (std::holds_alternative<Join>(action)) {
      coordinator_->join(1, join_, {}, now);
    } else if (const auto* send = std::get_if<Send>(&action)) {
      ends_ = ends_ || std::holds_alternative<rendezvous::Leave>(send->message);
      coordinator_->receive(1, send->message, now);
    } else if (const auto* abandon = std::get_if<Abandon>(&action)) {
      ends_ = true;
      coordinator_->receive(
          1, rendezvous::Leave{rendezvous::LeaveKind::cannot_go_on, exit_codes::launcher_failed, abandon->why}, now);
    } else {
      return false;
    }
    return true;
  }
  void tick(Clock::time_point now) { coordinator_->tick(now); }

  /// The events that follow.
  std::vector<agent::Event> events(Clock::time_point now) {
    std::vector<agent::Event> events;
    for (auto said = coordinator_->take_outputs(); !said.empty(); said = coordinator_->take_outputs()) {
      for (const auto& one : said) {
        if (!one.message) continue;
        if (const auto* open = std::get_if<rendezvous::Open>(&*one.message)) {
          coordinator_->receive(1, rendezvous::Opened{open->round, 1}, now);
        } else if (const auto* start = std::get_if<rendezvous::Start>(&*one.message)) {
          another_round_ = false;
          events.emplace_back(rendezvous::RoundBegins{start->round, start->ranks});
        } else if (const auto* stop = std::get_if<rendezvous::Stop>(&*one.message)) {
          another_round_ = stop->another_round;
          events.emplace_back(rendezvous::StopOrder{stop->another_round, stop->why, stop->signal});
        } else if (const auto* verdict = std::get_if<rendezvous::VerdictMessage>(&*one.message)) {
          verdict_ = verdict->kind;
          events.emplace_back(*verdict);
        }
      }
    }
    return events;
  }

  [[nodiscard]] bool will_restart() const { return another_round_ && !ends_; }
  [[nodiscard]] int restarts_used() const { return coordinator_->job().budget.used(); }
  [[nodiscard]] std::optional<agent::Verdict> verdict() const { return verdict_; }
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const { return coordinator_->next_deadline(); }

 private:
  std::unique_ptr<rendezvous::Coordinator> coordinator_;
  rendezvous::Join join_;
  bool another_round_ = false;
  bool ends_ = false;
  std::optional<agent::Verdict> verdict_;
};

/// A machine with two workers and a clock set by the test.
struct Walk {
  /// On one machine: its coordinator answers.
  explicit Walk(const RestartPolicy& restart = {}, const StopPolicy& stop = {}, int workers = 2,
                std::set<int> services = {})
      : machine(one_machine_rules(restart, stop), workers, std::move(services)),
        job(std::make_shared<OneMachine>(restart, stop, workers)) {}
  /// The test makes the coordinator's events.
  explicit Walk(agent::GroupMachine::Rules rules, int workers = 2, std::set<int> services = {})
      : machine(std::move(rules), workers, std::move(services)) {}

  /// The actions other than messages to the coordinator.
  std::vector<agent::Action> happens(const agent::Event& event) { return carry_out({event}); }
  /// The pause before a restart is over.
  std::vector<agent::Action> pause_ends() {
    now = job->next_deadline().value_or(now);
    job->tick(now);
    return carry_out(job->events(now));
  }
  /// Before a restart.
  [[nodiscard]] std::optional<Milliseconds> pause() const {
    if (!job || machine.state() != agent::GroupState::rendezvous || !job->next_deadline()) return std::nullopt;
    return std::chrono::duration_cast<Milliseconds>(*job->next_deadline() - now);
  }

  /// The actions; "wrong step" and others if the table has no row for the event.
  std::string on(const agent::Event& event) {
    std::string text = describe(happens(event));
    if (const auto length = pause()) text += (text.empty() ? "pause " : ", pause ") + std::to_string(length->count());
    return text;
  }
  std::string ended(int slot, const ExitStatus& status) {
    return on(agent::event::WorkerEnded{slot, status, "", {"", slot}, slot});
  }
  /// By default one that forces SIGKILL if it is the second.
  std::string signal(int number, bool at_once = true) {
    return on(agent::event::EndingSignal{number, "pid 7 (sh)", at_once});
  }

  /// With workers that still run, whose stacks are read.
  void grace_expires() {
    on(agent::event::GraceExpired{});
    on(agent::event::StacksRead{});
  }
  /// Two workers run.
  Walk& run() {
    on(agent::event::Start{});
    on(agent::event::Spawned{});
    return *this;
  }

  [[nodiscard]] agent::Verdict verdict() const { return job && job->verdict() ? *job->verdict() : machine.verdict(); }
  [[nodiscard]] bool will_restart() const { return job->will_restart(); }
  [[nodiscard]] int restarts_used() const { return job->restarts_used(); }

  agent::GroupMachine machine;
  bool serves = false;    ///< it has services
  bool prepares = false;  ///< Prepare takes time; else Prepared follows at once
  Clock::time_point now{std::chrono::hours(1)};

 private:
  static agent::GroupMachine::Rules one_machine_rules(const RestartPolicy& restart, const StopPolicy& stop) {
    agent::GroupMachine::Rules rules;
    rules.restart = restart;
    rules.stop = stop;
    rules.runs_coordinator = [] { return true; };
    return rules;
  }

  /// As the agent does: an event that arrives meanwhile is decided at once, and its actions are queued.
  std::vector<agent::Action> carry_out(const std::vector<agent::Event>& events) {
    std::deque<agent::Action> waiting;
    std::vector<agent::Action> left;
    const auto decide = [&](const std::vector<agent::Event>& which) {
      for (const auto& event : which) {
        for (auto& action : machine.step(event)) waiting.push_back(std::move(action));
      }
    };
    for (decide(events); !waiting.empty(); waiting.pop_front()) {
      if (!prepares && std::holds_alternative<agent::action::Prepare>(waiting.front())) {
        decide({agent::event::Prepared{}});
      } else if (job && job->take(waiting.front(), now)) {
        decide(job->events(now));
      } else {
        left.push_back(waiting.front());
      }
    }
    return left;
  }

  std::shared_ptr<OneMachine> job;
};

inline rendezvous::RoundBegins round_begins(int restart_count, bool only_node = false) {
  rendezvous::RoundBegins begins{1, {}};
  begins.ranks.restart_count = restart_count;
  begins.ranks.node_count = only_node ? 1 : 2;
  return begins;
}

inline rendezvous::StopOrder stop_order(int signal = 0, Milliseconds max_grace = Milliseconds::max()) {
  return {true, "", signal, max_grace};
}

inline RestartPolicy restarts(int count, Milliseconds backoff = Milliseconds{0}) {
  RestartPolicy policy;
  policy.max_restarts = count;
  policy.backoff = backoff;
  return policy;
}

inline StopPolicy grace(Milliseconds duration) {
  StopPolicy policy;
  policy.grace = duration;
  return policy;
}

}  // namespace ddrun::test
