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

/// Time for the stacks before a stop, at least.
constexpr Milliseconds shortest_reading{1'000};

constexpr std::array<std::string_view, 11> state_names{"idle",    "rendezvous", "preparing", "starting",
                                                       "serving", "running",    "looking",   "stopping",
                                                       "killing", "closing",    "finished"};
constexpr std::array<std::string_view, std::variant_size_v<Event>> event_names{
    "Start",         "Prepared",     "Spawned",        "SpawnFailed",    "WorkerEnded",   "RankFailed",
    "WorkersKilled", "StacksRead",   "GroupGone",      "GraceExpired",   "KillExpired",   "OutputClosed",
    "JobTimeout",    "EndingSignal", "ParentLost",     "SkewExpired",    "ServicesReady", "ReadyExpired",
    "RoundBegins",   "StopOrder",    "VerdictMessage", "CoordinatorLost"};

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
constexpr Step on(GroupState from, std::initializer_list<GroupState> next, unsigned taken = 0) {
  Step step{from, events<Kinds...>, 0, taken, false};
  for (const GroupState state : next) step.next |= 1U << static_cast<unsigned>(state);
  return step;
}
template <class... Kinds>
constexpr Step ignore(GroupState from) {
  return {from, events<Kinds...>, 0, 0, true};
}

/// GiveUpStacks, and a LEAVE that waits, come before all that leads out of `looking`. With a grace time of 0 a group
/// goes to `killing` at once. Actions of a stop that begins while workers are spawned are carried out when the spawning
/// has been given up.
constexpr auto table = [] {
  using enum GroupState;
  using namespace event;
  using namespace action;
  using rendezvous::CoordinatorLost;
  using rendezvous::RoundBegins;
  using rendezvous::StopOrder;
  using rendezvous::VerdictMessage;
  constexpr unsigned send = actions<Send>;
  constexpr unsigned kill = actions<KillGroup, CheckGone>;
  constexpr unsigned stop = actions<SignalGroup, StartGrace> | kill;
  constexpr unsigned cancel = actions<CancelPrepare>;
  constexpr unsigned look = actions<ReadStacks, StartGrace>;
  constexpr unsigned answer = actions<AnswerOrder>;
  constexpr unsigned close = actions<Abandon, CloseOutput>;
  constexpr unsigned margin = actions<StartServiceMargin>;
  return std::array{
      on<Start>(idle, {GroupState::rendezvous}, actions<Join>),
      on<JobTimeout, EndingSignal>(idle, {finished}, send | actions<Finish>),
      on<ParentLost>(idle, {finished}, actions<Abandon, Finish>),
      on<VerdictMessage, CoordinatorLost>(idle, {finished}, actions<Finish>),

      on<RoundBegins>(GroupState::rendezvous, {GroupState::rendezvous, preparing}, actions<Prepare>),
      on<JobTimeout, EndingSignal>(GroupState::rendezvous, {GroupState::rendezvous, finished}, send | actions<Finish>),
      on<ParentLost>(GroupState::rendezvous, {GroupState::rendezvous, finished}, actions<Abandon, Finish>),
      on<StopOrder>(GroupState::rendezvous, {GroupState::rendezvous}, send),
      on<VerdictMessage, CoordinatorLost>(GroupState::rendezvous, {GroupState::rendezvous, finished}, actions<Finish>),
      ignore<WorkerEnded, WorkersKilled>(GroupState::rendezvous),  // one that SIGKILL did not end in time

      on<Prepared>(preparing, {starting, stopping, killing}, stop | actions<SpawnWorkers>),
      on<SpawnFailed>(preparing, {stopping, killing}, stop | send),
      on<JobTimeout, EndingSignal>(preparing, {preparing}, cancel | send),
      on<ParentLost, StopOrder, VerdictMessage, CoordinatorLost, WorkersKilled>(preparing, {preparing}, cancel),

      on<Spawned>(starting, {serving, running, stopping, killing}, stop | send | actions<AwaitReady, StartSkew>),
      on<SpawnFailed>(starting, {stopping, killing}, stop | send),
      on<WorkerEnded, RankFailed>(starting, {starting, stopping, killing}, stop | send | margin),
      on<JobTimeout, EndingSignal>(starting, {stopping, killing}, stop | send),
      on<ParentLost, StopOrder, VerdictMessage, CoordinatorLost, WorkersKilled>(starting, {stopping, killing}, stop),

      on<ServicesReady>(serving, {starting}, actions<SpawnWorkers>),
      on<ReadyExpired>(serving, {looking, stopping, killing}, stop | look | send),
      on<WorkerEnded>(serving, {serving, looking, stopping, killing}, stop | look | send | margin),
      on<RankFailed, SpawnFailed>(serving, {serving, stopping, killing}, stop | send),
      on<JobTimeout, EndingSignal>(serving, {looking, stopping, killing}, stop | look | send),
      on<StopOrder>(serving, {looking, stopping, killing}, stop | look),
      on<ParentLost, VerdictMessage, CoordinatorLost, WorkersKilled>(serving, {stopping, killing}, stop),
      ignore<SkewExpired>(serving),

      on<WorkerEnded>(running, {running, looking, stopping, killing}, stop | look | send | margin | actions<StartSkew>),
      on<RankFailed, SpawnFailed>(running, {running, stopping, killing}, stop | send),
      on<SkewExpired>(running, {running, looking, stopping, killing}, stop | look | send),
      on<JobTimeout, EndingSignal>(running, {looking, stopping, killing}, stop | look | send),
      on<StopOrder>(running, {looking, stopping, killing}, stop | look),
      on<ParentLost, VerdictMessage, CoordinatorLost, WorkersKilled>(running, {stopping, killing}, stop),

      on<StacksRead>(looking, {stopping, killing}, stop),
      on<WorkerEnded>(looking, {looking, stopping, killing}, stop),
      on<GroupGone>(looking, {closing}, close),
      on<GraceExpired>(looking, {killing}, kill),
      on<JobTimeout, SpawnFailed>(looking, {looking}, send),
      on<EndingSignal>(looking, {looking, killing}, kill | send),
      on<StopOrder>(looking, {looking, stopping, killing}, stop | answer),
      on<ParentLost, VerdictMessage, CoordinatorLost, WorkersKilled>(looking, {stopping, killing}, stop),
      ignore<RankFailed, SkewExpired>(looking),

      on<GroupGone>(stopping, {closing}, close),
      on<StopOrder, WorkersKilled>(stopping, {stopping, killing}, kill | actions<StartGrace>),
      on<GraceExpired>(stopping, {looking, killing}, kill | look),
      on<SpawnFailed>(stopping, {stopping}, send),
      on<JobTimeout>(stopping, {stopping}, send),
      on<EndingSignal>(stopping, {stopping, killing}, kill | send | actions<SignalGroup>),
      on<WorkerEnded, ParentLost, VerdictMessage, CoordinatorLost>(stopping, {stopping}),
      ignore<RankFailed, Spawned, SkewExpired>(stopping),

      on<GroupGone>(killing, {closing}, close),
      on<KillExpired>(killing, {closing}, close | send),
      on<SpawnFailed>(killing, {killing}, send),
      on<JobTimeout, EndingSignal>(killing, {killing}, send),
      on<WorkerEnded, ParentLost, VerdictMessage, CoordinatorLost>(killing, {killing}),
      ignore<RankFailed, Spawned, StopOrder, WorkersKilled, SkewExpired>(killing),

      on<OutputClosed>(closing, {GroupState::rendezvous, finished}, send | actions<Finish>),
      on<JobTimeout, EndingSignal>(closing, {closing}, send),
      on<ParentLost>(closing, {closing}, actions<Abandon>),
      on<VerdictMessage, CoordinatorLost>(closing, {closing}),
      // GroupGone: from a CheckGone that was queued before.
      ignore<WorkerEnded, WorkersKilled, GroupGone, StopOrder>(closing),

      ignore<WorkerEnded, WorkersKilled, JobTimeout, EndingSignal, ParentLost>(finished),
      ignore<RoundBegins, StopOrder, VerdictMessage, CoordinatorLost>(finished),
  };
}();

}  // namespace rows

}  // namespace

