#include "group_machine.hpp"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::agent {

namespace {

template <class Kind, class... States>
constexpr Step step(State from, States... next) {
  return {from, event_number<Kind>, ((1U << static_cast<unsigned>(next)) | ...)};
}

/// What is taken down goes to `killing` at once if the grace time is 0. What comes while workers are being spawned is
/// kept in mind until all are.
constexpr Step steps[] = {
    step<event::Start>(State::idle, State::rendezvous),
    step<event::JobTimeout>(State::idle, State::finished),
    step<event::EndingSignal>(State::idle, State::finished),
    step<event::ParentLost>(State::idle, State::finished),
    step<event::VerdictReceived>(State::idle, State::idle, State::finished),
    step<event::CoordinatorLost>(State::idle, State::idle, State::finished),

    step<event::RoundBegins>(State::rendezvous, State::rendezvous, State::starting),
    step<event::JobTimeout>(State::rendezvous, State::rendezvous, State::finished),
    step<event::EndingSignal>(State::rendezvous, State::rendezvous, State::finished),
    step<event::ParentLost>(State::rendezvous, State::rendezvous, State::finished),
    step<event::StopOrdered>(State::rendezvous, State::rendezvous),
    step<event::VerdictReceived>(State::rendezvous, State::finished),
    step<event::CoordinatorLost>(State::rendezvous, State::rendezvous, State::finished),

    step<event::Spawned>(State::starting, State::running, State::stopping, State::killing),
    step<event::SpawnFailed>(State::starting, State::stopping, State::killing),
    step<event::WorkerEnded>(State::starting, State::starting),
    step<event::JobTimeout>(State::starting, State::starting),
    step<event::EndingSignal>(State::starting, State::starting),
    step<event::ParentLost>(State::starting, State::starting),
    step<event::StopOrdered>(State::starting, State::starting),
    step<event::VerdictReceived>(State::starting, State::starting),
    step<event::CoordinatorLost>(State::starting, State::starting),

    step<event::WorkerEnded>(State::running, State::running, State::stopping, State::killing),
    step<event::SkewExpired>(State::running, State::running, State::stopping, State::killing),
    step<event::JobTimeout>(State::running, State::stopping, State::killing),
    step<event::EndingSignal>(State::running, State::stopping, State::killing),
    step<event::ParentLost>(State::running, State::stopping, State::killing),
    step<event::StopOrdered>(State::running, State::stopping, State::killing),
    step<event::VerdictReceived>(State::running, State::running, State::stopping, State::killing),
    step<event::CoordinatorLost>(State::running, State::running, State::stopping, State::killing),

    step<event::WorkerEnded>(State::stopping, State::stopping),
    step<event::GroupGone>(State::stopping, State::closing),
    step<event::StopOrdered>(State::stopping, State::stopping, State::killing),
    step<event::GraceExpired>(State::stopping, State::killing),
    step<event::JobTimeout>(State::stopping, State::stopping),
    step<event::EndingSignal>(State::stopping, State::stopping, State::killing),
    step<event::ParentLost>(State::stopping, State::stopping),
    step<event::VerdictReceived>(State::stopping, State::stopping),
    step<event::CoordinatorLost>(State::stopping, State::stopping),

    step<event::WorkerEnded>(State::killing, State::killing),
    step<event::GroupGone>(State::killing, State::closing),
    step<event::KillExpired>(State::killing, State::closing),
    step<event::JobTimeout>(State::killing, State::killing),
    step<event::EndingSignal>(State::killing, State::killing),
    step<event::ParentLost>(State::killing, State::killing),
    step<event::VerdictReceived>(State::killing, State::killing),
    step<event::CoordinatorLost>(State::killing, State::killing),

    step<event::OutputClosed>(State::closing, State::rendezvous, State::finished),
    step<event::JobTimeout>(State::closing, State::closing),
    step<event::EndingSignal>(State::closing, State::closing),
    step<event::ParentLost>(State::closing, State::closing),
    step<event::VerdictReceived>(State::closing, State::closing),
    step<event::CoordinatorLost>(State::closing, State::closing),
};

bool has_row(State state, const Event& event) {
  return std::any_of(std::begin(steps), std::end(steps),
                     [&](const Step& one) { return one.from == state && one.event == event.index(); });
}

}  // namespace

