#include "group_machine.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::agent {

namespace {

constexpr std::array<std::string_view, 8> state_names{"idle",     "rendezvous", "starting", "running",
                                                      "stopping", "killing",    "closing",  "finished"};
constexpr std::array<std::string_view, std::variant_size_v<Event>> event_names{
    "Start",       "Spawned",      "SpawnFailed",     "WorkerEnded",    "GroupGone",  "GraceExpired",
    "KillExpired", "OutputClosed", "JobTimeout",      "EndingSignal",   "ParentLost", "SkewExpired",
    "RoundBegins", "StopOrdered",  "VerdictReceived", "CoordinatorLost"};

namespace rows {

template <class Kind, class... Kinds>
constexpr unsigned bit_in(const std::variant<Kinds...>* /*list*/) {
  unsigned index = 0;
  (void)((std::is_same_v<Kind, Kinds> || (++index, false)) || ...);
  return 1U << index;
}
template <class... Kinds>
constexpr unsigned events = (bit_in<Kinds>(static_cast<const Event*>(nullptr)) | ...);
template <class... Kinds>
constexpr unsigned actions = (bit_in<Kinds>(static_cast<const Action*>(nullptr)) | ...);

template <class... Kinds>
constexpr Step on(State from, std::initializer_list<State> next, unsigned taken = 0) {
  Step step{from, events<Kinds...>, 0, taken, false};
  for (const State state : next) step.next |= 1U << static_cast<unsigned>(state);
  return step;
}
template <class... Kinds>
constexpr Step ignore(State from) {
  return {from, events<Kinds...>, 0, 0, true};
}

/// With a grace time of 0 a group goes to `killing` at once. What comes while workers are spawned takes effect when
/// all are.
constexpr auto table = [] {
  using enum State;
  using namespace event;
  using namespace action;
  constexpr unsigned kill = actions<KillGroup, CheckGone>;
  constexpr unsigned stop = actions<SignalGroup, StartGrace> | kill;
  constexpr unsigned cancel = actions<CancelSpawn>;
  constexpr unsigned stacks = actions<ReadStacks>;
  constexpr unsigned close = actions<Abandon, CloseOutput>;
  return std::array{
      on<Start>(idle, {State::rendezvous}, actions<Join>),
      on<JobTimeout, EndingSignal>(idle, {finished}, actions<SendLeave, Finish>),
      on<ParentLost>(idle, {finished}, actions<Abandon, Finish>),
      on<VerdictReceived, CoordinatorLost>(idle, {finished}, actions<Finish>),

      on<RoundBegins>(State::rendezvous, {State::rendezvous, starting}, actions<SpawnWorkers>),
      on<JobTimeout, EndingSignal>(State::rendezvous, {State::rendezvous, finished}, actions<SendLeave, Finish>),
      on<ParentLost>(State::rendezvous, {State::rendezvous, finished}, actions<Abandon, Finish>),
      on<StopOrdered>(State::rendezvous, {State::rendezvous}, actions<SendStopped>),
      on<VerdictReceived, CoordinatorLost>(State::rendezvous, {State::rendezvous, finished}, actions<Finish>),
      ignore<WorkerEnded>(State::rendezvous),  // one that SIGKILL did not end in time

      on<Spawned>(starting, {running, stopping, killing}, stop | actions<SendSucceeded, StartSkew>),
      on<SpawnFailed>(starting, {stopping, killing}, stop | actions<SendLeave>),
      on<WorkerEnded>(starting, {starting}, cancel | actions<SendFailed>),
      on<JobTimeout, EndingSignal>(starting, {starting}, cancel | actions<SendLeave>),
      on<ParentLost, StopOrdered, VerdictReceived, CoordinatorLost>(starting, {starting}, cancel),

      on<WorkerEnded>(running, {running, stopping, killing},
                      stop | stacks | actions<SendFailed, SendSucceeded, StartSkew>),
      on<SkewExpired>(running, {running, stopping, killing}, stop | stacks | actions<SendLeave>),
      on<JobTimeout, EndingSignal>(running, {stopping, killing}, stop | stacks | actions<SendLeave>),
      on<ParentLost, StopOrdered, VerdictReceived, CoordinatorLost>(running, {stopping, killing}, stop),

      on<GroupGone>(stopping, {closing}, close),
      on<StopOrdered>(stopping, {stopping, killing}, kill | actions<StartGrace>),
      on<GraceExpired>(stopping, {killing}, kill | stacks),
      on<JobTimeout>(stopping, {stopping}, actions<SendLeave>),
      on<EndingSignal>(stopping, {stopping, killing}, kill | actions<SendLeave, SignalGroup>),
      on<WorkerEnded, ParentLost, VerdictReceived, CoordinatorLost>(stopping, {stopping}),
      ignore<SkewExpired>(stopping),

      on<GroupGone>(killing, {closing}, close),
      on<KillExpired>(killing, {closing}, close | actions<SendLeave>),
      on<JobTimeout, EndingSignal>(killing, {killing}, actions<SendLeave>),
      on<WorkerEnded, ParentLost, VerdictReceived, CoordinatorLost>(killing, {killing}),
      ignore<StopOrdered, SkewExpired>(killing),

      on<OutputClosed>(closing, {State::rendezvous, finished}, actions<SendStopped, Finish>),
      on<JobTimeout, EndingSignal>(closing, {closing}, actions<SendLeave>),
      on<ParentLost>(closing, {closing}, actions<Abandon>),
      on<VerdictReceived, CoordinatorLost>(closing, {closing}),
      // GroupGone: from a CheckGone that was queued before.
      ignore<WorkerEnded, GroupGone, StopOrdered>(closing),

      ignore<WorkerEnded, JobTimeout, EndingSignal, ParentLost>(finished),
      ignore<RoundBegins, StopOrdered, VerdictReceived, CoordinatorLost>(finished),
  };
}();

}  // namespace rows

}  // namespace