std::string_view name(GroupState state) { return state_names[static_cast<std::size_t>(state)]; }
std::string_view name(const Event& event) { return event_names[event.index()]; }

std::span<const Step> state_table() { return rows::table; }

bool is_success(const ExitStatus& status, const RestartPolicy& policy) {
  const auto* exited = std::get_if<Exited>(&status);
  return exited != nullptr && policy.success_on.count(exited->code) != 0;
}

GroupMachine::GroupMachine(Rules rules, int workers, std::set<int> services)
    : rules_(std::move(rules)), services_(std::move(services)) {
  for (int slot = 0; slot < workers; ++slot) {
    if (!services_.contains(slot)) mains_.insert(slot);
  }
}

std::vector<Action> GroupMachine::step(const Event& event) {
  const auto row = std::find_if(rows::table.begin(), rows::table.end(),
                                [&](const Step& one) { return one.applies_to(state_, event); });
  Decision decision{state_, {}};
  if (row == rows::table.end()) {
    decision = wrong_step(concat(name(event), " in the state ", name(state_)));
  } else if (!row->ignored) {
    decision = std::visit([this](const auto& what) { return handle(what); }, event);
    const bool allowed =
        row->may_lead_to(decision.next) && std::all_of(decision.actions.begin(), decision.actions.end(),
                                                       [&](const Action& action) { return row->may_cause(action); });
    if (!allowed) {
      decision =
          wrong_step(concat(name(event), " in the state ", name(state_), ", with what led to ", name(decision.next)));
    }
  }
  if (state_ == GroupState::looking && decision.next != state_) {
    if (pending_leave_) decision.actions.emplace(decision.actions.begin(), *std::exchange(pending_leave_, {}));
    decision.actions.emplace(decision.actions.begin(), action::GiveUpStacks{});
  }
  state_ = decision.next;
  return std::move(decision.actions);
}