std::span<const Step> state_table() { return steps; }

bool is_success(const ExitStatus& status, const RestartPolicy& policy) {
  const auto* exited = std::get_if<Exited>(&status);
  return exited != nullptr && policy.success_on.count(exited->code) != 0;
}

GroupMachine::GroupMachine(Rules rules, int local_world_size)
    : rules_(std::move(rules)), local_world_size_(local_world_size) {}

std::vector<Action> GroupMachine::on(const Event& event) {
  if (!has_row(state_, event)) return {};
  return std::visit([this](const auto& what) { return handle(what); }, event);
}

GroupMachine::Actions GroupMachine::start_attempt() {
  state_ = State::starting;
  running_.clear();
  for (int local_rank = 0; local_rank < local_world_size_; ++local_rank) running_.insert(local_rank);
  first_failure_.reset();
  succeeded_ = false;
  stop_pending_ = false;
  skew_running_ = false;
  return {action::SpawnWorkers{attempt_}};
}

GroupMachine::Actions GroupMachine::take_down(int signal) {
  stop_signal_ = signal;
  if (state_ == State::starting) {  // once the spawning is over
    stop_pending_ = true;
    return {};
  }
  if (rules_.stop.grace.count() == 0 || signal == SIGKILL) return kill();
  state_ = State::stopping;
  return {action::SignalGroup{signal}, action::StartGrace{rules_.stop.grace}, action::CheckGone{}};
}

GroupMachine::Actions GroupMachine::kill() {
  state_ = State::killing;
  return {action::KillGroup{}, action::CheckGone{}};
}

GroupMachine::Actions GroupMachine::handle(const event::Start&) {
  state_ = State::rendezvous;
  return {action::Join{}};
}

GroupMachine::Actions GroupMachine::handle(const event::Spawned&) {
  state_ = State::running;
  if (stop_pending_) return take_down(stop_signal_);
  if (running_.empty()) return all_succeeded();
  if (static_cast<int>(running_.size()) < local_world_size_) return start_skew();
  return {};
}

GroupMachine::Actions GroupMachine::start_skew() {
  if (!rules_.exit_skew || std::exchange(skew_running_, true)) return {};
  return {action::StartSkew{*rules_.exit_skew}};
}

/// What the last one left behind gets the same stop as a running group.
GroupMachine::Actions GroupMachine::all_succeeded() {
  succeeded_ = true;
  Actions actions{action::SendSucceeded{}};
  for (auto& action : take_down(SIGTERM)) actions.push_back(std::move(action));
  return actions;
}

GroupMachine::Actions GroupMachine::handle(const event::SpawnFailed& failed) {
  // Those that were never started will not end.
  job_is_ending_ = true;
  verdict_ = Verdict::launcher_failed;
  message_ = failed.message;
  launcher_code_ = failed.code;
  state_ = State::running;
  Actions actions{action::SendAbort{{rendezvous::AbortKind::cannot_go_on, failed.code, failed.message}}};
  for (auto& action : take_down(SIGTERM)) actions.push_back(std::move(action));
  return actions;
}

GroupMachine::Actions GroupMachine::handle(const event::WorkerEnded& ended) {
  running_.erase(ended.local_rank);
  const bool success = is_success(ended.status, rules_.restart);
  if (state_ != State::starting && state_ != State::running) return {};
  if (success) {
    if (state_ != State::running) return {};
    return running_.empty() ? all_succeeded() : start_skew();
  }
  if (first_failure_ || job_is_ending_) return {};
  first_failure_ = ended.local_rank;
  Actions actions{action::SendFailed{ended.local_rank, ended.status}};
  for (auto& action : take_down(SIGTERM)) actions.push_back(std::move(action));
  return actions;
}

