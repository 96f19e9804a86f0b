#include "failover_node.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"
#include "failover_invariants.hpp"
#include "failover_world.hpp"
#include "recorded_verdict.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds heartbeat_interval{1};
constexpr seconds join_reply_timeout{10};
constexpr seconds close_timeout{6};
constexpr seconds resign_timeout{1};
constexpr milliseconds first_pause{2};
constexpr seconds max_pause{1};
constexpr milliseconds record_retry_interval{500};
constexpr milliseconds refused_timeout{500};

}  // namespace

SimulatedNode::SimulatedNode(FailoverWorld& world, std::size_t index, std::size_t machine, std::string host)
    : world_(world), index_(index), machine_(machine), host_(std::move(host)), agent_id_(concat("agent", index)) {}

template <class Action>
void SimulatedNode::later(Clock::duration time, Action action) {
  world_.timeline.in(time, [weak = weak_from_this(), action = std::move(action)] {
    if (const auto self = weak.lock()) self->turn(action);
  });
}

bool SimulatedNode::is_stopped() const { return world_.timeline.now() < stopped_until_; }

void SimulatedNode::turn(const std::function<void()>& what) {
  if (!is_alive_) return;
  if (!is_stopped()) return what();
  world_.timeline.at(stopped_until_, [weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) self->turn(what);
  });
}

void SimulatedNode::suspend_for(Clock::duration time) {
  const auto until = std::max(stopped_until_, world_.timeline.now() + time);
  const auto more = until - std::max(stopped_until_, world_.timeline.now());
  stopped_until_ = until;
  if (more <= heartbeat_interval) return;
  if (server_) server_->skip(more);
  if (former_server_) former_server_->skip(more);
}

std::shared_ptr<SimulatedServer> SimulatedNode::server_of(std::uint64_t number) const {
  for (const auto& server : {server_, former_server_}) {
    if (server && server->number() == number && server->is_open()) return server;
  }
  return nullptr;
}

// ---- the agent

void SimulatedNode::begin() {
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
  lease_ = std::make_shared<SimulatedLease>(
      std::move(place), [this](const lease::Tell& what) { std::visit([this](const auto& told) { on(told); }, what); });
  lease_->start();
  search_coordinator(world_.timeline.now() + world_.scenario.join_timeout);
}

void SimulatedNode::leave(int signal) {
  if (leave_ || is_over_) return;
  world_.note([&] { return concat(host_, " is told to leave"); });
  leave_ = Leave{signal, "pid 1"};
  if (!lease_) {
    outcome_ = Outcome::left;
    return exit();
  }
  if (is_member_) {
    say(*leave_);
    waits_for_no_verdict_ = server_ == nullptr;
    if (workers_ != Workers::none) stop_workers(0);
    else if (waits_for_no_verdict_) end(Outcome::left, std::nullopt);
  } else {
    rejoining_ = false;
    end(Outcome::left, std::nullopt);
  }
}

void SimulatedNode::kill(bool with_its_machine, bool gives_lease_back) {
  if (!is_alive_) return;
  if (outcome_ == Outcome::none) outcome_ = Outcome::killed;
  world_.on_node_ended(*this, with_its_machine);
  if (lease_) lease_->close(gives_lease_back);
  exit();
}

void SimulatedNode::exit() {
  if (!is_alive_) return;
  if (std::exchange(workers_live_, false)) world_.invariants.on_workers_end(*this);
  reset_link();
  reset_former_link();
  close(server_);
  close(former_server_);
  if (lease_) lease_->close(true);
  is_alive_ = false;
  world_.note([&] { return concat(host_, " ends"); });
}

void SimulatedNode::close(std::shared_ptr<SimulatedServer>& server) {
  if (!server) return;
  for (const LinkId link : server->close()) world_.close_by_coordinator(link);
  server.reset();
}

void SimulatedNode::end(Outcome outcome, std::optional<VerdictMessage> verdict) {
  is_over_ = true;
  searching_ = false;
  ++search_;
  outcome_ = outcome;
  verdict_ = std::move(verdict);
  world_.note([&] { return concat(host_, " has its end ", static_cast<int>(outcome)); });
  world_.invariants.on_end(*this);
  // The agent ends its workers, then closes.
  if (workers_live_) return stop_workers(0);
  closing_ = true;
  reset_link();
  later(close_timeout, [this] {
    job_done_ = resigned_ = true;
    try_finish_close();
  });
  try_finish_close();
}