GroupMachine::Decision GroupMachine::after(Actions first, Decision rest) {
  first.insert(first.end(), std::make_move_iterator(rest.actions.begin()), std::make_move_iterator(rest.actions.end()));
  return {rest.next, std::move(first)};
}

GroupMachine::Decision GroupMachine::take_down(int signal, action::ReadStacks stacks) {
  const bool kills = signal == SIGKILL || grace().count() == 0;
  if (state_ == GroupState::preparing) {
    if (next_stop_ == SIGKILL || (next_stop_ != 0 && !kills)) return stay();
    next_stop_ = kills ? SIGKILL : signal;
    return stay({action::CancelPrepare{signal == SIGKILL ? SIGKILL : SIGTERM}});
  }
  const bool all_spawned = state_ == GroupState::serving || state_ == GroupState::running;
  const bool workers_run = !only_leftovers() && (all_spawned || state_ == GroupState::stopping);
  if (stacks.why.empty() || !workers_run) return stop_group(signal);
  next_stop_ = kills ? SIGKILL : signal;
  answer_due_ = all_spawned;
  looks_at_all_ = stacks.scope != action::ReadStacks::Scope::machine;
  if (kills) return {GroupState::looking, {std::move(stacks)}};
  // The grace time counts from here, and half of it is the workers'; a short one follows the reading.
  stacks.limit = std::max(grace() / 2, shortest_reading);
  if (grace() < 2 * shortest_reading) return {GroupState::looking, {std::move(stacks)}};
  return {GroupState::looking, {std::move(stacks), action::StartGrace{grace()}}};
}