GroupMachine::Actions GroupMachine::handle(const event::GroupGone&) {
  state_ = State::closing;
  Actions actions = pending_abandon();
  actions.emplace_back(action::CloseOutput{});
  return actions;
}

GroupMachine::Actions GroupMachine::handle(const event::GraceExpired&) { return kill(); }

GroupMachine::Actions GroupMachine::handle(const event::KillExpired& expired) {
  Actions actions;
  if (!job_succeeded()) {
    // A new group beside the remains of the old one would be two jobs.
    job_is_ending_ = true;
    verdict_ = Verdict::launcher_failed;
    message_ = concat("processes of the job cannot be killed: ", expired.left,
                      "; they hang inside the kernel (state D) or belong to another user; not restarting beside them");
    actions.emplace_back(action::SendAbort{{rendezvous::AbortKind::cannot_go_on, launcher_code_, message_}});
  }
  state_ = State::closing;
  for (auto& action : pending_abandon()) actions.push_back(std::move(action));
  actions.emplace_back(action::CloseOutput{});
  return actions;
}

GroupMachine::Actions GroupMachine::handle(const event::OutputClosed&) {
  Actions actions{action::SendStopped{}};
  if (!awaits_verdict_) {
    for (auto& action : finish()) actions.push_back(std::move(action));
  } else {
    state_ = State::rendezvous;
  }
  return actions;
}

GroupMachine::Actions GroupMachine::finish() {
  state_ = State::finished;
  return {action::Finish{}};
}

bool GroupMachine::job_succeeded() const {
  // With other machines the job goes on there.
  return only_node_ && succeeded_ && !job_is_ending_;
}

GroupMachine::Actions GroupMachine::end_job(Verdict verdict, int signal_for_workers) {
  job_is_ending_ = true;
  verdict_ = verdict;
  switch (state_) {
    case State::idle: return finish();
    case State::rendezvous: return !awaits_verdict_ ? finish() : Actions{};
    case State::starting:
    case State::running: return take_down(signal_for_workers);
    case State::stopping:
    case State::killing:
    case State::closing:
    case State::finished: return {};
  }
  return {};
}

GroupMachine::Actions GroupMachine::handle(const event::JobTimeout&) {
  // All went well: the time is up, but so is the job.
  if (job_is_ending_ || job_succeeded()) return {};
  Actions actions{action::SendAbort{
      rendezvous::AbortKind::time_is_up, exit_codes::timed_out,
      concat("the job ran for ", format_duration(rules_.job_limit), ", the limit set with --timeout")}};
  for (auto& action : end_job(Verdict::timed_out, SIGTERM)) actions.push_back(std::move(action));
  return actions;
}

GroupMachine::Actions GroupMachine::handle(const event::EndingSignal& ending) {
  return ending_signal_ != 0 ? handle_repeated_signal(ending) : handle_first_signal(ending);
}

GroupMachine::Actions GroupMachine::handle_first_signal(const event::EndingSignal& ending) {
  ending_signal_ = ending.signal;
  signal_sender_ = ending.sender;
  const bool was_taking_down = taking_down();
  // No worker is left whose work is worth waiting for: Ctrl-C ends what the workers have left behind.
  const bool kills_leftovers =
      state_ == State::stopping && running_.empty() && (ending.signal == SIGINT || ending.signal == SIGQUIT);
  if (job_succeeded()) return kills_leftovers ? kill() : Actions{};  // only clearing up
  if (verdict_ == Verdict::timed_out || verdict_ == Verdict::launcher_failed) return {};
  Actions actions{action::SendLeave{{ending.signal, ending.sender}}};
  if (!rules_.runs_coordinator()) awaits_verdict_ = false;
  for (auto& action : end_job(Verdict::stopped_by_signal, ending.signal)) actions.push_back(std::move(action));
  if (was_taking_down && state_ == State::stopping) {
    if (kills_leftovers) {
      for (auto& action : kill()) actions.push_back(std::move(action));
    } else {
      actions.emplace_back(action::SignalGroup{ending.signal});
    }
  }
  return actions;
}

