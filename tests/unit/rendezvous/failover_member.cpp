#include "failover_member.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "codec.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "failover_world.hpp"
#include "order_marks.hpp"

namespace ddrun::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds heartbeat_interval{1};
constexpr Clock::duration silence_limit = heartbeat_bound;
constexpr int max_questions = 10;

MemberOptions member_options(const FailoverWorld& world, std::size_t index, std::size_t machine,
                             const std::string& host, int& agent_ids) {
  MemberOptions options;
  options.spec = world.scenario.spec();
  options.run_id = "job";
  options.host = host;
  options.is_explicit = true;
  options.new_agent_id = [index, &agent_ids] { return concat("agent", index, ".", ++agent_ids); };
  options.join.version = "1.0";
  options.join.job_id = "job";
  options.join.host = host;
  options.join.local_world_size = 1 + static_cast<std::uint32_t>(machine % 3);
  options.join.settings = world.scenario.settings();
  options.on_step = mark_steps("member");
  return options;
}

}  // namespace

SimulatedMember::SimulatedMember(FailoverWorld& world, std::size_t index, std::size_t machine, std::string host)
    : world_(world),
      index_(index),
      machine_(machine),
      host_(std::move(host)),
      member_(member_options(world, index, machine, host_, agent_ids_)),
      exchange_(world.scenario.exchanges) {}

void SimulatedMember::later(Clock::duration time, std::function<void()> what) {
  world_.timeline.in(time, [weak = weak_from_this(), what = std::move(what)] {
    if (const auto self = weak.lock()) self->turn(what);
  });
}

bool SimulatedMember::is_stopped() const { return world_.timeline.now() < stopped_until_; }

void SimulatedMember::turn(const std::function<void()>& what) {
  if (!is_alive_) return;
  if (!is_stopped()) return what();
  world_.timeline.at(stopped_until_, [weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) self->turn(what);
  });
}

void SimulatedMember::suspend_for(Clock::duration time, bool alone) {
  is_stopped_alone_ = alone && (is_stopped_alone_ || !is_stopped());
  const auto until = std::max(stopped_until_, world_.timeline.now() + time);
  const auto more = until - std::max(stopped_until_, world_.timeline.now());
  stopped_until_ = until;
  if (more <= heartbeat_interval) return;
  for (const auto& [number, server] : servers_) server->skip(more);
}

std::shared_ptr<SimulatedServer> SimulatedMember::server_of(std::uint64_t number) const {
  for (const auto& [unused, server] : servers_) {
    if (server->number() == number && server->is_open()) return server;
  }
  return nullptr;
}

// ---- the machine

void SimulatedMember::step(const MemberEvent& event) {
  if (!is_alive_) return;
  events_.push_back(event);
  if (events_.size() > 1) return;
  for (; !events_.empty(); events_.pop_front()) {
    const MemberEvent& now = events_.front();
    const auto before = member_.state();
    const auto* message = std::get_if<FromCoordinator>(&now);
    if (message != nullptr) {
      if (const auto* welcome = std::get_if<Welcome>(message)) {
        world_.invariants.check_term(*this, welcome->term);
        welcomed_at_ = world_.timeline.now();
        questions_.forget_open();
      } else if (const auto* start = std::get_if<Start>(message)) {
        world_.invariants.check_term(*this, start->term);
        start_ = *start;
      } else if (const auto* refused = std::get_if<Refused>(message)) {
        world_.note([&] { return concat(host_, " hears: ", refused->why); });
      }
    }
    const bool is_verdict = message != nullptr && std::holds_alternative<VerdictMessage>(*message);
    const bool is_refusal = message != nullptr && std::holds_alternative<Refused>(*message);
    const auto actions = member_.step(now, world_.timeline.now());
    told_ = is_verdict                                ? Outcome::verdict
            : is_leaving_                             ? Outcome::left
            : is_refusal || member_.claim().term == 0 ? Outcome::refused
                                                      : Outcome::verdict;
    using enum MemberState;
    const bool searches = member_.state() == searching || member_.state() == joining;
    if (searches && before != searching && before != joining) searched_since_ = world_.timeline.now();
    for (const auto& action : actions) std::visit([this](const auto& what) { carry_out(what); }, action);
    if (!is_alive_) return events_.clear();
  }
  arm_timer();
}

