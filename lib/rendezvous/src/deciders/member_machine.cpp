#include "member_machine.hpp"

#include <signal.h>

#include <utility>

#include "codec.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/ip_address.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace {

/// A wait that lasts longer is explained by a notice.
constexpr Milliseconds notice_delay{2'000};
/// Between attempts to record the verdict while the lease is held.
constexpr Milliseconds record_retry_interval{500};

constexpr std::size_t max_shown_address = 100;

Log notice(std::string text) { return {LogKind::notice, std::move(text)}; }

}  // namespace

std::vector<Endpoint> announced_endpoints(const std::string& text) {
  std::vector<Endpoint> endpoints;
  for (const std::string& one : split(text, ',')) {
    const auto at = split_host_port(one);
    const auto port = at && at->port ? parse_integer(*at->port, 1, 65535) : fail(Errc::invalid_argument, "no port");
    if (at && port) endpoints.push_back({at->host, static_cast<std::uint16_t>(*port)});
  }
  return endpoints;
}

MemberMachine::MemberMachine(MemberOptions options)
    : options_(std::move(options)), state_(options_.on_step), agent_id_(options_.new_agent_id()) {}

std::vector<MemberAction> MemberMachine::step(const MemberEvent& event, Clock::time_point now) {
  now_ = now;
  std::visit([this](const auto& what) { on(what); }, event);
  if (const auto wrong = state_.take_wrong()) {
    end_by_defect(concat("the member on ", options_.host, " ", *wrong), event);
  }
  return std::exchange(actions_, {});
}

// ---- joining

void MemberMachine::on(const member_event::Prepare&) {
  if (options_.may_run_server) start_server();
}

void MemberMachine::on(const member_event::Begin&) {
  if (state_ != MemberState::idle) return;
  const Deadline until = now_ + options_.spec.join_timeout;
  if (!has_lease()) return join_by(until);
  act(member_action::StartLease{});
  search_coordinator(until);
}

Join MemberMachine::join_message() const {
  Join join = options_.join;
  join.agent_id = agent_id_;
  if (claim_.term != 0 || claim_.node_count != 0) join.claim = claim_;
  return join;
}

void MemberMachine::join_by(Deadline until) {
  if (!state_.enter(Step::join)) return;
  join_until_ = until;
  dials_for_ = std::chrono::round<Milliseconds>(until - now_);
  const bool is_here = runs_coordinator();
  act(member_action::Dial{is_here, is_here || !followed_ ? "" : followed_->address, join_message(), until,
                          !rejoin_reason_.empty() && !has_lease()});
}

/// The process that held the coordinator's port may not have been a coordinator, or has ended: agents started at the
/// same moment can block each other.
void MemberMachine::on(const member_event::Retry& retry) {
  if (state_ != MemberState::joining) return;
  if (!std::exchange(retry_noticed_, true)) {
    notice_later(concat(retry.why, "; trying for ", format_duration(dials_for_)));
  }
  if (rejoin_reason_.empty() && !runs_coordinator() && options_.may_run_server) start_server();
}

/// The endpoint's name may resolve differently by now; the current addresses decide.
void MemberMachine::on(const member_event::Located& located) {
  // A lost coordinator may still run: a second one would start the job anew.
  const bool may_run = state_ == MemberState::joining && rejoin_reason_.empty() && !runs_coordinator();
  if (!may_run || options_.is_explicit) return;
  if (!located.is_here) return lose({located.is_here.error(), false});
  if (*located.is_here) start_server();
}

void MemberMachine::start_server() { act(member_action::StartServer{++servers_, term_, join_message()}); }

void MemberMachine::on(const member_event::ServerStarted&) {
  server_ = Server::serving;
  if (has_lease()) campaign();  // with the address
  if (is_searching() || state_ == MemberState::joining) join_by(join_until_);
}

void MemberMachine::on(const member_event::ServerFailed& failed) {
  if (!has_lease() || is_over()) return;
  resign(true);
  lose({failed.error, false});
}

void MemberMachine::notice_later(std::string text) {
  notice_ = std::move(text);
  deadlines_.arm(Due::notice, now_ + notice_delay);
}

// ---- a member

void MemberMachine::on(const FromCoordinator& message) {
  const bool is_joining = state_ == MemberState::joining;
  if (!is_member() && !(is_joining && is_any<Welcome, Refused, VerdictMessage>(message))) return;
  std::visit(
      [this](const auto& what) {
        if constexpr (requires { obey(what); }) obey(what);
        else if constexpr (requires { ToAgent(what); }) tell(what);
      },
      message);
}