GroupMachine::Actions GroupMachine::handle_repeated_signal(const event::EndingSignal& ending) {
  if (!ending.at_once) return {};
  awaits_verdict_ = false;
  if (state_ == State::rendezvous) return finish();
  if (state_ == State::starting) {
    rules_.stop.grace = Milliseconds{0};
    return {};
  }
  // Afterwards no process is left to be killed.
  return state_ == State::stopping || state_ == State::running ? kill() : Actions{};
}

GroupMachine::Actions GroupMachine::handle(const event::ParentLost& lost) {
  if (job_is_ending_ || job_succeeded()) return {};
  message_ = lost.message;
  awaits_verdict_ = false;
  abandon_pending_ = true;
  // The others take the end of the connection for that of the workers here.
  const bool has_workers = state_ == State::starting || state_ == State::running || taking_down();
  Actions actions = has_workers ? Actions{} : pending_abandon();
  for (auto& action : end_job(Verdict::launcher_failed, SIGTERM)) actions.push_back(std::move(action));
  return actions;
}

GroupMachine::Actions GroupMachine::pending_abandon() {
  return std::exchange(abandon_pending_, false) ? Actions{action::Abandon{message_}} : Actions{};
}

GroupMachine::Actions GroupMachine::handle(const event::SkewExpired&) {
  if (!skew_running_ || job_is_ending_) return {};
  // On several machines ranks are the coordinator's to know.
  message_ = concat(only_node_ ? "rank" : "local rank", running_.size() == 1 ? " " : "s ",
                    fold_ranks({running_.begin(), running_.end()}), " still ran ", format_duration(*rules_.exit_skew),
                    " after the first worker had ended well (--exit-skew)");
  Actions actions{action::SendAbort{{rendezvous::AbortKind::skewed, exit_codes::timed_out, message_}}};
  for (auto& action : end_job(Verdict::timed_out, SIGTERM)) actions.push_back(std::move(action));
  return actions;
}

// ---- the part of the group's life that the coordinator decides about

GroupMachine::Actions GroupMachine::handle(const event::RoundBegins& round) {
  // It was on its way when the job's end was asked for here: nothing is started, and STOPPED is what the others wait
  // for.
  skipped_round_ = job_is_ending_;
  if (job_is_ending_) return {};
  attempt_ = round.restart_count;
  only_node_ = round.only_node;
  return start_attempt();
}

GroupMachine::Actions GroupMachine::handle(const event::StopOrdered& order) {
  if (state_ == State::rendezvous) {
    return std::exchange(skipped_round_, false) ? Actions{action::SendStopped{}} : Actions{};
  }
  if (state_ == State::stopping) return order.signal == SIGKILL ? kill() : Actions{};
  if (stop_pending_) {
    if (order.signal == SIGKILL) stop_signal_ = SIGKILL;
    return {};
  }
  return take_down(order.signal != 0 ? order.signal : SIGTERM);
}

GroupMachine::Actions GroupMachine::handle(const event::VerdictReceived&) {
  awaits_verdict_ = false;
  job_is_ending_ = true;
  switch (state_) {
    case State::idle:
    case State::rendezvous: return finish();
    case State::starting:
    case State::running: return take_down(SIGTERM);
    default: return {};
  }
}

GroupMachine::Actions GroupMachine::handle(const event::CoordinatorLost& lost) {
  if (!awaits_verdict_) return {};
  awaits_verdict_ = false;
  if (job_is_ending_) return state_ == State::rendezvous ? finish() : Actions{};
  message_ = lost.message;
  return end_job(Verdict::node_lost, SIGTERM);
}

}  // namespace ddrun::agent