std::string_view name(State state) { return state_names[static_cast<std::size_t>(state)]; }
std::string_view name(const Event& event) { return event_names[event.index()]; }

std::span<const Step> state_table() { return rows::table; }

bool is_success(const ExitStatus& status, const RestartPolicy& policy) {
  const auto* exited = std::get_if<Exited>(&status);
  return exited != nullptr && policy.success_on.count(exited->code) != 0;
}

GroupMachine::GroupMachine(Rules rules, int local_world_size)
    : rules_(std::move(rules)), local_world_size_(local_world_size) {}

Result<std::vector<Action>> GroupMachine::step(const Event& event) {
  const auto row = std::find_if(rows::table.begin(), rows::table.end(),
                                [&](const Step& one) { return one.applies_to(state_, event); });
  if (row == rows::table.end()) {
    return fail(Errc::invalid_argument, concat("event ", name(event), " cannot come in state ", name(state_)));
  }
  if (row->ignored) return Actions{};
  Decision decision = std::visit([this](const auto& what) { return handle(what); }, event);
  const bool allowed =
      row->may_lead_to(decision.next) && std::all_of(decision.actions.begin(), decision.actions.end(),
                                                     [&](const Action& action) { return row->may_cause(action); });
  if (!allowed) {
    return fail(Errc::invalid_argument, concat("the table has no step from state ", name(state_), " to ",
                                               name(decision.next), " with these actions on event ", name(event)));
  }
  state_ = decision.next;
  return std::move(decision.actions);
}

GroupMachine::Decision GroupMachine::after(Actions first, Decision rest) {
  first.insert(first.end(), std::make_move_iterator(rest.actions.begin()), std::make_move_iterator(rest.actions.end()));
  return {rest.next, std::move(first)};
}

GroupMachine::Decision GroupMachine::start_attempt() {
  running_.clear();
  for (int local_rank = 0; local_rank < local_world_size_; ++local_rank) running_.insert(local_rank);
  first_failure_.reset();
  succeeded_ = false;
  stop_pending_ = false;
  max_grace_ = Milliseconds::max();
  skew_running_ = false;
  return {State::starting, {action::SpawnWorkers{attempt_}}};
}

GroupMachine::Decision GroupMachine::take_down(int signal) {
  if (state_ != State::starting) return stop_group(signal);
  stop_signal_ = signal;
  return std::exchange(stop_pending_, true) ? stay() : stay({action::CancelSpawn{}});
}

GroupMachine::Decision GroupMachine::stop_group(int signal) const {
  const Milliseconds grace = std::min(rules_.stop.grace, max_grace_);
  if (grace.count() == 0 || signal == SIGKILL) return kill();
  return {State::stopping, {action::SignalGroup{signal}, action::StartGrace{grace}, action::CheckGone{}}};
}

GroupMachine::Decision GroupMachine::kill() { return {State::killing, {action::KillGroup{}, action::CheckGone{}}}; }

GroupMachine::Decision GroupMachine::handle(const event::Start&) { return {State::rendezvous, {action::Join{}}}; }

GroupMachine::Decision GroupMachine::handle(const event::Spawned&) {
  if (stop_pending_) return stop_group(stop_signal_);
  if (running_.empty()) return all_succeeded();
  const bool some_ended = static_cast<int>(running_.size()) < local_world_size_;
  return {State::running, some_ended ? start_skew() : Actions{}};
}