void MemberMachine::obey(const Welcome& welcome) {
  if (is_member() || !state_.enter(Step::admit)) return;
  last_over_ = 0;
  for (const Due due : {Due::notice, Due::search, Due::superseded}) deadlines_.clear(due);
  // Tells the next coordinator that the job is not new.
  if (claim_.term == 0) claim_.term = welcome.term;
  joined_term_ = welcome.term;
  // A member is no candidate: its coordinator, if it lives, gets the lease again as soon as the engine is back.
  if (is_candidate_ && !runs_coordinator()) resign(false);
}

void MemberMachine::obey(const Waiting& waiting) {
  notice_ = concat("waiting for ", waiting.waiting_for);
  if (!options_.spec.several_machines()) return tell(waiting);
  if (waiting.spare) return tell(notice(concat("this node is a spare and waits for ", waiting.waiting_for)));
  const std::string nodes = waiting.min_nodes == waiting.max_nodes
                                ? std::to_string(waiting.min_nodes)
                                : concat(waiting.min_nodes, " to ", waiting.max_nodes);
  notice_later(concat("waiting for ", waiting.waiting_for, "; ", waiting.joined, " of ", nodes,
                      waiting.joined == 1 ? " is there" : " are there"));
}

void MemberMachine::obey(const Open& open) {
  if (state_ == MemberState::waiting && open.round > last_over_) act(member_action::OpenStore{open});
}

void MemberMachine::on(const member_event::StoreOpened& opened) {
  if (!is_member()) return;
  if (opened.port) return send(Opened{opened.round, *opened.port});
  say(Leave{LeaveKind::cannot_go_on, exit_codes::launcher_failed,
            concat("the worker store on ", options_.host, ": ", opened.port.error().message)});
}

void MemberMachine::obey(const Start& start) {
  const bool is_late = state_ == MemberState::in_round || start.round <= last_over_ || leave_;
  if (is_late || !state_.enter(Step::start)) return;
  deadlines_.clear(Due::notice);
  notice_.clear();
  claim_ = {start.term, start.round, start.ranks.node_rank, start.ranks.node_count, start.job_state, false, false};
  if (start.ranks.node_rank != 0) act(member_action::CloseStore{});
  Join& join = options_.join;
  if (join.rank_is_wish && join.node_rank != start.ranks.node_rank && join.node_rank < start.ranks.node_count) {
    const std::string& other = options_.spec.other_node_rank;
    tell(Log{LogKind::warning,
             concat("node rank ", join.node_rank, ", which this machine asks for, is taken, and it gets ",
                    start.ranks.node_rank, "; leave --node-rank out", other.empty() ? "" : concat(" (", other, ")"))});
    join.node_rank = -1;
    join.rank_is_wish = false;
  }
  options_.host = start.ranks.host;
  RankAssignment ranks = start.ranks;
  ranks.run_id = options_.run_id;
  ranks.round = start.round;
  tell(RoundBegins{start.round, std::move(ranks)});
}

void MemberMachine::obey(const Stop& stop) {
  if (state_ == MemberState::in_round || stop.round <= last_over_) {
    if (stop.round == claim_.round)
      tell(StopOrder{.another_round = stop.another_round,
                     .why = stop.why,
                     .signal = stop.signal,
                     .look = stop.look,
                     .awaits_page = stop.awaits_page});
    return;
  }
  last_over_ = stop.round;
  send(Stopped{stop.round});  // OPEN of a round that was never started: nothing runs
}

void MemberMachine::on(const FromAgent& message) {
  std::visit(
      [this](const auto& what) {
        if constexpr (requires { say(what); }) say(what);
        else if (is_member()) send(what);
      },
      message);
}

void MemberMachine::say(const Succeeded& succeeded) {
  claim_.succeeded = true;
  if (is_member()) send(succeeded);
}

void MemberMachine::say(const Stopped& stopped) {
  if (state_ == MemberState::in_round) {
    if (!state_.enter(Step::stop)) return;
    last_over_ = claim_.round;
    send(stopped);
  } else if (state_ == MemberState::rejoining) {
    act(member_action::Hang{});
    find_coordinator_again();
  }
}

// ---- losing the coordinator

void MemberMachine::on(const LinkLoss& loss) {
  if (state_ != MemberState::rejoining && !is_over()) lose(loss);
}