GroupMachine::Decision GroupMachine::at_once(Decision rest) const {
  if (state_ != GroupState::looking || rest.next != state_) return rest;
  return after(std::move(rest.actions), stop_group(next_stop_));
}

GroupMachine::Decision GroupMachine::stop_group(int signal) const {
  if (grace().count() == 0 || signal == SIGKILL) return kill();
  return {GroupState::stopping, {action::SignalGroup{signal}, action::StartGrace{grace()}, action::CheckGone{}}};
}

GroupMachine::Decision GroupMachine::kill() {
  return {GroupState::killing, {action::KillGroup{}, action::CheckGone{}}};
}

GroupMachine::Decision GroupMachine::handle(const event::Start&) { return {GroupState::rendezvous, {action::Join{}}}; }

GroupMachine::Decision GroupMachine::handle(const event::Prepared&) {
  if (next_stop_ != 0) return stop_group(next_stop_);
  const Part first = services_.empty() ? Part::mains : Part::services;
  return {GroupState::starting, {action::SpawnWorkers{attempt_, first}}};
}

GroupMachine::Decision GroupMachine::handle(const event::Spawned& spawned) {
  if (spawned.part == Part::services) return {GroupState::serving, {action::AwaitReady{}}};
  if (running_.empty()) return all_succeeded();
  return {GroupState::running, running_.size() < mains_.size() ? start_skew() : Actions{}};
}

GroupMachine::Decision GroupMachine::handle(const event::ServicesReady&) {
  return {GroupState::starting, {action::SpawnWorkers{attempt_, Part::mains}}};
}

GroupMachine::Decision GroupMachine::handle(const event::ReadyExpired& expired) {
  message_ = expired.message;
  return after({leave(rendezvous::LeaveKind::skewed, exit_codes::timed_out, message_)},
               end_job(Verdict::timed_out, SIGTERM, {.why = "at the end of --ready-timeout", .slots = expired.slots}));
}

GroupMachine::Actions GroupMachine::start_skew() {
  if (!rules_.exit_skew || std::exchange(skew_running_, true)) return {};
  return {action::StartSkew{*rules_.exit_skew}};
}

/// Services, and processes that workers left behind, are stopped like a running group.
GroupMachine::Decision GroupMachine::all_succeeded() {
  succeeded_ = true;
  return after({action::Send{rendezvous::Succeeded{round_}}}, stop_group(SIGTERM));
}

GroupMachine::Actions GroupMachine::cannot_go_on(std::string message, int code) {
  job_is_ending_ = true;
  verdict_ = Verdict::launcher_failed;
  message_ = std::move(message);
  launcher_code_ = code;
  return {leave(rendezvous::LeaveKind::cannot_go_on, code, message_)};
}

GroupMachine::Decision GroupMachine::wrong_step(std::string what) {
  if (state_ == GroupState::finished) return stay();
  Actions leave = cannot_go_on("took a wrong step, a defect of ddrun: " + what);
  return after(std::move(leave), at_once(end_job(Verdict::launcher_failed, SIGTERM)));
}

GroupMachine::Decision GroupMachine::handle(const event::SpawnFailed& failed) {
  // --before that was cancelled fails, too.
  if (state_ == GroupState::preparing && next_stop_ != 0) return stop_group(next_stop_);
  return after(cannot_go_on(failed.message, failed.code), taking_down() ? stay() : stop_group(SIGTERM));
}