GroupMachine::Actions GroupMachine::start_skew() {
  if (!rules_.exit_skew || std::exchange(skew_running_, true)) return {};
  return {action::StartSkew{*rules_.exit_skew}};
}

/// Processes that workers left behind are stopped like a running group.
GroupMachine::Decision GroupMachine::all_succeeded() {
  succeeded_ = true;
  return after({action::SendSucceeded{}}, stop_group(SIGTERM));
}

GroupMachine::Decision GroupMachine::handle(const event::SpawnFailed& failed) {
  job_is_ending_ = true;
  verdict_ = Verdict::launcher_failed;
  message_ = failed.message;
  launcher_code_ = failed.code;
  return after({action::SendLeave{{rendezvous::LeaveKind::cannot_go_on, failed.code, failed.message}}},
               stop_group(SIGTERM));
}

GroupMachine::Decision GroupMachine::handle(const event::WorkerEnded& ended) {
  running_.erase(ended.local_rank);
  const bool success = is_success(ended.status, rules_.restart);
  if (taking_down()) return stay();
  if (success) {
    if (state_ != State::running) return stay();
    return running_.empty() ? all_succeeded() : stay(start_skew());
  }
  if (first_failure_ || job_is_ending_) return stay();
  first_failure_ = ended.local_rank;
  Decision decision = take_down(SIGTERM);
  if (!ended.hang.empty()) decision = after_stacks({"after " + ended.hang, true}, std::move(decision));
  return after({action::SendFailed{ended.local_rank, ended.status}}, std::move(decision));
}

GroupMachine::Decision GroupMachine::handle(const event::GroupGone&) {
  return after(pending_abandon(), {State::closing, {action::CloseOutput{}}});
}

GroupMachine::Decision GroupMachine::handle(const event::GraceExpired& expired) {
  return after_stacks({concat("when the grace time of ", format_duration(expired.duration), " ended")}, kill());
}

GroupMachine::Decision GroupMachine::handle(const event::KillExpired& expired) {
  Actions actions;
  if (!job_succeeded()) {
    // No restart beside processes of the old attempt.
    job_is_ending_ = true;
    verdict_ = Verdict::launcher_failed;
    message_ = concat("processes of the job cannot be killed: ", expired.left,
                      "; they hang inside the kernel (state D) or belong to another user; not restarting beside them");
    actions.emplace_back(action::SendLeave{{rendezvous::LeaveKind::cannot_go_on, launcher_code_, message_}});
  }
  return after(std::move(actions), after(pending_abandon(), {State::closing, {action::CloseOutput{}}}));
}

GroupMachine::Decision GroupMachine::handle(const event::OutputClosed&) {
  return after({action::SendStopped{}}, awaits_verdict_ ? Decision{State::rendezvous, {}} : finish());
}

GroupMachine::Decision GroupMachine::finish() { return {State::finished, {action::Finish{}}}; }

bool GroupMachine::job_succeeded() const {
  // With other nodes the job continues there.
  return only_node_ && succeeded_ && !job_is_ending_;
}

GroupMachine::Decision GroupMachine::end_job(Verdict verdict, int signal_for_workers) {
  job_is_ending_ = true;
  verdict_ = verdict;
  if (state_ == State::idle || (state_ == State::rendezvous && !awaits_verdict_)) return finish();
  return state_ == State::starting || state_ == State::running ? take_down(signal_for_workers) : stay();
}

GroupMachine::Decision GroupMachine::after_stacks(action::ReadStacks stacks, Decision rest) const {
  const bool workers_run = !running_.empty() && (state_ == State::running || state_ == State::stopping);
  if (!workers_run || rest.next == state_) return rest;
  return after({std::move(stacks)}, std::move(rest));
}

GroupMachine::Decision GroupMachine::handle(const event::JobTimeout&) {
  if (job_is_ending_ || job_succeeded()) return stay();
  return after({action::SendLeave{
                   {rendezvous::LeaveKind::time_is_up, exit_codes::timed_out,
                    concat("the job ran for ", format_duration(rules_.job_limit), ", the limit set with --timeout")}}},
               after_stacks({concat("after ", format_duration(rules_.job_limit), " (--timeout)")},
                            end_job(Verdict::timed_out, SIGTERM)));
}

GroupMachine::Decision GroupMachine::handle(const event::EndingSignal& ending) {
  return ending_signal_ != 0 ? handle_repeated_signal(ending) : handle_first_signal(ending);
}