void MemberMachine::lose(const LinkLoss& loss) {
  // A member that lost contact with a running coordinator rejoins it, or the next one.
  if (is_member() && (has_lease() || (loss.unreachable && !runs_coordinator()))) {
    return rejoin(loss.error.message, step_down(loss.error.message), loss.grace());
  }
  const std::string before = rejoin_reason_.empty() || is_member() ? "" : concat(rejoin_reason_, "; then ");
  const bool has_workers = state_ == MemberState::in_round || state_ == MemberState::rejoining;
  if (!has_workers) act(member_action::Hang{});
  if (state_ == MemberState::in_round && loss.grace() == Grace::lost_sight) {
    tell(StopOrder{false, loss.error.message, 0, max_grace(Grace::lost_sight, options_.spec)});
  }
  if (!state_.enter(Step::end)) return;
  deadlines_.clear_all();
  tell(CoordinatorLost{concat(before, loss.error.message)});
}

void MemberMachine::obey(const Refused& refused) {
  const bool may_rejoin = refused.kind == RefusalKind::lost || refused.kind == RefusalKind::moved;
  if (may_rejoin && is_member() && (!runs_coordinator() || has_lease())) {
    claim_.moved = refused.kind == RefusalKind::moved;
    return rejoin(refused.why, step_down(refused.why), *ordered_stop(refused));
  }
  // The local coordinator releases this node like any other.
  if (refused.kind == RefusalKind::permanent && leave_) return end(left_verdict(*leave_, ""));
  if (refused.kind != RefusalKind::not_needed) return end(failure(refused.why));
  const std::string what = concat("this node was not needed: ", refused.why);
  if (claim_.round == 0 && options_.run_id == RendezvousSpec().id) {
    // It may have been another job with the same program elsewhere.
    return end(
        failure(concat(what, ", and nothing has run here; a job with a name (--rdzv-id) takes that for success")));
  }
  tell(notice(what));
  end({});
}

/// This node lost its membership, and the job may go on: joins as a newcomer, after its workers were stopped with
/// `signal`. Until then the link stays open: its end would report theirs.
void MemberMachine::rejoin(const std::string& why, int signal, Grace grace) {
  rejoin_reason_ = why;
  agent_id_ = options_.new_agent_id();
  retry_noticed_ = false;
  deadlines_.clear(Due::superseded);
  act(member_action::CloseStore{});
  if (has_lease()) campaign();
  if (state_ == MemberState::in_round) {
    if (!state_.enter(Step::rejoin)) return;
    return tell(
        StopOrder{true, concat(why, "; stopping the workers, to join again"), signal, max_grace(grace, options_.spec)});
  }
  act(member_action::Hang{});
  tell(notice(concat(why, has_lease() ? "; looking for the next coordinator" : "; joining again")));
  find_coordinator_again();
}

void MemberMachine::find_coordinator_again() {
  // The coordinator that got LEAVE no longer knows this node.
  if (leave_) return end(left_verdict(*leave_, when_not_member()));
  const Deadline until = now_ + options_.spec.coordinator_timeout;
  if (has_lease()) search_coordinator(until);
  else join_by(until);
}

// ---- with a lease, which decides again and again where the coordinator runs

void MemberMachine::on(const lease::Tell& what) {
  std::visit([this](const auto& told) { on(told); }, what);
}

void MemberMachine::campaign() {
  is_candidate_ = true;
  act(member_action::Campaign{runs_coordinator()});
}

void MemberMachine::resign(bool answers) {
  is_candidate_ = false;
  act(member_action::Resign{answers});
}

void MemberMachine::search_coordinator(Deadline until) {
  if (!state_.enter(Step::search)) return;
  join_until_ = until;
  if (recorded_) return end_as_recorded();
  if (runs_coordinator()) return join_by(until);
  if (!is_candidate_) campaign();
  deadlines_.arm(Due::search, until);
  if (leader_) return follow(*leader_);
  notice_later(
      concat("waiting for a coordinator; ", lease_error_.empty() ? "no machine leads the job yet" : lease_error_));
}