GroupMachine::Decision GroupMachine::handle(const event::WorkerEnded& ended) {
  const bool is_service = services_.contains(ended.slot);
  (is_service ? serving_ : running_).erase(ended.slot);
  const bool success = is_success(ended.status, rules_.restart);
  // The page of all machines comes without them, too.
  const bool is_last = running_.empty() && serving_.empty() && !looks_at_all_;
  if (taking_down()) return is_last ? at_once(stay()) : stay();
  if (success && is_service) {
    return std::exchange(margin_running_, true) ? stay() : stay({action::StartServiceMargin{ended.slot}});
  }
  if (success) {
    if (state_ != GroupState::running) return stay();
    return running_.empty() ? all_succeeded() : stay(start_skew());
  }
  rendezvous::Failed failed{round_, ended.name.rank, ended.local_rank, ended.pid};
  failed.role = ended.name.role;
  failed.why = ended.why;
  if (const auto* signaled = std::get_if<Signaled>(&ended.status)) {
    failed.by_signal = true;
    failed.code = signaled->signal;
    failed.core_dumped = signaled->core_dumped;
  } else {
    failed.code = std::get<Exited>(ended.status).code;
  }
  return fail_attempt(ended.slot, std::move(failed), ended.hang.empty() ? "" : "after " + ended.hang);
}

GroupMachine::Decision GroupMachine::handle(const event::RankFailed& rank) {
  rendezvous::Failed failed{round_, rank.name.rank, rank.local_rank, rank.pid};
  failed.code = rank.code;
  failed.role = rank.name.role;
  failed.why = rank.what;
  failed.declared = true;
  return fail_attempt(rank.slot, std::move(failed), "");
}

GroupMachine::Decision GroupMachine::fail_attempt(int slot, rendezvous::Failed failed, std::string why) {
  if (first_failure_ || job_is_ending_) return stay();
  first_failure_ = slot;
  failed.may_restart = failed.by_signal || rules_.restart.no_restart_on.count(failed.code) == 0;
  failed.waited = !why.empty();
  const auto scope = rules_.several_machines ? action::ReadStacks::Scope::order : action::ReadStacks::Scope::machine;
  return after({action::Send{std::move(failed)}}, take_down(SIGTERM, {.why = std::move(why), .scope = scope}));
}

GroupMachine::Decision GroupMachine::handle(const event::WorkersKilled&) {
  next_stop_ = SIGKILL;
  return state_ == GroupState::preparing ? stay({action::CancelPrepare{SIGKILL}}) : kill();
}

GroupMachine::Decision GroupMachine::handle(const event::StacksRead&) { return at_once(stay()); }

GroupMachine::Decision GroupMachine::handle(const event::GroupGone&) {
  return after(pending_abandon(), {GroupState::closing, {action::CloseOutput{}}});
}

GroupMachine::Decision GroupMachine::handle(const event::GraceExpired& expired) {
  // With a bound from elsewhere the next round counts on it.
  if (state_ == GroupState::looking || max_grace_ < rules_.stop.grace) return kill();
  return take_down(SIGKILL, {.why = concat("when the grace time of ", format_duration(expired.duration), " ended"),
                             .finds_cause = false});
}

GroupMachine::Decision GroupMachine::handle(const event::KillExpired& expired) {
  Actions actions;
  if (!job_succeeded()) {
    // No restart beside processes of the old attempt.
    actions = cannot_go_on(concat("processes of the job cannot be killed: ", expired.left,
                                  "; they hang inside the kernel (state D) or belong to another user; not restarting "
                                  "beside them"),
                           launcher_code_);
  }
  return after(std::move(actions), after(pending_abandon(), {GroupState::closing, {action::CloseOutput{}}}));
}

GroupMachine::Decision GroupMachine::handle(const event::OutputClosed& closed) {
  rendezvous::Stopped stopped = closed.report;
  stopped.round = round_;
  return after({action::Send{std::move(stopped)}}, awaits_verdict_ ? Decision{GroupState::rendezvous, {}} : finish());
}

GroupMachine::Decision GroupMachine::finish() { return {GroupState::finished, {action::Finish{}}}; }

bool GroupMachine::job_succeeded() const {
  // With other nodes the job continues there.
  return only_node_ && succeeded_ && !job_is_ending_;
}

