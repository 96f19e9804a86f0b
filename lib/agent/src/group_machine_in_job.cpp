// The part of the group's life that another machine decides about.

#include <signal.h>

#include <utility>

#include "ddrun/agent/group_machine.hpp"

namespace ddrun::agent {

GroupMachine::Actions GroupMachine::handle(const event::RoundBegins& round, Clock::time_point) {
  if (state_ != State::meeting || job_is_ending_) return {};
  attempt_ = round.restart_count;
  return start_attempt();
}

GroupMachine::Actions GroupMachine::handle(const event::StopOrdered& order, Clock::time_point) {
  if (state_ != State::starting && state_ != State::running) return {};
  if (stop_wanted_) return {};
  return take_down(order.signal != 0 ? order.signal : SIGTERM);
}

GroupMachine::Actions GroupMachine::handle(const event::VerdictSpoken&, Clock::time_point) {
  if (alone() || state_ == State::finished) return {};
  nobody_to_wait_for_ = true;
  job_is_ending_ = true;
  switch (state_) {
    case State::idle:
    case State::meeting: return finish();
    case State::starting:
    case State::running: return take_down(SIGTERM);
    default: return {};
  }
}

GroupMachine::Actions GroupMachine::handle(const event::CoordinatorLost& lost, Clock::time_point) {
  if (alone() || state_ == State::finished || nobody_to_wait_for_) return {};
  nobody_to_wait_for_ = true;
  if (job_is_ending_) return state_ == State::meeting ? finish() : Actions{};
  message_ = lost.message;
  return end_job(Verdict::node_lost, SIGTERM);
}

GroupMachine::Actions GroupMachine::attempt_over_in_job() {
  Actions actions{action::TellStopped{}};
  if (nobody_to_wait_for_) {
    state_ = State::finished;
    actions.emplace_back(action::Finish{});
  } else {
    state_ = State::meeting;
  }
  return actions;
}

}  // namespace ddrun::agent