void MemberMachine::on(const lease::Leader& leader) {
  if (!leader.is_self && !leader.address.empty() && announced_endpoints(leader.address).empty()) {
    leader_.reset();
    return on(lease::tell::Status{concat("what holds the job's lease is another program: '",
                                         cut_line(plain_line(leader.address), max_shown_address),
                                         "' is no address of a coordinator")});
  }
  leader_ = leader;
  lease_error_.clear();
  if (is_over()) return;
  if (leader.is_self) {
    // A new term for the running coordinator, or the first one.
    if (!is_candidate_) return resign(false);  // too late
    if (std::exchange(term_, leader.term) == leader.term && runs_coordinator()) return;
    has_resigned_ = false;
    return runs_coordinator() ? act(member_action::Lead{leader.term}) : start_server();
  }
  const std::string why = concat("another machine leads the job, in term ", leader.term);
  // It notifies its members, including this node.
  if (runs_coordinator()) return act(member_action::StepDown{why});
  if (is_searching()) return follow(leader);
  if (!is_member() || leader.address.empty() || leader.term <= joined_term_) return;
  // Either the same coordinator has a new term, or it has not noticed yet that it lost the lease.
  joined_term_ = leader.term;
  if (!followed_ || followed_->address == leader.address) return;
  // Its message may still be on the way. While workers are being stopped it may be handing over, which saves a restart:
  // wait longer.
  superseded_by_ = why;
  const Milliseconds interval = options_.spec.heartbeat_interval;
  deadlines_.arm(Due::superseded, now_ + (state_ == MemberState::in_round ? interval / 4 : interval));
}

void MemberMachine::follow(const lease::Leader& leader) {
  const bool follows = state_ == MemberState::joining && followed_ == leader;
  if (leader.is_self || leader.address.empty() || follows) return;
  // The coordinator that has just sent this node away.
  if (claim_.moved && leader.term == claim_.term) return;
  followed_ = leader;
  join_by(join_until_);
}

/// The leader has served this node and refuses connections now, so it has ended: depose it instead of waiting for the
/// lease to expire. If it lives behind a device that refuses, it cannot begin a round alone, and the next coordinator
/// waits for the members of the last round or the lease's time to live.
void MemberMachine::on(const member_event::NotListening&) {
  if (!is_searching() || runs_coordinator() || !followed_ || followed_->term != joined_term_) return;
  if (options_.spec.min_nodes > 1) act(member_action::Depose{followed_->term});
}

void MemberMachine::on(const lease::tell::Lost&) {
  leader_.reset();
  if (runs_coordinator()) act(member_action::Suspend{});
}

/// The local coordinator, if any, dismisses its agents and ends. Gives the lease back, so that the next leader has a
/// new term. Returns the signal for this machine's workers: no grace, since the next coordinator does not wait for
/// them.
int MemberMachine::step_down(const std::string& why) {
  if (!runs_coordinator()) return 0;
  act(member_action::StepDown{why});
  server_ = Server::none;
  resign(false);
  return SIGKILL;
}

/// The local coordinator has dismissed its members. If this node was stopping workers and not a member, it searches for
/// the next coordinator as they do.
void MemberMachine::on(const member_event::ServerSteppedDown& stepped_down) {
  if (!runs_coordinator() || stepped_down.server != servers_) return;
  resign(true);
  if (is_over() || is_member()) return;
  const bool searches = is_searching();
  server_ = Server::none;
  if (!searches) return;
  act(member_action::Hang{});
  search_coordinator(join_until_);
}

/// The verdict is sent only once no other coordinator can run the job again.
void MemberMachine::on(const member_event::Recorded& recorded) {
  if (!runs_coordinator() || is_over()) return;
  if (recorded.done) return act(member_action::NoteRecorded{});
  if (!leads()) return;  // repeated once it leads again
  to_record_ = recorded.verdict;
  deadlines_.arm(Due::record, now_ + record_retry_interval);
}

void MemberMachine::on(const lease::tell::Verdict& verdict) {
  if (is_over()) return;
  recorded_ = parse_verdict(verdict.text);
  if (!recorded_) return;
  if (runs_coordinator() && !leads()) return act(member_action::StepDown{"the job has ended meanwhile"});
  if (is_searching()) end_as_recorded();
}

void MemberMachine::end_as_recorded() {
  act(member_action::Hang{});
  if (claim_.term != 0) return end(*recorded_);
  // Never a member: the work of this node was not done.
  end(failure(concat("the job ", options_.run_id, " has ended already: ", recorded_->why,
                     "; to run it once more give it another --rdzv-id")));
}

void MemberMachine::on(const lease::tell::Status& status) {
  lease_error_ = status.text;
  if (!is_over()) tell(notice(status.text));
}

/// The running job continues, but without failover.
void MemberMachine::on(const lease::tell::Unusable& unusable) {
  lease_error_ = unusable.error.message;
  if (is_member()) tell(notice(lease_error_));
  else if (!is_over()) lose({unusable.error, false});
}

// ---- the end of this node's part

void MemberMachine::say(const Leave& leave) {
  leave_ = leave;
  if (is_member()) send(leave);
  else if (!is_over()) end(left_verdict(leave, when_not_member()));
}

/// Completes a sentence about an event outside of membership.
const char* MemberMachine::when_not_member() const {
  return rejoin_reason_.empty() ? " before the job began" : " while this node was not part of it";
}