GroupMachine::Decision GroupMachine::end_job(Verdict verdict, int signal_for_workers, action::ReadStacks stacks) {
  job_is_ending_ = true;
  verdict_ = verdict;
  if (state_ == GroupState::idle || (state_ == GroupState::rendezvous && !awaits_verdict_)) return finish();
  const bool has_attempt = state_ >= GroupState::preparing && state_ <= GroupState::running;
  return has_attempt ? take_down(signal_for_workers, std::move(stacks)) : stay();
}

GroupMachine::Decision GroupMachine::leave_job(action::Send leave, Verdict verdict, int signal_for_workers,
                                               action::ReadStacks stacks) {
  if (rules_.several_machines) stacks.scope = action::ReadStacks::Scope::asks;
  const bool asks = rules_.several_machines && !stacks.why.empty();
  Decision decision = end_job(verdict, signal_for_workers, std::move(stacks));
  // The coordinator stops all workers at LEAVE.
  if (!asks || state_ == GroupState::looking || decision.next != GroupState::looking) {
    return after({std::move(leave)}, std::move(decision));
  }
  pending_leave_ = std::move(leave);
  answer_due_ = false;
  return decision;
}

GroupMachine::Decision GroupMachine::handle(const event::JobTimeout&) {
  if (job_is_ending_ || job_succeeded()) return stay();
  const std::string limit = format_duration(rules_.job_limit);
  return leave_job(leave(rendezvous::LeaveKind::time_is_up, exit_codes::timed_out,
                         concat("the job ran for ", limit, ", the limit set with --timeout")),
                   Verdict::timed_out, SIGTERM, {.why = concat("after ", limit, " (--timeout)")});
}

GroupMachine::Decision GroupMachine::handle(const event::EndingSignal& ending) {
  return ending_signal_ != 0 ? handle_repeated_signal(ending) : handle_first_signal(ending);
}

GroupMachine::Decision GroupMachine::handle_first_signal(const event::EndingSignal& ending) {
  ending_signal_ = ending.signal;
  signal_sender_ = ending.sender;
  // All workers have ended: Ctrl-C kills what they left behind.
  const bool kills_leftovers =
      state_ == GroupState::stopping && only_leftovers() && (ending.signal == SIGINT || ending.signal == SIGQUIT);
  if (job_succeeded()) return kills_leftovers ? kill() : stay();
  if (verdict_ == Verdict::timed_out || verdict_ == Verdict::launcher_failed) return stay();
  if (!rules_.runs_coordinator()) awaits_verdict_ = false;
  const auto left = leave(rendezvous::LeaveKind::signalled, ending.signal, ending.sender);
  if (state_ == GroupState::serving || state_ == GroupState::running) {
    return leave_job(left, Verdict::stopped_by_signal, ending.signal,
                     {.why = ending.signal == SIGQUIT ? "at SIGQUIT" : ""});
  }
  Decision decision = end_job(Verdict::stopped_by_signal, ending.signal);
  if (state_ == GroupState::stopping) decision = kills_leftovers ? kill() : stay({action::SignalGroup{ending.signal}});
  if (state_ == GroupState::looking) {
    answer_due_ = true;
    if (next_stop_ != SIGKILL) next_stop_ = ending.signal;
  }
  return after({left}, std::move(decision));
}

GroupMachine::Decision GroupMachine::handle_repeated_signal(const event::EndingSignal& ending) {
  if (!ending.at_once) return stay();
  awaits_verdict_ = false;
  if (state_ == GroupState::rendezvous) return finish();
  if (state_ == GroupState::preparing) return take_down(SIGKILL);
  return state_ < GroupState::killing ? kill() : stay();
}

GroupMachine::Decision GroupMachine::handle(const event::ParentLost& lost) {
  if (job_is_ending_ || job_succeeded()) return at_once(stay());
  message_ = lost.message;
  awaits_verdict_ = false;
  abandon_pending_ = true;
  // Other nodes take the end of the connection for the end of the workers here, so Abandon waits for that.
  const bool has_workers = state_ >= GroupState::preparing && state_ <= GroupState::killing;
  return after(has_workers ? Actions{} : pending_abandon(), at_once(end_job(Verdict::launcher_failed, SIGTERM)));
}

