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
constexpr seconds time_to_answer{10};
constexpr seconds last_words{6};
constexpr seconds time_to_resign{1};
constexpr milliseconds first_pause{2};
constexpr seconds max_pause{1};
constexpr milliseconds pause_before_recording_again{500};
constexpr milliseconds time_to_believe_a_refusal{500};

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
  if (!lives_) return;
  if (!is_stopped()) return what();
  world_.timeline.at(stopped_until_, [weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) self->turn(what);
  });
}

void SimulatedNode::stand_still(Clock::duration time) {
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

// ---- the life of the agent

void SimulatedNode::begin() {
  lease::Callbacks callbacks;
  callbacks.on_leader = [this](const lease::Leader& leader) {
    if (!over_) on_leader(leader);
  };
  callbacks.on_no_leader = [this] { leader_.reset(); };
  callbacks.on_lost = [this](std::string_view) {
    leader_.reset();
    if (server_) server_->suspend();
  };
  callbacks.on_verdict = [this](std::string_view text) {
    if (!over_) on_recorded_verdict(std::string(text));
  };
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
                              [this] { world_.invariants.leads(*this, world_.nodes()); }};
  lease_ = std::make_shared<SimulatedLease>(std::move(place), std::move(callbacks));
  lease_->start();
  look_for_coordinator(world_.timeline.now() + world_.scenario.join_timeout);
}

void SimulatedNode::leave(int signal) {
  if (left_ || over_) return;
  world_.note([&] { return concat(host_, " is told to leave"); });
  left_ = Leave{signal, "pid 1"};
  if (!lease_) {
    outcome_ = Outcome::left;
    return exit();
  }
  if (member_) {
    say(*left_);
    waits_for_no_verdict_ = server_ == nullptr;
    if (workers_ != Workers::none) stop_workers(0);
    else if (waits_for_no_verdict_) end(Outcome::left, std::nullopt);
  } else {
    coming_back_ = false;
    end(Outcome::left, std::nullopt);
  }
}

void SimulatedNode::kill(bool with_its_machine, bool gives_lease_back) {
  if (!lives_) return;
  if (outcome_ == Outcome::none) outcome_ = Outcome::killed;
  world_.node_is_gone(*this, with_its_machine);
  if (lease_) lease_->close(gives_lease_back);
  exit();
}

void SimulatedNode::exit() {
  if (!lives_) return;
  if (std::exchange(workers_live_, false)) world_.invariants.workers_end(*this);
  reset_link();
  reset_former_link();
  close(server_);
  close(former_server_);
  if (lease_) lease_->close(true);
  lives_ = false;
  world_.note([&] { return concat(host_, " ends"); });
}

void SimulatedNode::close(std::shared_ptr<SimulatedServer>& server) {
  if (!server) return;
  for (const LinkId link : server->close()) world_.hang_up_by_coordinator(link);
  server.reset();
}

void SimulatedNode::end(Outcome outcome, std::optional<VerdictMessage> verdict) {
  over_ = true;
  looking_ = false;
  ++look_;
  outcome_ = outcome;
  verdict_ = std::move(verdict);
  world_.note([&] { return concat(host_, " has its end ", static_cast<int>(outcome)); });
  world_.invariants.ends(*this);
  // The agent ends its workers, then closes.
  if (workers_live_) return stop_workers(0);
  closing_ = true;
  reset_link();
  later(last_words, [this] {
    job_done_ = resigned_ = true;
    close_up();
  });
  close_up();
}

void SimulatedNode::job_done(std::uint64_t server) {
  if (!server_ || server != server_->number()) return close(former_server_);
  job_done_ = true;
  close_up();
}

void SimulatedNode::close_up() {
  if (!closing_ || (server_ && !job_done_)) return;
  if (term_ != 0 && !resigned_) {
    if (!std::exchange(resigning_, true)) {
      resign();
      later(time_to_resign, [this] {
        resigned_ = true;
        close_up();
      });
    }
    return;
  }
  exit();
}