void SimulatedNode::job_done(std::uint64_t server) {
  if (!server_ || server != server_->number()) return close(former_server_);
  job_done_ = true;
  try_finish_close();
}

void SimulatedNode::try_finish_close() {
  if (!closing_ || (server_ && !job_done_)) return;
  if (term_ != 0 && !resigned_) {
    if (!std::exchange(resigning_, true)) {
      resign();
      later(resign_timeout, [this] {
        resigned_ = true;
        try_finish_close();
      });
    }
    return;
  }
  exit();
}

// ---- the connection: as in dialer.cpp

void SimulatedNode::begin_link(Clock::time_point connect_by) {
  reset_link();
  connect_by_ = connect_by;
  pause_ = first_pause;
  refused_since_.reset();
  join_ = join_message();
  connect();
}

void SimulatedNode::connect() {
  if (world_.timeline.now() >= connect_by_) return give_up();
  stage_ = Stage::connecting;
  world_.connect(index_, ++attempt_, target_);
}

void SimulatedNode::connected(std::uint64_t attempt, LinkId link) {
  if (!is_alive_ || attempt != attempt_ || stage_ != Stage::connecting) return world_.close_by_agent(link);
  link_ = link;
  refused_since_.reset();
  stage_ = Stage::joining;
  last_heard_ = world_.timeline.now();
  world_.to_coordinator(link_, join_);
  later(std::min<Clock::duration>(join_reply_timeout, connect_by_ - world_.timeline.now()), [this, attempt] {
    if (attempt == attempt_ && stage_ == Stage::joining) attempt_failed();
  });
}

void SimulatedNode::not_connected(std::uint64_t attempt, bool refused) {
  turn([this, attempt, refused] {
    if (attempt != attempt_ || stage_ != Stage::connecting) return;
    if (!refused) refused_since_.reset();
    else if (!refused_since_) refused_since_ = world_.timeline.now();
    attempt_failed();
  });
}

/// Connections are refused for long enough; shorter refusals come from a device on the path.
bool SimulatedNode::is_not_listening() const {
  return refused_since_ && world_.timeline.now() - *refused_since_ >= refused_timeout;
}

void SimulatedNode::attempt_failed() {
  reset_link();
  stage_ = Stage::searching;
  if (is_not_listening() && !is_local_) on_coordinator_not_listening();
  const auto pause = std::clamp<Clock::duration>(connect_by_ - world_.timeline.now(), Clock::duration{0}, pause_);
  pause_ = std::min<Clock::duration>(2 * pause_, max_pause);
  later(pause, [this, attempt = attempt_] {
    if (attempt == attempt_ && stage_ == Stage::searching) connect();
  });
}

void SimulatedNode::give_up() { link_lost("the coordinator could not be reached in time"); }

/// Closing it would report that the workers have ended: while they run it stays open.
void SimulatedNode::link_lost(const std::string& why) {
  if (stage_ == Stage::joined) former_link_ = std::exchange(link_, 0);
  reset_link();
  later({}, [this, why, attempt = attempt_] {
    if (!is_over_ && attempt == attempt_) on_link_lost(why);
  });
}

void SimulatedNode::reset_link() {
  ++attempt_;
  stage_ = Stage::none;
  close_link(std::exchange(link_, 0));
}

void SimulatedNode::reset_former_link() { close_link(std::exchange(former_link_, 0)); }

void SimulatedNode::close_link(LinkId link) {
  if (link != 0) world_.close_by_agent(link);
}

void SimulatedNode::disconnected(LinkId link) {
  if (link != link_) return;
  turn([this, link] {
    if (link != link_) return;
    if (stage_ == Stage::joining) attempt_failed();
    else link_lost("the connection to the coordinator broke");
  });
}

void SimulatedNode::receives(LinkId link, const FromCoordinator& message) {
  turn([this, link, message] {
    if (link != link_ || link_ == 0) return;
    last_heard_ = world_.timeline.now();
    if (const auto* ping = std::get_if<Ping>(&message)) {
      if (stage_ == Stage::joined) world_.to_coordinator(link_, Pong{ping->number});
      return;
    }
    if (stage_ == Stage::joining) {
      const auto* refused = std::get_if<Refused>(&message);
      if (refused != nullptr && (refused->kind == RefusalKind::moved || refused->kind == RefusalKind::taken)) {
        return attempt_failed();
      }
      const auto* welcome = std::get_if<Welcome>(&message);
      if (welcome != nullptr && welcome->term < join_.claim.term) return attempt_failed();
      stage_ = Stage::joined;
      watch_silence();
    }
    if (is_over_) return;
    std::visit([this](const auto& what) { on(what); }, message);
  });
}