GroupMachine::Actions GroupMachine::pending_abandon() {
  return std::exchange(abandon_pending_, false) ? Actions{action::Abandon{message_}} : Actions{};
}

GroupMachine::Decision GroupMachine::handle(const event::SkewExpired&) {
  if (!skew_running_ || job_is_ending_) return stay();
  // On several machines only the coordinator knows all ranks.
  const std::string names = rules_.name_workers
                                ? rules_.name_workers(running_)
                                : concat(only_node_ ? "" : "local ", name_ranks({running_.begin(), running_.end()}));
  message_ = concat(names, " still ran ", format_duration(*rules_.exit_skew),
                    " after the first worker had ended well (--exit-skew)");
  return leave_job(leave(rendezvous::LeaveKind::skewed, exit_codes::timed_out, message_), Verdict::timed_out, SIGTERM,
                   {.why = "at the end of --exit-skew"});
}

// ---- events from the coordinator

GroupMachine::Decision GroupMachine::handle(const rendezvous::RoundBegins& begins) {
  round_ = begins.round;
  // START crossed with the end of the job here: no worker is started, and the coordinator waits for STOPPED.
  skipped_round_ = job_is_ending_;
  if (job_is_ending_) return stay();
  attempt_ = begins.ranks.restart_count;
  only_node_ = begins.ranks.node_count == 1;
  running_ = mains_;
  serving_ = services_;
  first_failure_.reset();
  succeeded_ = false;
  next_stop_ = 0;
  max_grace_ = Milliseconds::max();
  skew_running_ = margin_running_ = false;
  return {GroupState::preparing, {action::Prepare{}}};
}

GroupMachine::Decision GroupMachine::handle(const rendezvous::StopOrder& order) {
  if (state_ == GroupState::rendezvous) {
    const bool skipped = std::exchange(skipped_round_, false);
    return skipped ? stay({action::Send{rendezvous::Stopped{round_}}}) : stay();
  }
  max_grace_ = std::min(max_grace_, order.max_grace);
  if (taking_down() && order.signal == SIGKILL) return kill();
  if (state_ == GroupState::looking) {
    // The coordinator's answer to what was sent can wait.
    const bool is_answer = (std::exchange(answer_due_, false) || order.look != 0) &&
                           order.max_grace == Milliseconds::max() &&
                           (order.signal == 0 || order.signal == ending_signal_);
    if (!is_answer) return at_once(stay());
    return looks_at_all_ ? stay({action::AnswerOrder{order.look, order.awaits_page}}) : stay();
  }
  if (state_ == GroupState::stopping) {
    return max_grace_ < rules_.stop.grace ? stay({action::StartGrace{max_grace_}}) : stay();
  }
  action::ReadStacks stacks;
  if (order.look != 0 && order.signal != SIGKILL) {
    const std::size_t end = std::min(order.why.find(": "), order.why.find(';'));  // without reason and restart
    stacks = {.why = concat("after ", order.why.substr(0, end)),
              .scope = action::ReadStacks::Scope::order,
              .look = order.look,
              .awaits_page = order.awaits_page};
  }
  return take_down(order.signal != 0 ? order.signal : SIGTERM, std::move(stacks));
}

GroupMachine::Decision GroupMachine::handle(const rendezvous::VerdictMessage&) {
  awaits_verdict_ = false;
  return at_once(end_job(verdict_, SIGTERM));
}

GroupMachine::Decision GroupMachine::handle(const rendezvous::CoordinatorLost& lost) {
  if (!std::exchange(awaits_verdict_, false)) return at_once(stay());
  if (job_is_ending_) return state_ == GroupState::rendezvous ? finish() : at_once(stay());
  message_ = lost.why;
  return at_once(end_job(Verdict::node_lost, SIGTERM));
}

}  // namespace ddrun::agent