// ---- the connection: as in agent_link.cpp

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
  if (!lives_ || attempt != attempt_ || stage_ != Stage::connecting) return world_.hang_up_by_agent(link);
  link_ = link;
  refused_since_.reset();
  stage_ = Stage::joining;
  heard_ = world_.timeline.now();
  world_.to_coordinator(link_, join_);
  later(std::min<Clock::duration>(time_to_answer, connect_by_ - world_.timeline.now()), [this, attempt] {
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

/// No process listens there any more: what only something on the way refuses is a matter of moments.
bool SimulatedNode::is_gone() const {
  return refused_since_ && world_.timeline.now() - *refused_since_ >= time_to_believe_a_refusal;
}

void SimulatedNode::attempt_failed() {
  reset_link();
  stage_ = Stage::looking;
  if (is_gone() && !is_here_) coordinator_is_gone();
  const auto pause = std::clamp<Clock::duration>(connect_by_ - world_.timeline.now(), Clock::duration{0}, pause_);
  pause_ = std::min<Clock::duration>(2 * pause_, max_pause);
  later(pause, [this, attempt = attempt_] {
    if (attempt == attempt_ && stage_ == Stage::looking) connect();
  });
}

void SimulatedNode::give_up() { link_lost("the coordinator could not be reached in time"); }

/// Its end would say that this process, and its workers, have ended: as long as they have not the connection stays.
void SimulatedNode::link_lost(const std::string& why) {
  if (stage_ == Stage::joined) former_link_ = std::exchange(link_, 0);
  reset_link();
  later({}, [this, why, attempt = attempt_] {
    if (!over_ && attempt == attempt_) lost(why);
  });
}

void SimulatedNode::reset_link() {
  ++attempt_;
  stage_ = Stage::none;
  hang_up(std::exchange(link_, 0));
}

void SimulatedNode::reset_former_link() { hang_up(std::exchange(former_link_, 0)); }

void SimulatedNode::hang_up(LinkId link) {
  if (link != 0) world_.hang_up_by_agent(link);
}

void SimulatedNode::loses(LinkId link) {
  if (link != link_) return;
  turn([this, link] {
    if (link != link_) return;
    if (stage_ == Stage::joining) attempt_failed();
    else link_lost("the connection to the coordinator broke");
  });
}

void SimulatedNode::hears(LinkId link, const FromCoordinator& message) {
  turn([this, link, message] {
    if (link != link_ || link_ == 0) return;
    heard_ = world_.timeline.now();
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
      watch_for_silence();
    }
    if (over_) return;
    std::visit([this](const auto& what) { on(what); }, message);
  });
}

/// A look that itself comes late says that this process did not run.
void SimulatedNode::watch_for_silence() {
  if (is_here_) return;
  const auto due = heard_ + heartbeat_bound;
  later(due - world_.timeline.now(), [this, due, attempt = attempt_] {
    if (attempt != attempt_ || stage_ != Stage::joined) return;
    const auto now = world_.timeline.now();
    if (now - due > heartbeat_interval || now == stopped_until_) heard_ = now - heartbeat_bound + heartbeat_interval;
    if (heard_ + heartbeat_bound > now) return watch_for_silence();
    world_.note([&] { return concat(host_, " has heard nothing from its coordinator"); });
    world_.invariants.takes_for_lost(*this, world_.coordinators_node(link_));
    link_lost("nothing was heard from the coordinator");
  });
}

void SimulatedNode::say(const FromAgent& message) {
  if (stage_ == Stage::joined && link_ != 0 && !over_) world_.to_coordinator(link_, message);
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
  options.own = join_message();
  options.own->runs_coordinator = true;
  options.term = term_;
  options.has_lease = true;
  options.lease_ttl = world_.scenario.ttl;
  options.patience = world_.scenario.coordinator_timeout;
  options.with_events = false;
  SimulatedServer::Place place{world_.timeline,
                               world_.scenario,
                               world_.invariants,
                               world_.next_server(),
                               host_,
                               [this] { return lease_->leads(); },
                               [this](LinkId link, const FromCoordinator& message) { world_.to_agent(link, message); },
                               [this](LinkId link) { world_.hang_up_by_coordinator(link); },
                               [this](const std::function<std::string()>& text) {
                                 world_.note([&] { return concat("the coordinator on ", host_, " ", text()); });
                               },
                               [weak = weak_from_this()](const std::function<void()>& what) {
                                 if (const auto self = weak.lock()) self->turn(what);
                               },
                               [this](const VerdictMessage& verdict) {
                                 later({}, [this, verdict] {
                                   if (!over_) record(verdict);
                                 });
                               },
                               {},
                               {}};
  place.on_stood_down = [this, number = place.number] { later({}, [this, number] { stood_down(number); }); };
  place.on_done = [this, number = place.number] { later({}, [this, number] { job_done(number); }); };
  world_.note([&] { return concat(host_, " runs the coordinator ", place.number, " of term ", term_); });
  server_ = std::make_shared<SimulatedServer>(std::move(place), std::move(options));
}

void SimulatedNode::join_by(Clock::time_point deadline) {
  is_here_ = server_ != nullptr;
  target_ = is_here_ ? concat(machine_, "#", server_->number()) : followed_->address;
  begin_link(deadline);
}

void SimulatedNode::on(const Welcome& welcome) {
  world_.invariants.obeys(*this, welcome.term);
  member_ = true;
  superseded_ = false;
  welcomed_at_ = world_.timeline.now();
  looking_ = false;
  ++look_;
  if (claim_.term == 0) claim_.term = welcome.term;
  joined_term_ = welcome.term;
  if (!server_) stop_campaigning();
}

void SimulatedNode::on(const Refused& refused) {
  world_.note([&] { return concat(host_, " hears: ", refused.why); });
  const bool may_come_back = refused.kind == RefusalKind::given_up || refused.kind == RefusalKind::moved;
  if (may_come_back && member_) {
    claim_.moved = refused.kind == RefusalKind::moved;
    return come_back(refused.why, stand_down(refused.why));
  }
  end(refused.kind == RefusalKind::for_good && left_ ? Outcome::left : Outcome::refused, std::nullopt);
}

void SimulatedNode::on(const Open& open) {
  if (workers_live_) throw Violation(concat(host_, " is to open a round while its workers run"));
  later(world_.random.time({}, milliseconds(5)), [this, open] { say(Opened{open.round, 29'500}); });
}

void SimulatedNode::on(const Start& start) {
  world_.invariants.obeys(*this, start.term);
  started_ = start.round;
  has_workers_ = true;
  claim_ = {start.term, start.round, start.ranks.node_rank, start.ranks.node_count, start.memory, false, false};
  base_rank_ = start.ranks.base_rank;
  if (workers_live_) throw Violation(concat(host_, " is to start a round while its workers run"));
  workers_round_ = start.round;
  if (left_) {
    workers_ = Workers::opening;
    return;
  }
  workers_ = Workers::running;
  workers_live_ = true;
  world_.invariants.begins(*this, start, server_ != nullptr);
  world_.note([&] { return concat(host_, " starts round ", start.round, " of term ", start.term); });
  const bool fails = start.round < 40 && world_.random.chance(world_.scenario.failing);
  later(world_.random.time(world_.scenario.longest_run / 2, world_.scenario.longest_run),
        [this, round = start.round, fails] { workers_end(round, !fails); });
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
    if (!std::exchange(coming_back_, false)) say(Stopped{round, {}, {}});
    return end(Outcome::left, std::nullopt);
  }
  if (std::exchange(coming_back_, false)) return find_again();
  say(Stopped{round, {}, {}});
}

void SimulatedNode::lost(const std::string& why) {
  if (member_) return come_back(why, stand_down(why));
  end(Outcome::coordinator_lost, std::nullopt);
}

void SimulatedNode::come_back(const std::string& why, int signal) {
  world_.note([&] { return concat(host_, " comes back: ", why); });
  agent_id_ = concat("agent", index_, ".", ++agent_ids_);
  member_ = superseded_ = false;
  reset_link();
  campaign();
  if (!has_workers_) {
    reset_former_link();
    return find_again();
  }
  coming_back_ = true;
  stop_workers(signal);
}

void SimulatedNode::find_again() {
  if (left_) return end(Outcome::left, std::nullopt);
  look_for_coordinator(world_.timeline.now() + world_.scenario.coordinator_timeout);
}

void SimulatedNode::campaign() {
  campaigns_ = true;
  lease_->campaign(server_ ? concat(machine_, "#", server_->number()) : "");
}

void SimulatedNode::stop_campaigning() {
  if (std::exchange(campaigns_, false)) lease_->resign(nullptr);
}

void SimulatedNode::look_for_coordinator(Clock::time_point until) {
  looking_ = true;
  looked_since_ = world_.timeline.now();
  look_until_ = until;
  if (recorded_) return end_as_recorded();
  if (server_) return join_by(until);
  if (!campaigns_) campaign();
  later(until - world_.timeline.now(), [this, look = ++look_] {
    if (look == look_ && !over_) nobody_leads();
  });
  if (leader_) follow(*leader_);
}

void SimulatedNode::nobody_leads() {
  if (looking_ && stage_ == Stage::none) lost("no machine has taken the lead of the job in time");
}

void SimulatedNode::on_leader(const lease::Leader& leader) {
  leader_ = leader;
  if (leader.is_me) return lead(leader.term);
  if (server_) return server_->stand_down(concat("another machine leads the job, in term ", leader.term));
  if (looking_) return follow(leader);
  if (!member_ || leader.address.empty() || leader.term <= joined_term_) return;
  joined_term_ = leader.term;
  if (!followed_ || followed_->address == leader.address) return;
  superseded_ = true;
  later(has_workers_ ? heartbeat_interval / 4 : Clock::duration(heartbeat_interval), [this, look = ++look_] {
    if (look == look_ && !over_ && superseded_) come_back("another machine leads");
  });
}

void SimulatedNode::lead(Term term) {
  if (!campaigns_) return lease_->resign(nullptr);
  if (std::exchange(term_, term) == term && server_) return;
  if (server_) return server_->lead(term);
  start_coordinator();
  campaign();
  if (!looking_) return;
  join_by(look_until_);
}

void SimulatedNode::follow(const lease::Leader& leader) {
  if (leader.is_me || leader.address.empty() || (stage_ != Stage::none && followed_ == leader)) return;
  if (claim_.moved && leader.term == claim_.term) return;
  followed_ = leader;
  join_by(look_until_);
}

void SimulatedNode::coordinator_is_gone() {
  if (!looking_ || !followed_ || followed_->term != joined_term_) return;
  if (world_.scenario.min_nodes > 1) lease_->depose(followed_->term);
}

int SimulatedNode::stand_down(const std::string& why) {
  if (!server_) return 0;
  server_->stand_down(why);
  close(former_server_);
  former_server_ = std::move(server_);
  campaigns_ = false;
  lease_->resign(nullptr);
  return SIGKILL;
}

void SimulatedNode::stood_down(std::uint64_t server) {
  resign();
  if (member_ || over_ || !server_ || server != server_->number()) return;
  close(former_server_);
  former_server_ = std::move(server_);
  if (!looking_) return;
  reset_link();
  look_for_coordinator(look_until_);
}

void SimulatedNode::record(const VerdictMessage& verdict) {
  if (!server_) return;
  lease_->record_verdict(recorded_text(verdict), [weak = weak_from_this(), verdict](bool done) {
    if (const auto self = weak.lock(); self && !self->over_) self->recorded(verdict, done);
  });
}

void SimulatedNode::recorded(const VerdictMessage& verdict, bool done) {
  if (!server_) return;
  if (done) return server_->recorded();
  if (!lease_->leads()) return;
  later(pause_before_recording_again, [this, verdict] {
    if (!over_) record(verdict);
  });
}

void SimulatedNode::on_recorded_verdict(const std::string& text) {
  recorded_ = read_recorded(text);
  if (!recorded_) return;
  if (server_ && !lease_->leads()) return server_->stand_down("the job has ended meanwhile");
  if (looking_) end_as_recorded();
}

void SimulatedNode::end_as_recorded() {
  if (claim_.term == 0) end(Outcome::refused, std::nullopt);
  else end(Outcome::verdict, *recorded_);
}

void SimulatedNode::resign() {
  campaigns_ = false;
  lease_->resign([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->resigned_ = true;
    self->close_up();
  });
}

// ---- workers

void SimulatedNode::workers_end(Round round, bool well) {
  if (workers_round_ != round || workers_ != Workers::running) return;
  if (well) {
    claim_.succeeded = true;
    say(Succeeded{round});
    workers_ = Workers::stopping;
    return workers_are_gone();
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
  if (signal == SIGKILL && std::exchange(workers_live_, false)) world_.invariants.workers_end(*this);
  const bool quick = signal == SIGKILL || world_.random.chance(0.6);
  const Clock::duration longest =
      quick ? Clock::duration(milliseconds(10)) : Clock::duration(world_.scenario.grace) + milliseconds(10);
  const auto time = world_.random.time(quick ? Clock::duration{1} : longest / 2, longest);
  later(time, [this, round = workers_round_, stop = ++stop_] {
    if (workers_round_ == round && workers_ == Workers::stopping && stop == stop_) workers_are_gone();
  });
}

void SimulatedNode::workers_are_gone() {
  workers_ = Workers::none;
  if (std::exchange(workers_live_, false)) world_.invariants.workers_end(*this);
  if (over_) return end(outcome_, verdict_);
  stopped(workers_round_);
}

}  // namespace ddrun::test