/// A late timer means that this process was suspended.
void SimulatedNode::watch_silence() {
  if (is_local_) return;
  const auto due = last_heard_ + heartbeat_bound;
  later(due - world_.timeline.now(), [this, due, attempt = attempt_] {
    if (attempt != attempt_ || stage_ != Stage::joined) return;
    const auto now = world_.timeline.now();
    if (now - due > heartbeat_interval || now == stopped_until_)
      last_heard_ = now - heartbeat_bound + heartbeat_interval;
    if (last_heard_ + heartbeat_bound > now) return watch_silence();
    world_.note([&] { return concat(host_, " has heard nothing from its coordinator"); });
    world_.invariants.on_coordinator_lost(*this, world_.coordinator_node(link_));
    link_lost("nothing was heard from the coordinator");
  });
}

void SimulatedNode::say(const FromAgent& message) {
  if (stage_ == Stage::joined && link_ != 0 && !is_over_) world_.to_coordinator(link_, message);
}

// ---- the job: as in job_rendezvous.cpp

Join SimulatedNode::join_message() const {
  Join join;
  join.version = "1.0";
  join.job_id = "job";
  join.agent_id = agent_id_;
  join.host = host_;
  join.local_world_size = 1 + static_cast<std::uint32_t>(machine_ % 3);
  join.runs_coordinator = server_ != nullptr;
  join.settings = world_.scenario.settings();
  if (claim_.term != 0) join.claim = claim_;
  return join;
}

void SimulatedNode::start_coordinator() {
  CoordinatorOptions options;
  options.host = host_;
  options.job_id = "job";
  options.own_addresses = {world_.address_of(machine_)};
  options.own_join = join_message();
  options.own_join->runs_coordinator = true;
  options.term = term_;
  options.has_lease = true;
  options.lease_ttl = world_.scenario.ttl;
  options.suspend_timeout = world_.scenario.coordinator_timeout;
  options.with_events = false;
  SimulatedServer::Place place{world_.timeline,
                               world_.scenario,
                               world_.invariants,
                               world_.next_server(),
                               host_,
                               [this] { return lease_->is_leader(); },
                               [this](LinkId link, const FromCoordinator& message) { world_.to_agent(link, message); },
                               [this](LinkId link) { world_.close_by_coordinator(link); },
                               [this](const std::function<std::string()>& text) {
                                 world_.note([&] { return concat("the coordinator on ", host_, " ", text()); });
                               },
                               [weak = weak_from_this()](const std::function<void()>& what) {
                                 if (const auto self = weak.lock()) self->turn(what);
                               },
                               [this](const VerdictMessage& verdict) {
                                 later({}, [this, verdict] {
                                   if (!is_over_) record(verdict);
                                 });
                               },
                               {},
                               {}};
  place.on_stepped_down = [this, number = place.number] { later({}, [this, number] { stepped_down(number); }); };
  place.on_done = [this, number = place.number] { later({}, [this, number] { job_done(number); }); };
  world_.note([&] { return concat(host_, " runs the coordinator ", place.number, " of term ", term_); });
  server_ = std::make_shared<SimulatedServer>(std::move(place), std::move(options));
}

void SimulatedNode::join_by(Clock::time_point deadline) {
  is_local_ = server_ != nullptr;
  target_ = is_local_ ? concat(machine_, "#", server_->number()) : followed_->address;
  begin_link(deadline);
}

void SimulatedNode::on(const Welcome& welcome) {
  world_.invariants.check_term(*this, welcome.term);
  is_member_ = true;
  superseded_ = false;
  welcomed_at_ = world_.timeline.now();
  searching_ = false;
  ++search_;
  if (claim_.term == 0) claim_.term = welcome.term;
  joined_term_ = welcome.term;
  if (!server_) stop_campaigning();
}

void SimulatedNode::on(const Refused& refused) {
  world_.note([&] { return concat(host_, " hears: ", refused.why); });
  const bool may_rejoin = refused.kind == RefusalKind::lost || refused.kind == RefusalKind::moved;
  if (may_rejoin && is_member_) {
    claim_.moved = refused.kind == RefusalKind::moved;
    return rejoin(refused.why, step_down(refused.why));
  }
  end(refused.kind == RefusalKind::permanent && leave_ ? Outcome::left : Outcome::refused, std::nullopt);
}