VerdictMessage MemberMachine::failure(std::string why) const {
  return {.kind = VerdictKind::launcher_failed,
          .exit_code = exit_codes::launcher_failed,
          .host = options_.host,
          .why = std::move(why)};
}

VerdictMessage MemberMachine::left_verdict(const Leave& leave, const char* when) const {
  VerdictMessage verdict = failure(concat(leave.text, *when == '\0' ? "" : ",", when));
  verdict.exit_code = leave.code;
  if (leave.kind == LeaveKind::cannot_go_on) return verdict;
  verdict.kind = VerdictKind::timed_out;
  if (leave.kind != LeaveKind::signalled) return verdict;
  verdict.kind = VerdictKind::stopped_by_signal;
  verdict.exit_code = exit_codes::signal_base + leave.code;
  verdict.signal = leave.code;
  verdict.why =
      concat("stopped by ", signal_name(leave.code), leave.text.empty() ? "" : concat(" from ", leave.text), when);
  return verdict;
}

void MemberMachine::end(VerdictMessage verdict) {
  if (!state_.enter(Step::end)) return;
  deadlines_.clear_all();
  tell(std::move(verdict));
}

void MemberMachine::on(const member_event::Abandon&) {
  if (!state_.enter(Step::abandon)) return;
  deadlines_.clear_all();
  server_ = Server::none;
  term_ = 0;
  act(member_action::DropAll{});
}

void MemberMachine::on(const member_event::Close&) {
  if (!state_.enter(Step::close)) return;
  deadlines_.clear_all();
  deadlines_.arm(Due::close, now_ + shutdown::close_timeout);
  act(member_action::CloseLink{});
}

void MemberMachine::on(const member_event::LinkClosed&) {
  if (state_ == MemberState::closing && state_.enter(Step::drain)) go_on_closing();
}

void MemberMachine::on(const member_event::ServerDone& done) {
  if (!runs_coordinator() || done.server != servers_) return act(member_action::StopServer{done.server});
  server_ = Server::done;
  go_on_closing();
}

void MemberMachine::on(const member_event::Resigned&) {
  has_resigned_ = true;
  if (state_ == MemberState::resigning) finish_closing();
}

void MemberMachine::go_on_closing() {
  if (state_ != MemberState::awaiting || server_ == Server::serving) return;
  if (term_ == 0 || has_resigned_) return finish_closing();
  if (!state_.enter(Step::resign)) return;
  resign(true);
  deadlines_.arm(Due::close, now_ + shutdown::resign_timeout);
}

void MemberMachine::finish_closing() {
  if (!state_.enter(Step::finish)) return;
  deadlines_.clear_all();
  act(member_action::DropAll{});
  act(member_action::Done{});
}

/// What the wrong step at `event` would have done is left out, and this node leaves.
void MemberMachine::end_by_defect(const std::string& what, const MemberEvent& event) {
  actions_.clear();
  if (state_ == MemberState::closed) return;
  const bool closes = std::holds_alternative<member_event::Close>(event) || state_ >= MemberState::closing;
  if (closes) return finish_closing();
  const Leave leave{LeaveKind::cannot_go_on, exit_codes::launcher_failed, what};
  const auto* message = std::get_if<FromCoordinator>(&event);
  const bool is_sent_away = message != nullptr && is_any<Refused, VerdictMessage>(*message);
  if (is_sent_away || std::holds_alternative<LinkLoss>(event)) return end(left_verdict(leave, ""));
  say(leave);
}

// ---- deadlines

void MemberMachine::on(const member_event::TimeIsUp&) {
  deadlines_.expire(now_, [this](Due due, bool again) {
    if (state_.check(due, again)) on(due);
  });
}

void MemberMachine::on(Due due) {
  switch (due) {
    case Due::notice: return tell(notice(notice_));
    case Due::search:
      if (state_ != MemberState::searching) return;  // the link reports the reason
      return lose({Error{Errc::timeout,
                         concat("no machine has taken the lead of the job in time", lease_error_.empty() ? "" : ": ",
                                lease_error_),
                         {}},
                   false});
    case Due::superseded:
      // It leads no more, and may not say so. The link stays open, unused, until the workers have ended.
      if (state_ == MemberState::in_round) act(member_action::BoundWorkers{});
      return rejoin(superseded_by_, 0, Grace::whole);
    case Due::record: return act(member_action::Record{to_record_});
    case Due::close: return finish_closing();
  }
}

}  // namespace ddrun::rendezvous