void SimulatedMember::arm_timer() {
  const auto next = member_.next_deadline();
  if (next == armed_) return;
  armed_ = next;
  if (!next) return;
  later(std::max(*next - world_.timeline.now(), Clock::duration{0}), [this, at = *next] {
    if (armed_ != at) return;
    armed_.reset();
    step(member_event::TimeIsUp{});
  });
}

template <class Action>
void SimulatedMember::carry_out(const Action& action) {
  using namespace member_action;
  if constexpr (std::is_same_v<Action, FromAgent>) {
    if (link_) link_->send(action);
  } else if constexpr (std::is_same_v<Action, Hang>) {
    close_link();
  } else if constexpr (std::is_same_v<Action, CloseLink>) {
    close_link();
    step(member_event::LinkClosed{});
  } else if constexpr (std::is_same_v<Action, Suspend>) {
    server().suspend();
  } else if constexpr (std::is_same_v<Action, Lead>) {
    server().lead(action.term);
  } else if constexpr (std::is_same_v<Action, StepDown>) {
    server().step_down(action.why);
  } else if constexpr (std::is_same_v<Action, NoteRecorded>) {
    server().recorded();
  } else if constexpr (std::is_same_v<Action, StopServer>) {
    if (const auto found = servers_.find(action.server); found != servers_.end()) {
      close(found->second);
      servers_.erase(found);
    }
  } else if constexpr (std::is_same_v<Action, StartLease>) {
    lease_->start();
  } else if constexpr (std::is_same_v<Action, Campaign>) {
    lease_->campaign(action.serves ? address() : "");
  } else if constexpr (std::is_same_v<Action, Resign>) {
    if (!action.answers) return lease_->resign(nullptr);
    lease_->resign([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->step(member_event::Resigned{});
    });
  } else if constexpr (std::is_same_v<Action, Depose>) {
    lease_->depose(action.term);
  } else if constexpr (std::is_same_v<Action, OpenStore>) {
    if (workers_live_) throw Violation(concat(host_, " is to open a round while its workers run"));
    later(world_.random.time({}, milliseconds(5)), [this, round = action.order.round] {
      step(member_event::StoreOpened{round, std::uint16_t{29'500}});
    });
  } else if constexpr (std::is_same_v<Action, DropAll>) {
    drop_all();
  } else if constexpr (std::is_same_v<Action, Done>) {
    exit();
  } else {
    static_assert(std::is_same_v<Action, CloseStore> || std::is_same_v<Action, BoundWorkers>);
  }
}

void SimulatedMember::carry_out(const ToAgent& what) {
  later({}, [this, what, outcome = told_] {
    if (const auto* verdict = std::get_if<VerdictMessage>(&what)) {
      return end(outcome, outcome == Outcome::verdict ? std::optional(*verdict) : std::nullopt);
    }
    std::visit([this](const auto& told) { hear(told); }, what);
  });
}

void SimulatedMember::carry_out(const member_action::Dial& dial) {
  close_link();
  DialerOptions options;
  const auto target = dial.is_here ? address() : dial.address;
  const auto at = *split_host_port(target);
  options.coordinators = {{at.host, static_cast<std::uint16_t>(std::stoul(*at.port))}};
  options.is_local = dial.is_here;
  options.was_reachable = dial.was_reachable;
  options.join = dial.join;
  options.connect_by = dial.by;
  options.conflict_timeout = 4 * heartbeat_interval + seconds(2);
  options.on_step = mark_steps("dialer");
  link_ = std::make_shared<SimulatedLink>(
      world_, *this, std::move(options),
      SimulatedLink::Callbacks{[this](const FromCoordinator& message) { step(message); },
                               [this](const LinkLoss& loss) {
                                 world_.note([&] { return concat(host_, " has lost its link: ", loss.error.message); });
                                 step(loss);
                               },
                               [this](const std::string& why) { step(member_event::Retry{why}); },
                               [this] { step(member_event::NotListening{}); }});
  link_->start();
}

void SimulatedMember::carry_out(const member_action::StartServer& order) {
  CoordinatorOptions options;
  options.host = host_;
  options.job_id = "job";
  options.own_addresses = {world_.address_of(machine_)};
  options.own_join = order.own_join;
  options.term = order.term;
  options.has_lease = true;
  options.lease_ttl = world_.scenario.ttl;
  options.suspend_timeout = world_.scenario.coordinator_timeout;
  options.with_events = false;
  options.on_step = mark_steps("coordinator");
  SimulatedServer::Place place{
      world_.timeline,
      world_.scenario,
      world_.invariants,
      world_.next_server(),
      host_,
      [this] { return lease_->is_leader(); },
      [this](LinkId link, const FromCoordinator& message) {
        const auto now = world_.timeline.now();
        if (std::holds_alternative<Ping>(message)) leads_until_ = now + std::max(lease_->held_for(), silence_limit);
        world_.to_agent(link, message);
      },
      [this](LinkId link) { world_.close_by_coordinator(link); },
      [this](const std::function<std::string()>& text) {
        world_.note([&] { return concat("the coordinator on ", host_, " ", text()); });
      },
      [weak = weak_from_this()](const std::function<void()>& what) {
        if (const auto self = weak.lock()) self->turn(what);
      },
      [this](const VerdictMessage& verdict) {
        later({}, [this, verdict] { carry_out(member_action::Record{verdict}); });
      },
      [this, number = order.server] { later({}, [this, number] { step(member_event::ServerSteppedDown{number}); }); },
      [this, number = order.server] { later({}, [this, number] { step(member_event::ServerDone{number}); }); }};
  leads_until_ = world_.timeline.now() + std::max(lease_->held_for(), silence_limit);
  world_.note([&] { return concat(host_, " runs the coordinator ", place.number, " of term ", order.term); });
  servers_[order.server] = std::make_shared<SimulatedServer>(std::move(place), std::move(options));
  step(member_event::ServerStarted{});
}

void SimulatedMember::carry_out(const member_action::Record& record) {
  lease_->record_verdict(serialize_verdict(record.verdict),
                         [weak = weak_from_this(), verdict = record.verdict](bool done) {
                           if (const auto self = weak.lock()) self->step(member_event::Recorded{verdict, done});
                         });
}

std::string SimulatedMember::address() const {
  return concat(world_.address_of(machine_).text(), ":", server().number());
}

void SimulatedMember::receives(LinkId link, const FromCoordinator& message) {
  turn([this, link, message] {
    if (link_ && link_->id() == link) link_->receives(message);
  });
}

void SimulatedMember::disconnected(LinkId link) {
  turn([this, link] {
    if (link_ && link_->id() == link) link_->disconnected();
  });
}

void SimulatedMember::close_link() {
  if (link_) link_->hang();
  link_.reset();
}

void SimulatedMember::close(std::shared_ptr<SimulatedServer>& server) {
  for (const LinkId link : server->close()) world_.close_by_coordinator(link);
}

void SimulatedMember::drop_all() {
  close_link();
  for (auto& [number, server] : servers_) close(server);
  servers_.clear();
  if (lease_) lease_->close(true);
}

// ---- the process

void SimulatedMember::begin() {
  const auto on_thread = [weak = weak_from_this()](const std::function<void()>& what) {
    if (const auto self = weak.lock()) self->turn(what);
  };
  SimulatedLease::Place place{world_.timeline,
                              world_.random,
                              world_.engine,
                              world_.scenario,
                              index_ + 1,
                              [this] { return world_.reaches_engine(machine_); },
                              on_thread,
                              [this](const std::function<void()>& what) { later({}, what); },
                              [this] { world_.invariants.on_lead(*this, world_.nodes()); }};
  lease_ = std::make_shared<SimulatedLease>(std::move(place), [this](const lease::Tell& what) { step(what); });
  step(member_event::Prepare{});
  step(member_event::Begin{});
  ask_later(max_questions);
}

void SimulatedMember::leave(int signal) {
  if (is_leaving_ || outcome_ != Outcome::none) return;
  world_.note([&] { return concat(host_, " is told to leave"); });
  is_leaving_ = true;
  if (!lease_) {
    outcome_ = Outcome::left;
    return exit();
  }
  awaits_verdict_ = member_.runs_coordinator();
  step(FromAgent(Leave{LeaveKind::signalled, signal, "pid 1"}));
  if (workers_ != Workers::none) stop_workers(0);
  else if (!awaits_verdict_) end(Outcome::left, std::nullopt);
}

void SimulatedMember::kill(bool with_its_machine, bool gives_lease_back) {
  if (!is_alive_) return;
  if (outcome_ == Outcome::none) outcome_ = Outcome::killed;
  world_.on_node_ended(*this, with_its_machine);
  if (lease_) lease_->close(gives_lease_back);
  exit();
}

void SimulatedMember::exit() {
  if (!is_alive_) return;
  end_workers();
  drop_all();
  is_alive_ = false;
  world_.note([&] { return concat(host_, " ends"); });
}

/// The agent ends its workers, then closes.
void SimulatedMember::end(Outcome outcome, std::optional<VerdictMessage> verdict) {
  if (outcome_ != Outcome::none) return;
  outcome_ = outcome;
  verdict_ = std::move(verdict);
  world_.note([&] { return concat(host_, " has its end ", static_cast<int>(outcome)); });
  world_.invariants.on_end(*this);
  if (workers_ == Workers::none) step(member_event::Close{});
  else stop_workers(0);
}

void SimulatedMember::hear(const CoordinatorLost& /*lost*/) { end(Outcome::coordinator_lost, std::nullopt); }

// ---- workers

void SimulatedMember::hear(const RoundBegins& begins) {
  if (workers_live_) throw Violation(concat(host_, " is to start a round while its workers run"));
  if (is_leaving_) {
    workers_ = Workers::skipped;
    return;
  }
  workers_ = Workers::running;
  workers_live_ = true;
  world_.invariants.on_start(*this, *start_, member_.runs_coordinator());
  world_.note([&] { return concat(host_, " starts round ", begins.round, " of term ", start_->term); });
  owes_success_ = false;
  contribute_later(exchange_.begin(*start_));
  const bool fails = begins.round < 40 && world_.random.chance(world_.scenario.failing);
  later(world_.random.time(world_.scenario.max_run / 2, world_.scenario.max_run),
        [this, term = start_->term, round = begins.round, fails] {
          if (start_->term == term) on_workers_end(round, !fails);
        });
}

void SimulatedMember::contribute_later(std::optional<Exchange> part) {
  if (!part) return;
  later(world_.random.time({}, world_.scenario.max_run / 2), [this, part = *part, term = start_->term] {
    const bool is_current = start_->term == term && start_->round == part.round;
    if (is_current && workers_ == Workers::running) step(FromAgent(part));
  });
}

void SimulatedMember::hear(const Exchanged& part) {
  if (workers_ != Workers::running) return;
  contribute_later(exchange_.take(part));
  if (owes_success_ && exchange_.is_complete()) on_workers_end(part.round, true);
}

/// Its workers may have stopped before the answer is sent.
void SimulatedMember::hear(const StopOrder& order) {
  if (order.look != 0) answer(order.look);
  stop_workers(order.signal, order.max_grace);
}

void SimulatedMember::ask_later(int left) {
  if (left == 0 || !world_.scenario.ask_interval) return;
  later(world_.survey_random.time({}, 2 * *world_.scenario.ask_interval), [this, left] {
    if (outcome_ != Outcome::none) return;
    const bool is_for_stop = world_.survey_random.chance(0.2);
    const std::string options = world_.survey_random.chance(0.7) ? "" : "all";
    step(FromAgent(questions_.ask(options, is_for_stop)));
    ask_later(left - 1);
  });
}

void SimulatedMember::answer(std::uint32_t look) {
  const auto& scenario = world_.scenario;
  const auto size = scenario.min_answer + world_.survey_random.below(scenario.max_answer - scenario.min_answer + 1);
  later(world_.survey_random.time({}, milliseconds(200)), [this, look, size] {
    step(FromAgent(Stacks{look, true, answer_of(host_, size)}));
  });
}

void SimulatedMember::on_workers_end(Round round, bool well) {
  if (start_->round != round || workers_ != Workers::running || is_swept_) return;
  if (well) {
    owes_success_ = !exchange_.is_complete();
    if (owes_success_) return;
    step(FromAgent(Succeeded{round}));
    workers_ = Workers::stopping;
    return on_workers_ended();
  }
  Failed failed;
  failed.round = round;
  failed.rank = start_->ranks.base_rank;
  failed.code = world_.random.between(1, 255);
  failed.waited = world_.survey_random.chance(world_.scenario.waited);
  step(FromAgent(failed));
  stop_workers(0);
}

void SimulatedMember::stop_workers(int signal, Milliseconds max_grace) {
  if (workers_ == Workers::none) return;
  if (workers_ == Workers::skipped) return on_workers_ended();
  const bool again = workers_ == Workers::stopping;
  const auto grace = std::min(world_.scenario.grace, max_grace);
  const bool kills = signal == SIGKILL;
  const auto latest = world_.timeline.now() + (kills ? milliseconds(10) : grace + milliseconds(10));
  if (again && latest >= stopped_by_) return;
  workers_ = Workers::stopping;
  if (kills) end_workers();
  const bool quick = kills || grace.count() == 0 || world_.random.chance(0.6);
  const auto time = again   ? latest - world_.timeline.now()
                    : quick ? world_.random.time(Clock::duration{1}, milliseconds(10))
                            : world_.random.time((latest - world_.timeline.now()) / 2, latest - world_.timeline.now());
  stopped_by_ = world_.timeline.now() + time;
  later(time, [this, stop = ++stop_] {
    if (workers_ == Workers::stopping && stop == stop_) on_workers_ended();
  });
}

void SimulatedMember::on_workers_ended() {
  workers_ = Workers::none;
  end_workers();
  step(FromAgent(Stopped{start_->round}));
  if (outcome_ != Outcome::none) return step(member_event::Close{});
  if (is_leaving_ && !awaits_verdict_) end(Outcome::left, std::nullopt);
}

void SimulatedMember::end_workers() {
  if (std::exchange(workers_live_, false)) world_.invariants.on_workers_end(*this);
}

// ---- workers of an agent that stands still, or whose main thread does

Milliseconds SimulatedMember::lost_sight_grace() const {
  return shutdown::grace_out_of_sight(world_.scenario.grace, world_.scenario.spec().fence.has_value());
}

void SimulatedMember::note_workers(bool run, std::optional<Clock::time_point> lose_sight_at, Milliseconds heartbeat) {
  using process::OverdueWorkers;
  const auto since_epoch = [](Clock::time_point time) { return std::chrono::nanoseconds(time.time_since_epoch()); };
  const auto before = std::exchange(deadline_, {});
  if (lose_sight_at) {
    deadline_ = {OverdueWorkers::Clocks::sight,
                 since_epoch(*lose_sight_at + lost_sight_grace() + shutdown::owner_margin), heartbeat};
  } else if (run) {
    deadline_ = {OverdueWorkers::Clocks::lead, since_epoch(leads_until_), heartbeat};
  }
  const bool begins = run && before.clock == OverdueWorkers::Clocks::none;
  deadline_.group = before.group + (begins ? 1 : 0);
  if (begins || deadline_.at < before.at) look();
}

void SimulatedMember::kill_workers_after(Clock::time_point since) {
  const auto at = since + lost_sight_grace() + shutdown::owner_margin;
  later(std::max(at - world_.timeline.now(), Clock::duration{0}), [this, start = start_ ? start_->round : 0] {
    if (start_ && start_->round == start) end_workers();
  });
}

/// Stands still with its machine only.
void SimulatedMember::look() {
  if (!is_alive_) return;
  const auto again_at = [this](Clock::time_point at) {
    world_.timeline.at(at, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->look();
    });
  };
  if (is_stopped() && !is_stopped_alone_) return again_at(stopped_until_);
  if (deadline_.clock == process::OverdueWorkers::Clocks::lead) {
    deadline_.at = std::chrono::nanoseconds(leads_until_.time_since_epoch());
  }
  const auto now = std::chrono::nanoseconds(world_.timeline.now().time_since_epoch());
  if (overdue_.look(deadline_, {now, now, is_stopped() ? 'T' : 'S'}) && workers_live_) {
    world_.note([&] { return concat("the workers on ", host_, " are swept"); });
    end_workers();
    is_swept_ = true;
    later({}, [this] {
      if (std::exchange(is_swept_, false) && workers_ == Workers::running) on_workers_ended();
    });
  }
  const auto next = overdue_.next_look();
  if (std::exchange(look_at_, next) == next || !next) return;
  again_at(std::max(world_.timeline.now(), Clock::time_point(Clock::duration(*next))));
}

}  // namespace ddrun::test