GroupMachine::Decision GroupMachine::handle_first_signal(const event::EndingSignal& ending) {
  ending_signal_ = ending.signal;
  signal_sender_ = ending.sender;
  // All workers have ended: Ctrl-C kills what they left behind.
  const bool kills_leftovers =
      state_ == State::stopping && running_.empty() && (ending.signal == SIGINT || ending.signal == SIGQUIT);
  if (job_succeeded()) return kills_leftovers ? kill() : stay();
  if (verdict_ == Verdict::timed_out || verdict_ == Verdict::launcher_failed) return stay();
  if (!rules_.runs_coordinator()) awaits_verdict_ = false;
  Decision decision = end_job(Verdict::stopped_by_signal, ending.signal);
  if (ending.signal == SIGQUIT) decision = after_stacks({"at SIGQUIT"}, std::move(decision));
  if (state_ == State::stopping) decision = kills_leftovers ? kill() : stay({action::SignalGroup{ending.signal}});
  return after({action::SendLeave{{rendezvous::LeaveKind::signalled, ending.signal, ending.sender}}},
               std::move(decision));
}

GroupMachine::Decision GroupMachine::handle_repeated_signal(const event::EndingSignal& ending) {
  if (!ending.at_once) return stay();
  awaits_verdict_ = false;
  if (state_ == State::rendezvous) return finish();
  if (state_ == State::starting) {
    rules_.stop.grace = Milliseconds{0};
    return stay();
  }
  return state_ == State::stopping || state_ == State::running ? kill() : stay();
}

GroupMachine::Decision GroupMachine::handle(const event::ParentLost& lost) {
  if (job_is_ending_ || job_succeeded()) return stay();
  message_ = lost.message;
  awaits_verdict_ = false;
  abandon_pending_ = true;
  // Other nodes take the end of the connection for the end of the workers here, so Abandon waits for that.
  const bool has_workers = state_ == State::starting || state_ == State::running || taking_down();
  return after(has_workers ? Actions{} : pending_abandon(), end_job(Verdict::launcher_failed, SIGTERM));
}

GroupMachine::Actions GroupMachine::pending_abandon() {
  return std::exchange(abandon_pending_, false) ? Actions{action::Abandon{message_}} : Actions{};
}

GroupMachine::Decision GroupMachine::handle(const event::SkewExpired&) {
  if (!skew_running_ || job_is_ending_) return stay();
  // On several machines only the coordinator knows all ranks.
  message_ = concat(only_node_ ? "rank" : "local rank", running_.size() == 1 ? " " : "s ",
                    fold_ranks({running_.begin(), running_.end()}), " still ran ", format_duration(*rules_.exit_skew),
                    " after the first worker had ended well (--exit-skew)");
  return after({action::SendLeave{{rendezvous::LeaveKind::skewed, exit_codes::timed_out, message_}}},
               after_stacks({"at the end of --exit-skew"}, end_job(Verdict::timed_out, SIGTERM)));
}

// ---- events from the coordinator

GroupMachine::Decision GroupMachine::handle(const event::RoundBegins& round) {
  // START crossed with the end of the job here: no worker is started, and the coordinator waits for STOPPED.
  skipped_round_ = job_is_ending_;
  if (job_is_ending_) return stay();
  attempt_ = round.restart_count;
  only_node_ = round.only_node;
  return start_attempt();
}

GroupMachine::Decision GroupMachine::handle(const event::StopOrdered& order) {
  if (state_ == State::rendezvous) {
    return std::exchange(skipped_round_, false) ? stay({action::SendStopped{}}) : stay();
  }
  max_grace_ = std::min(max_grace_, order.max_grace);
  if (state_ == State::stopping) {
    if (order.signal == SIGKILL) return kill();
    return max_grace_ < rules_.stop.grace ? stay({action::StartGrace{max_grace_}}) : stay();
  }
  if (stop_pending_) {
    if (order.signal == SIGKILL) stop_signal_ = SIGKILL;
    return stay();
  }
  return take_down(order.signal != 0 ? order.signal : SIGTERM);
}

GroupMachine::Decision GroupMachine::handle(const event::VerdictReceived&) {
  awaits_verdict_ = false;
  return end_job(verdict_, SIGTERM);
}

GroupMachine::Decision GroupMachine::handle(const event::CoordinatorLost& lost) {
  if (!awaits_verdict_) return stay();
  awaits_verdict_ = false;
  if (job_is_ending_) return state_ == State::rendezvous ? finish() : stay();
  message_ = lost.message;
  return end_job(Verdict::node_lost, SIGTERM);
}

}  // namespace ddrun::agent