void SimulatedNode::on(const Open& open) {
  if (workers_live_) throw Violation(concat(host_, " is to open a round while its workers run"));
  later(world_.random.time({}, milliseconds(5)), [this, open] { say(Opened{open.round, 29'500}); });
}

void SimulatedNode::on(const Start& start) {
  world_.invariants.check_term(*this, start.term);
  started_ = start.round;
  has_workers_ = true;
  claim_ = {start.term, start.round, start.ranks.node_rank, start.ranks.node_count, start.job_state, false, false};
  base_rank_ = start.ranks.base_rank;
  if (workers_live_) throw Violation(concat(host_, " is to start a round while its workers run"));
  workers_round_ = start.round;
  if (leave_) {
    workers_ = Workers::opening;
    return;
  }
  workers_ = Workers::running;
  workers_live_ = true;
  world_.invariants.on_start(*this, start, server_ != nullptr);
  world_.note([&] { return concat(host_, " starts round ", start.round, " of term ", start.term); });
  const bool fails = start.round < 40 && world_.random.chance(world_.scenario.failing);
  later(world_.random.time(world_.scenario.max_run / 2, world_.scenario.max_run),
        [this, round = start.round, fails] { on_workers_end(round, !fails); });
}

void SimulatedNode::on(const Stop& stop) {
  if (stop.round == started_) stop_workers(stop.signal);
  else say(Stopped{stop.round, {}, {}});
}

void SimulatedNode::on(const VerdictMessage& verdict) { end(Outcome::verdict, verdict); }

void SimulatedNode::stopped(Round round) {
  has_workers_ = false;
  reset_former_link();
  if (waits_for_no_verdict_) {
    if (!std::exchange(rejoining_, false)) say(Stopped{round, {}, {}});
    return end(Outcome::left, std::nullopt);
  }
  if (std::exchange(rejoining_, false)) return find_coordinator_again();
  say(Stopped{round, {}, {}});
}

void SimulatedNode::on_link_lost(const std::string& why) {
  if (is_member_) return rejoin(why, step_down(why));
  end(Outcome::coordinator_lost, std::nullopt);
}

void SimulatedNode::rejoin(const std::string& why, int signal) {
  world_.note([&] { return concat(host_, " comes back: ", why); });
  agent_id_ = concat("agent", index_, ".", ++agent_ids_);
  is_member_ = superseded_ = false;
  reset_link();
  campaign();
  if (!has_workers_) {
    reset_former_link();
    return find_coordinator_again();
  }
  rejoining_ = true;
  stop_workers(signal);
}

void SimulatedNode::find_coordinator_again() {
  if (leave_) return end(Outcome::left, std::nullopt);
  search_coordinator(world_.timeline.now() + world_.scenario.coordinator_timeout);
}

void SimulatedNode::campaign() {
  is_candidate_ = true;
  lease_->campaign(server_ ? concat(machine_, "#", server_->number()) : "");
}

void SimulatedNode::stop_campaigning() {
  if (std::exchange(is_candidate_, false)) lease_->resign(nullptr);
}

void SimulatedNode::search_coordinator(Clock::time_point until) {
  searching_ = true;
  searched_since_ = world_.timeline.now();
  search_until_ = until;
  if (recorded_) return end_as_recorded();
  if (server_) return join_by(until);
  if (!is_candidate_) campaign();
  later(until - world_.timeline.now(), [this, search = ++search_] {
    if (search == search_ && !is_over_) on_no_leader_in_time();
  });
  if (leader_) follow(*leader_);
}

void SimulatedNode::on_no_leader_in_time() {
  if (searching_ && stage_ == Stage::none) on_link_lost("no machine has taken the lead of the job in time");
}

void SimulatedNode::on(const lease::Leader& leader) {
  leader_ = leader;
  if (is_over_) return;
  if (leader.is_self) return lead(leader.term);
  if (server_) return server_->step_down(concat("another machine leads the job, in term ", leader.term));
  if (searching_) return follow(leader);
  if (!is_member_ || leader.address.empty() || leader.term <= joined_term_) return;
  joined_term_ = leader.term;
  if (!followed_ || followed_->address == leader.address) return;
  superseded_ = true;
  later(has_workers_ ? heartbeat_interval / 4 : Clock::duration(heartbeat_interval), [this, search = ++search_] {
    if (search == search_ && !is_over_ && superseded_) rejoin("another machine leads");
  });
}

void SimulatedNode::lead(Term term) {
  if (!is_candidate_) return lease_->resign(nullptr);
  if (std::exchange(term_, term) == term && server_) return;
  if (server_) return server_->lead(term);
  start_coordinator();
  campaign();
  if (!searching_) return;
  join_by(search_until_);
}

void SimulatedNode::follow(const lease::Leader& leader) {
  if (leader.is_self || leader.address.empty() || (stage_ != Stage::none && followed_ == leader)) return;
  if (claim_.moved && leader.term == claim_.term) return;
  followed_ = leader;
  join_by(search_until_);
}

void SimulatedNode::on_coordinator_not_listening() {
  if (!searching_ || !followed_ || followed_->term != joined_term_) return;
  if (world_.scenario.min_nodes > 1) lease_->depose(followed_->term);
}

int SimulatedNode::step_down(const std::string& why) {
  if (!server_) return 0;
  server_->step_down(why);
  close(former_server_);
  former_server_ = std::move(server_);
  is_candidate_ = false;
  lease_->resign(nullptr);
  return SIGKILL;
}

void SimulatedNode::stepped_down(std::uint64_t server) {
  resign();
  if (is_member_ || is_over_ || !server_ || server != server_->number()) return;
  close(former_server_);
  former_server_ = std::move(server_);
  if (!searching_) return;
  reset_link();
  search_coordinator(search_until_);
}

void SimulatedNode::record(const VerdictMessage& verdict) {
  if (!server_) return;
  lease_->record_verdict(serialize_verdict(verdict), [weak = weak_from_this(), verdict](bool done) {
    if (const auto self = weak.lock(); self && !self->is_over_) self->recorded(verdict, done);
  });
}

void SimulatedNode::recorded(const VerdictMessage& verdict, bool done) {
  if (!server_) return;
  if (done) return server_->recorded();
  if (!lease_->is_leader()) return;
  later(record_retry_interval, [this, verdict] {
    if (!is_over_) record(verdict);
  });
}

void SimulatedNode::on(const lease::tell::Lost& /*lost*/) {
  leader_.reset();
  if (server_) server_->suspend();
}

void SimulatedNode::on(const lease::tell::Verdict& verdict) {
  if (is_over_) return;
  recorded_ = parse_verdict(verdict.text);
  if (!recorded_) return;
  if (server_ && !lease_->is_leader()) return server_->step_down("the job has ended meanwhile");
  if (searching_) end_as_recorded();
}

void SimulatedNode::end_as_recorded() {
  if (claim_.term == 0) end(Outcome::refused, std::nullopt);
  else end(Outcome::verdict, *recorded_);
}

void SimulatedNode::resign() {
  is_candidate_ = false;
  lease_->resign([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->resigned_ = true;
    self->try_finish_close();
  });
}

// ---- workers

void SimulatedNode::on_workers_end(Round round, bool well) {
  if (workers_round_ != round || workers_ != Workers::running) return;
  if (well) {
    claim_.succeeded = true;
    say(Succeeded{round});
    workers_ = Workers::stopping;
    return on_workers_ended();
  }
  Failed failed;
  failed.round = round;
  failed.rank = base_rank_;
  failed.code = world_.random.between(1, 255);
  say(failed);
  stop_workers(0);
}

void SimulatedNode::stop_workers(int signal) {
  if (workers_ == Workers::none) return;
  if (workers_ == Workers::opening) {  // START came after LEAVE: none was started
    workers_ = Workers::none;
    return stopped(workers_round_);
  }
  const bool again = workers_ == Workers::stopping;
  if (again && signal != SIGKILL) return;
  workers_ = Workers::stopping;
  if (signal == SIGKILL && std::exchange(workers_live_, false)) world_.invariants.on_workers_end(*this);
  const bool quick = signal == SIGKILL || world_.random.chance(0.6);
  const Clock::duration longest =
      quick ? Clock::duration(milliseconds(10)) : Clock::duration(world_.scenario.grace) + milliseconds(10);
  const auto time = world_.random.time(quick ? Clock::duration{1} : longest / 2, longest);
  later(time, [this, round = workers_round_, stop = ++stop_] {
    if (workers_round_ == round && workers_ == Workers::stopping && stop == stop_) on_workers_ended();
  });
}

void SimulatedNode::on_workers_ended() {
  workers_ = Workers::none;
  if (std::exchange(workers_live_, false)) world_.invariants.on_workers_end(*this);
  if (is_over_) return end(outcome_, verdict_);
  stopped(workers_round_);
}

}  // namespace ddrun::test
