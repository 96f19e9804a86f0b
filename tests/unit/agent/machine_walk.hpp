#pragma once

#include <signal.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "group_machine.hpp"

namespace ddrun::test {

/// What a machine does first that ends its workers.
inline const std::string stop_with_term = "signal 15, grace 30000, check";

/// Names of actions, in order: "signal 15, grace 30000, check".
inline std::string words(const std::vector<agent::Action>& actions) {
  struct Name {
    std::string operator()(const agent::action::SpawnWorkers& spawn) const {
      return "spawn " + std::to_string(spawn.attempt);
    }
    std::string operator()(const agent::action::SignalGroup& sent) const {
      return "signal " + std::to_string(sent.signal);
    }
    std::string operator()(const agent::action::StartGrace& grace) const {
      return "grace " + std::to_string(grace.duration.count());
    }
    std::string operator()(const agent::action::KillGroup&) const { return "kill"; }
    std::string operator()(const agent::action::CheckGone&) const { return "check"; }
    std::string operator()(const agent::action::CloseOutput&) const { return "close"; }
    std::string operator()(const agent::action::StartBackoff& backoff) const {
      return "backoff " + std::to_string(backoff.duration.count());
    }
    std::string operator()(const agent::action::StartSkew& skew) const {
      return "skew " + std::to_string(skew.duration.count());
    }
    std::string operator()(const agent::action::Finish&) const { return "finish"; }
    std::string operator()(const agent::action::Join&) const { return "join"; }
    std::string operator()(const agent::action::TellFailed& failed) const {
      return "tell failed " + std::to_string(failed.local_rank);
    }
    std::string operator()(const agent::action::TellSucceeded&) const { return "tell succeeded"; }
    std::string operator()(const agent::action::TellStopped&) const { return "tell stopped"; }
    std::string operator()(const agent::action::TellLeave& leave) const {
      return "tell leave " + std::to_string(leave.signal);
    }
    std::string operator()(const agent::action::TellAbort& abort) const {
      return "tell abort " + std::to_string(abort.code);
    }
    std::string operator()(const agent::action::Abandon&) const { return "abandon"; }
  };
  std::string text;
  for (const auto& action : actions) text += (text.empty() ? "" : ", ") + std::visit(Name{}, action);
  return text;
}

/// A machine with two workers and a clock that a test moves.
struct Walk {
  explicit Walk(RestartPolicy restart = {}, StopPolicy stop = {}, int workers = 2) : machine(restart, stop, workers) {}

  explicit Walk(agent::GroupMachine::Rules rules, int workers = 2) : machine(std::move(rules), workers) {}

  std::string on(const agent::Event& event) { return words(machine.on(event, now)); }
  std::string ended(int local_rank, const ExitStatus& status) {
    return on(agent::event::WorkerEnded{local_rank, status});
  }
  /// By somebody who means it if it is a second one.
  std::string signal(int number, bool at_once = true) {
    return on(agent::event::EndingSignal{number, "pid 7 (sh)", at_once});
  }

  /// Two workers run.
  Walk& run() {
    on(agent::event::Start{});
    on(agent::event::Spawned{});
    return *this;
  }

  agent::GroupMachine machine;
  Clock::time_point now{std::chrono::hours(1)};
};

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
