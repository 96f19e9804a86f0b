#include "ddrun/rendezvous/coordinator.hpp"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "admission.hpp"
#include "causes.hpp"
#include "ddrun/base/deadlines.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "heartbeat.hpp"
#include "job_state.hpp"
#include "membership.hpp"
#include "node_ranks.hpp"
#include "outgoing.hpp"
#include "succession.hpp"
#include "turned_away.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr Milliseconds open_timeout{30'000};
constexpr Milliseconds verdict_timeout{5'000};
constexpr Milliseconds stall_notice_delay{10'000};
/// Of a node's report of its first failure.
constexpr std::size_t max_cause_bytes = 64UL << 10U;
/// Of a member's text that is sent to all others.
constexpr std::size_t max_text_bytes = 4UL << 10U;
/// SIGKILL, and the agent's own work before and after it.
constexpr Milliseconds kill_margin{1'000};
/// A worker group that fails within this time has made no progress that a restart could use.
constexpr Milliseconds early_failure_time{1'000};
/// For members of a round to rejoin under the next coordinator, after their workers are stopped.
constexpr Milliseconds rejoin_timeout{5'000};
/// The longest time that a newcomer waits for the running round to settle, whatever --last-call is.
constexpr Milliseconds max_settle_time{30'000};

/// From STOP, or from the last SUCCEEDED, until a member without STOPPED counts as lost: the grace time, and time for
/// slow output.
Milliseconds stop_timeout(const JobSettings& job) { return job.grace + Milliseconds{30'000}; }

std::string truncate_text(const std::string& text) {
  return text.size() <= max_text_bytes ? text : concat(text.substr(0, max_text_bytes), " [...]");
}

std::string conflict_text(const Join& join, const Member& rival) {
  if (join.agent_id == rival.agent_id) return concat("an agent of this id is there already: ", describe(rival));
  return concat("node rank ", join.node_rank, " is taken by ", describe(rival));
}

}  // namespace

/// The whole implementation of Coordinator; the functions below follow in the same sections.
class Coordinator::State {
 public:
  explicit State(CoordinatorOptions options);

  void join(LinkId link, const Join& join, const LinkAddresses& addresses);
  void receive(LinkId link, const FromAgent& message);
  void note_activity(LinkId link);
  void connection_broken(LinkId link, const std::string& how);
  void lost(LinkId link, const std::string& how);
  void tick();
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const;

  void suspend();
  void lead(Term term);
  void step_down(const std::string& why);
  [[nodiscard]] std::optional<VerdictMessage> take_verdict_to_record();
  void recorded();
  [[nodiscard]] bool stepped_down() const { return stepped_down_.has_value(); }

  [[nodiscard]] bool done() const;
  [[nodiscard]] const Membership& members() const { return members_; }
  [[nodiscard]] const JobState& job() const { return job_; }
  [[nodiscard]] std::vector<Output> take_outputs() { return out_.take(); }
  [[nodiscard]] std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

  Clock::time_point now;  ///< set before each call

 private:
  enum class Phase {
    gathering,  ///< no round: waiting for members, the last call, or the pause before a restart
    opening,    ///< OPEN was sent to node rank 0
    running,    ///< START was sent to all
    stopping,   ///< STOP was sent, STOPPED is missing from some
    recording,  ///< the verdict is being recorded before it is sent
    ended,      ///< the verdict was sent, or another coordinator took over
  };
  /// Why a round is stopped, and what follows.
  struct Ending {
    VerdictMessage cause;       ///< the verdict if the job ends here
    bool is_final = false;      ///< the job ends
    bool uses_restart = false;  ///< else: a restart, or a new round that costs none
    LinkId cause_link = 0;      ///< its STOPPED has the details
    std::string machine;        ///< where the worker failed
    bool had_started = false;   ///< workers were running
    bool killed = false;        ///< STOP carried SIGKILL
    Clock::time_point since;
  };
  /// Deadlines, each handled completely before the next. Those that expire at one instant are handled in this order:
  /// losses and the end of a round before what begins one, and the end for lack of nodes after all.
  enum class Due {
    opened,     ///< OPENED of node rank 0
    stopped,    ///< STOPPED of all members of the round
    skew,       ///< SUCCEEDED of all, after the first one (--exit-skew)
    lease,      ///< the lease is held again, or the verdict is recorded
    claims,     ///< of members of a former coordinator's round
    pause,      ///< before a restart
    fence,      ///< the end of workers that may still run on a lost machine
    admission,  ///< of members that wait beside the running round
    last_call,  ///< for more nodes than needed
    join,       ///< of enough nodes
    verdict,    ///< all members have closed after the verdict
  };
  /// Compared between failures that led to restarts; a new coordinator starts from zero.
  struct Failure {
    std::string key;  ///< empty: cause unknown
    int exit_code = 0;
    bool at_start = false;
    int times = 0;  ///< consecutive
  };

  /// Queues the event line that `make`, of event_text, returns for these arguments.
  template <class Make, class... Args>
  void event(Make make, const Args&... args) {
    if (options_.with_events) out_.event(make(args...), members_.size() + 100);
  }
  [[nodiscard]] std::optional<LinkId> observer() const;

  // Joining.
  void note_turned_away(const std::string& machine, const std::string& why);
  void admit(LinkId link, const Join& join, const LinkAddresses& addresses);
  void send_waiting(Member& member, bool spare, const std::string& waiting_for);
  [[nodiscard]] std::string wait_reason() const;
  [[nodiscard]] bool has_free_place() const;
  [[nodiscard]] Clock::duration settle_time() const;
  [[nodiscard]] Clock::time_point admit_from() const;
  void schedule_admission();
  void admit_waiting();
  void reply_job_ended(LinkId link);

  // Takeover.
  void expect_claims();
  void recover(const Recovery& recovery);
  [[nodiscard]] const Member* own_member() const;
  [[nodiscard]] bool is_over() const { return phase_ == Phase::recording || phase_ == Phase::ended; }
  [[nodiscard]] Clock::duration lost_workers_timeout() const;
  void escalate_to_kill();
  void hand_over(const Ending& ending);
  void dismiss_members(RefusalKind kind, const std::string& why);
  void arm_lease_deadline();

  // Rounds.
  void gather();
  void begin_round();
  void start_round(std::uint16_t port);
  [[nodiscard]] std::vector<Member*> candidates();

  // Messages from members.
  void on(Member& member, const Opened& message);
  void on(Member& member, const Failed& message);
  void on(Member& member, const Succeeded& message);
  void on(Member& member, const Stopped& message);
  void on(Member& member, const Leave& message);
  void on(Member& member, const Abort& message);
  void on(Member& member, const PassSignal& message);
  void note_stall(Member& member, Milliseconds stalled);
  void lose_orderly(Member& member, const Abort& message);
  void check_finished();

  // Losing members.
  void note_activity(Member& member) const;
  void lose_member(Member& member, const std::string& how, Clock::time_point since, bool broken);
  void lost_while_stopping(VerdictMessage cause, Clock::time_point since, bool broken);
  void count_loss(VerdictMessage cause);
  void fence(const Member& gone, Clock::time_point since, bool broken);
  void release(Member& member, const std::string& why);

  // Deadlines.
  void check_heartbeats();
  void on(Due due);
  void lose_unstopped();
  void on_skew();

  // Stopping a round.
  void restart_for_newcomers(const std::vector<Member*>& newcomers);
  [[nodiscard]] std::string repeated_cause(const Ending& ending);
  void stop_for_cause(VerdictMessage cause, LinkId cause_link, bool may_restart);
  void stop_permanently(VerdictMessage cause, const Member* member, int signal);
  void begin_stop(Ending ending, int signal);
  void send_stop(int signal);
  void note_stopped();
  void on_all_stopped();
  void spend_restart(const std::string& why);
  void count_failure(const std::string& machine, const std::string& host);

  // End of the job.
  void end(VerdictMessage verdict);
  void publish_verdict();
  void send_outcome(LinkId link, bool took_part);
  [[nodiscard]] VerdictMessage too_few_nodes_verdict() const;

  CoordinatorOptions options_;
  JobState job_;
  Membership members_;
  Heartbeat heartbeat_;

  Phase phase_ = Phase::gathering;
  std::vector<LinkId> round_links_;  ///< in order of node rank; some may be lost
  std::string address_;              ///< of node rank 0
  std::size_t round_size_ = 0;
  std::size_t unfinished_ = 0;   ///< members of the round without SUCCEEDED and STOPPED
  std::size_t unsucceeded_ = 0;  ///< members of the round without SUCCEEDED
  std::size_t to_stop_ = 0;      ///< STOPPED still expected after STOP
  bool any_succeeded_ = false;
  std::optional<Ending> ending_;
  CauseDetails cause_details_;
  std::string abbreviated_cause_;  ///< of the verdict, for all but the observer
  std::optional<LinkId> observer_of_the_end_;
  Failure last_failure_;
  std::optional<VerdictMessage> last_cause_;  ///< of the last round, if the job continued

  Deadlines<Due, Clock::time_point> deadlines_;
  std::optional<Clock::time_point> join_until_;  ///< since the first round's members were gathered
  bool last_call_over_ = false;
  std::string fenced_;  ///< the lost member whose workers the fence waits for
  Succession succession_;
  std::optional<VerdictMessage> lost_finished_;  ///< a finished member was lost: the cause, if it counts later
  Clock::time_point recording_since_;
  bool to_record_ = false;  ///< the transport has not taken the verdict yet
  /// The reply to agents that join after this coordinator stepped down.
  std::optional<Refused> stepped_down_;
  Clock::time_point started_at_;  ///< the last START

  TurnedAway turned_away_;
  std::vector<std::string> warnings_;

  Outgoing out_{[this] { return observer(); }};
};

Coordinator::State::State(CoordinatorOptions options)
    : options_(std::move(options)), heartbeat_(options_.heartbeat_interval, options_.heartbeat_misses) {}

// ---- joining

void Coordinator::State::join(LinkId link, const Join& join, const LinkAddresses& addresses) {
  if (members_.find(link) != nullptr) {
    out_.close(link);
    lost(link, "it sent a second JOIN");
    return;
  }
  if (stepped_down_) return out_.refuse(link, RefusalKind::moved, stepped_down_->why);
  // No member, and nothing has run yet: the job is defined anew by this agent.
  if (members_.empty() && !job_.started && !job_.verdict) {
    job_.raw_settings.clear();
    job_.job_id.clear();
    join_until_.reset();
    deadlines_.clear(Due::join);
    deadlines_.clear(Due::last_call);
    last_call_over_ = false;
    last_cause_.reset();
    succession_.forget_former();
  }
  const std::string machine =
      concat(join.host.substr(0, max_host_name_bytes), " (", addresses.peer_address.text(), ")");
  if (const auto rejected = check_join(join, job_, options_)) {
    const Refused& refused = rejected->refused;
    event(event_text::refused, job_.round, join.host, addresses.peer_address.text(), refused.why);
    if (refused.kind != RefusalKind::moved) note_turned_away(machine, rejected->seen_from_here);
    out_.refuse(link, refused.kind, refused.why);
  } else if (phase_ == Phase::ended) {
    reply_job_ended(link);
  } else if (const Member* rival = members_.conflicting_member(join)) {
    const std::string why = conflict_text(join, *rival);
    // The same agent again: its old connection is not known to be lost yet.
    if (join.agent_id != rival->agent_id) note_turned_away(machine, why);
    out_.refuse(link, RefusalKind::taken, why);
  } else {
    turned_away_.set_admitted(machine);
    admit(link, join, addresses);
  }
}

void Coordinator::State::note_turned_away(const std::string& machine, const std::string& why) {
  if (std::string warning = turned_away_.add(machine, why); !warning.empty()) warnings_.push_back(std::move(warning));
}

void Coordinator::State::admit(LinkId link, const Join& join, const LinkAddresses& addresses) {
  const JobSettings& job = job_.settings;
  const bool is_own = options_.single_member || (options_.own_join && options_.own_join->agent_id == join.agent_id);
  Member& member = members_.add(link, join, addresses, is_own, now);
  if (!options_.single_member) heartbeat_.add(link, now);
  const bool may_recover = options_.term != 0 && !job_.started && !job_.verdict;
  if (may_recover && succession_.is_news(join.claim)) expect_claims();
  if (join.claim.term < options_.term) {
    succession_.add_claim(member, join.claim, members_);
    job_.merge(join.claim.job_state, now);  // also from a late claim: the number of restarts never decreases
  }
  out_.send(link, Welcome{options_.host, static_cast<std::uint32_t>(options_.heartbeat_interval.count()),
                          static_cast<std::uint32_t>(options_.heartbeat_misses), job_.job_id, "",
                          options_.term});  // the transport sets the session
  const bool in_time = phase_ == Phase::gathering || (phase_ == Phase::stopping && !ending_->is_final);
  const bool joins = has_free_place();
  const bool joins_now = joins && admit_from() <= now;
  const bool spare = !joins && (!in_time || members_.available() > job.max_nodes);
  event(event_text::joined, job_.round, member.node(), member.local_world_size, members_.available(), spare);
  if (phase_ == Phase::gathering) {
    gather();
    if (phase_ != Phase::gathering || members_.find(link) == nullptr) return;
    send_waiting(member, spare, wait_reason());
    return;
  }
  if (joins && !joins_now) {
    send_waiting(member, false,
                 concat("the round that runs to have lasted ", causes::seconds_text(settle_time()),
                        ", in case more nodes come (--last-call)"));
    deadlines_.arm(Due::admission, admit_from());
    return;
  }
  send_waiting(member, spare,
               spare                                    ? "a place in the job"
               : phase_ == Phase::stopping || joins_now ? "the end of the round before"
                                                        : "the next round");
  if (joins_now) restart_for_newcomers({&member});
}

void Coordinator::State::send_waiting(Member& member, bool spare, const std::string& waiting_for) {
  member.notified_spare = spare;
  out_.send(member.link, Waiting{static_cast<std::uint32_t>(members_.available()),
                                 static_cast<std::uint32_t>(job_.settings.min_nodes),
                                 static_cast<std::uint32_t>(job_.settings.max_nodes), spare, waiting_for});
}

/// What waiting members wait for while no round runs.
std::string Coordinator::State::wait_reason() const {
  const int wanted = job_.settings.min_nodes - members_.available();
  if (wanted > 0) return causes::more_nodes(wanted);
  if (succession_.expects_claims()) return "the others of the last round";
  if (succession_.is_suspended()) return "the lease, which cannot be renewed at the moment";
  if (const auto until = deadlines_.at(Due::fence)) {
    return concat("the end of workers that may still run on ", fenced_, ", for ", causes::seconds_text(*until - now),
                  " (--fence)");
  }
  return deadlines_.is_armed(Due::pause) ? "the end of the pause before the restart" : "the end of the last call";
}

// ---- newcomers beside a round: admitting one restarts all workers, so they are collected for a while

bool Coordinator::State::has_free_place() const {
  return !succession_.is_suspended() && (phase_ == Phase::opening || phase_ == Phase::running) && !any_succeeded_ &&
         round_size_ < static_cast<std::size_t>(job_.settings.max_nodes);
}

Clock::duration Coordinator::State::settle_time() const { return std::min(job_.settings.last_call, max_settle_time); }

/// The running round may be stopped for newcomers from then on.
Clock::time_point Coordinator::State::admit_from() const {
  return phase_ == Phase::running ? started_at_ + settle_time() : now;
}

void Coordinator::State::schedule_admission() {
  deadlines_.clear(Due::admission);
  if (!has_free_place()) return;
  const auto& all = members_.all();
  const bool any_waits = std::any_of(
      all.begin(), all.end(), [](const auto& entry) { return !entry.second.in_round && entry.second.available(); });
  if (any_waits) deadlines_.arm(Due::admission, admit_from());
}

void Coordinator::State::admit_waiting() {
  const bool place = has_free_place();
  std::vector<Member*> newcomers;
  for (auto& [link, member] : members_.all()) {
    if (member.in_round || !member.available()) continue;
    if (place) newcomers.push_back(&member);
    else if (!member.notified_spare) send_waiting(member, true, "the next round");
  }
  if (!newcomers.empty()) restart_for_newcomers(newcomers);
}

void Coordinator::State::reply_job_ended(LinkId link) {
  send_outcome(link, false);
  out_.close(link);
}

// ---- takeover from an earlier coordinator

/// After the last sign of life of a member, until its workers have ended whatever has happened to it.
Clock::duration Coordinator::State::lost_workers_timeout() const {
  const JobSettings& job = job_.settings;
  return job.fence ? Clock::duration(*job.fence) : heartbeat_.limit() + job.grace + kill_margin;
}

/// Starts to wait for members of the last round.
void Coordinator::State::expect_claims() {
  const auto stopped = std::max<Clock::duration>(options_.lease_ttl, rejoin_timeout + lost_workers_timeout());
  succession_.expect_claims(now, now + stopped, options_.has_lease);
}

/// Members of an earlier coordinator's last round have rejoined, or their workers have ended: the job continues.
void Coordinator::State::recover(const Recovery& recovery) {
  const RoundClaim& last = recovery.last();
  if (last.term == 0) return;  // no round was ever started
  job_.round = std::max(job_.round, last.round);
  job_.started = true;
  job_.merge(last.job_state, now);
  if (recovery.all_succeeded()) {
    for (const LinkId link : recovery.members()) {
      if (Member* member = members_.find(link)) member->in_round = true;  // they took part in the successful round
    }
    unfinished_ = 0;
    return check_finished();
  }
  VerdictMessage cause;
  cause.kind = VerdictKind::node_lost;
  cause.exit_code = exit_codes::launcher_failed;
  cause.why = "the coordinator of the round before was lost";
  if (!last.moved) {
    if (!job_.budget.any_left(now)) {
      if (job_.budget.used() > 0) cause.why += "; no restart is left";
      return end(std::move(cause));
    }
    spend_restart(cause.why);
  }
  last_cause_ = std::move(cause);
}

// ---- the lease: leading, suspended, stepped down

/// The agent in this process; null if it has not joined.
const Member* Coordinator::State::own_member() const {
  const auto link = members_.own_link();
  return link ? members_.find(*link) : nullptr;
}

void Coordinator::State::suspend() {
  if (!succession_.suspend(now) || phase_ == Phase::ended) return;
  arm_lease_deadline();
  if (is_over()) return;
  if (phase_ == Phase::opening) {
    Ending ending;
    ending.cause.why = "the lease could not be renewed";
    begin_stop(std::move(ending), 0);
  }
  out_.notice(
      "the lease that says who leads the job could not be renewed: the round that runs goes on, but no other one "
      "begins before it could");
  // A finished member was not needed, but may begin the next round with another coordinator.
  if (phase_ == Phase::running && lost_finished_) stop_for_cause(*std::exchange(lost_finished_, std::nullopt), 0, true);
  escalate_to_kill();
}

void Coordinator::State::lead(Term term) {
  options_.term = term;
  if (!succession_.resume()) return;
  arm_lease_deadline();
  if (succession_.has_lost_members() && (phase_ == Phase::gathering || phase_ == Phase::stopping)) {
    // They may have continued under another coordinator, whose rounds are unknown here; their claims tell.
    return dismiss_members(RefusalKind::lost, concat("the coordinator on ", options_.host,
                                                     " had lost its lease, and members: looking for them anew"));
  }
  if (!is_over()) out_.notice("the lease that says who leads the job is renewed");
  if (phase_ == Phase::recording) to_record_ = true;
  // No round has run here, but another coordinator may have led meanwhile.
  if (phase_ == Phase::gathering && !job_.started && !succession_.expects_claims() && !members_.empty())
    expect_claims();
  gather();
  schedule_admission();
}

/// Until when the next round, or the verdict, may wait for the lease.
void Coordinator::State::arm_lease_deadline() {
  const auto& suspended = succession_.suspended_since();
  const bool waits = phase_ == Phase::recording || (suspended && phase_ == Phase::gathering);
  if (!waits) return deadlines_.clear(Due::lease);
  deadlines_.arm(Due::lease, suspended.value_or(recording_since_) + options_.suspend_timeout);
}

/// Kind `lost` makes the next coordinator count a restart: needed for one that no claim carries.
void Coordinator::State::step_down(const std::string& why) {
  const bool owes_restart = succession_.owes_restart() || (ending_ && ending_->uses_restart);
  dismiss_members(owes_restart ? RefusalKind::lost : RefusalKind::moved, why);
}

/// Refuses all members; those that leave are released.
void Coordinator::State::dismiss_members(RefusalKind kind, const std::string& why) {
  if (phase_ == Phase::ended) return;
  event(event_text::moved, job_.round, why);
  phase_ = Phase::ended;
  stepped_down_ = Refused{RefusalKind::moved, why};
  deadlines_.clear_all();
  succession_.forget_claims();
  std::vector<LinkId> links;
  for (const auto& [link, member] : members_.all()) links.push_back(link);
  for (const LinkId link : links) {
    Member* member = members_.find(link);
    if (member == nullptr) continue;
    if (member->leaving) {
      release(*member, concat("left the job after ", signal_name(member->leave_signal)));
      continue;
    }
    out_.refuse(link, kind, why);
    members_.remove(link);
  }
}

/// The coordinator's own agent leaves, and the job continues with another coordinator: all workers are stopped.
void Coordinator::State::hand_over(const Ending& ending) {
  if (ending.uses_restart) succession_.owe_restart();
  step_down(concat("the coordinator on ", options_.host, " leads no more: ", ending.cause.why));
}

/// Repeats STOP with SIGKILL for members that were stopped with grace before.
void Coordinator::State::escalate_to_kill() {
  if (phase_ == Phase::stopping && !ending_->killed && succession_.must_kill()) send_stop(SIGKILL);
}

// ---- rounds: waiting for members, then OPEN and START

void Coordinator::State::gather() {
  if (phase_ != Phase::gathering) return;
  const JobSettings& job = job_.settings;
  arm_lease_deadline();
  if (!join_until_) join_until_ = deadlines_.at(Due::pause).value_or(now) + job.join_timeout;
  const bool too_few = members_.available() < job.min_nodes;
  if (too_few) deadlines_.arm(Due::join, *join_until_);
  else deadlines_.clear(Due::join);
  const auto claims_until = succession_.wait_until(now, members_.available() >= job.max_nodes);
  if (claims_until) return deadlines_.arm(Due::claims, *claims_until);
  deadlines_.clear(Due::claims);
  if (const auto claims = succession_.take_claims()) recover(*claims);
  if (phase_ != Phase::gathering) return;
  if (too_few) {
    deadlines_.clear(Due::last_call);
    last_call_over_ = false;
    return;
  }
  if (deadlines_.is_armed(Due::pause) || deadlines_.is_armed(Due::fence) || succession_.is_suspended()) return;
  const int available = members_.available();
  const bool all_expected = options_.first_round_nodes > 0 && available >= options_.first_round_nodes;
  const bool last_call_over = job_.started || last_call_over_ || job.last_call.count() == 0 || all_expected;
  if (available >= job.max_nodes || last_call_over) begin_round();
  else if (!deadlines_.is_armed(Due::last_call)) deadlines_.arm(Due::last_call, now + job.last_call);
}

std::vector<Member*> Coordinator::State::candidates() {
  std::vector<Member*> available;
  available.reserve(members_.size());
  for (auto& [link, member] : members_.all()) {
    if (member.available()) available.push_back(&member);
  }
  return available;
}

void Coordinator::State::begin_round() {
  members_.assign_labels();
  const std::vector<Member*> available = candidates();
  const auto max_nodes = static_cast<std::size_t>(job_.settings.max_nodes);
  const std::vector<Member*> members = order_members(choose_members(available, max_nodes));
  const std::vector<const Member*> seen(members.begin(), members.end());
  // Above every claim, late ones included.
  job_.round = std::max(job_.round, succession_.claimed()) + 1;
  phase_ = Phase::opening;
  deadlines_.clear(Due::last_call);
  any_succeeded_ = false;
  round_links_.clear();
  int world_size = 0;
  std::vector<std::string> hosts;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    Member& member = *members[rank];
    member.node_rank = static_cast<int>(rank);
    member.in_round = true;
    member.notified = member.succeeded = member.stopped = member.notified_spare = false;
    round_links_.push_back(member.link);
    world_size += member.local_world_size;
    hosts.push_back(member.host);
  }
  round_size_ = members.size();
  address_ = address_of_node_rank_0(seen, options_.own_addresses);
  event(event_text::round, job_.round, job_.budget.used(), world_size, address_, hosts);
  if (!options_.single_member) deadlines_.arm(Due::opened, now + open_timeout);
  members.front()->notified = true;
  out_.send(members.front()->link, Open{job_.round, address_, 0, allowed_addresses(seen, options_.own_addresses)});
  if (static_cast<std::size_t>(members_.available()) == members.size()) return;
  for (auto& [link, member] : members_.all()) {
    if (member.available() && !member.in_round && !member.notified_spare)
      send_waiting(member, true, "a place in the job");
  }
}

void Coordinator::State::start_round(std::uint16_t port) {
  std::vector<NodeShape> nodes;
  nodes.reserve(round_links_.size());
  for (const LinkId link : round_links_) {
    const Member& member = *members_.find(link);
    nodes.push_back(NodeShape{member.local_world_size, member.role});
  }
  std::vector<RankAssignment> ranks = assign_ranks(nodes);
  deadlines_.clear(Due::opened);
  join_until_.reset();
  phase_ = Phase::running;
  started_at_ = now;
  succession_.note_started();
  lost_finished_.reset();
  job_.started = true;
  const Member* own = own_member();
  job_.coordinator_node_rank = own != nullptr && own->in_round ? own->node_rank : -1;
  unfinished_ = unsucceeded_ = round_size_;
  const std::string job_state = options_.term == 0 ? "" : job_.serialize(now);
  for (std::size_t rank = 0; rank < round_links_.size(); ++rank) {
    Member& member = *members_.find(round_links_[rank]);
    member.notified = true;
    member.kept_rank = member.node_rank;
    ranks[rank].restart_count = job_.budget.used();
    ranks[rank].max_restarts = job_.settings.restart.max_restarts;
    ranks[rank].master_addr = address_;
    ranks[rank].master_port = port;
    ranks[rank].host = member.host;
    out_.send(round_links_[rank], Start{job_.round, std::move(ranks[rank]), options_.term, job_state});
  }
  event(event_text::started, job_.round, job_.budget.used(), static_cast<int>(round_size_));
  schedule_admission();
}

// ---- messages from members; one of an earlier round, or out of phase, is ignored

void Coordinator::State::receive(LinkId link, const FromAgent& message) {
  Member* member = members_.find(link);
  if (member == nullptr) return;
  note_activity(*member);
  if (std::holds_alternative<Join>(message)) {
    out_.close(link);
    lost(link, "it sent a second JOIN");
  } else if (const auto* pong = std::get_if<Pong>(&message)) {
    note_stall(*member, Milliseconds{pong->stalled_ms});
    out_.on_pong(link, pong->number);
  } else if (!is_over()) {
    std::visit(
        [&](const auto& payload) {
          if constexpr (requires { on(*member, payload); }) on(*member, payload);
        },
        message);
  }
}

void Coordinator::State::on(Member& member, const Opened& message) {
  if (phase_ != Phase::opening || message.round != job_.round || message.port == 0) return;
  if (member.in_round && member.node_rank == 0) start_round(message.port);
}

void Coordinator::State::on(Member& member, const Failed& message) {
  // Later failures during a stop are consequences: only the first one is the cause.
  if (phase_ != Phase::running || message.round != job_.round || !member.in_round || member.stopped) return;
  VerdictMessage cause = causes::worker_failed(message, member);
  event(event_text::failed, message, member.node(),
        message.why.empty() ? cause.why : concat(cause.why, ": ", truncate_text(message.why)));
  stop_for_cause(std::move(cause), member.link, message.may_restart);
  if (ending_) ending_->machine = member.machine;
}

void Coordinator::State::on(Member& member, const Succeeded& message) {
  if (phase_ != Phase::running || message.round != job_.round || !member.in_round) return;
  if (member.succeeded || member.stopped) return;
  member.succeeded = true;
  --unsucceeded_;
  event(event_text::succeeded, job_.round, member.node());
  const auto& skew = job_.settings.exit_skew;
  if (!any_succeeded_ && skew) deadlines_.arm(Due::skew, now + *skew);
  any_succeeded_ = true;
  if (unsucceeded_ != 0) return;
  deadlines_.clear(Due::skew);
  if (!options_.single_member) deadlines_.arm(Due::stopped, now + stop_timeout(job_.settings));
}

void Coordinator::State::on(Member& member, const Stopped& message) {
  if (message.round != job_.round || !member.notified || member.stopped) return;
  member.stopped = true;
  if (!message.workers.empty()) out_.report({job_.round, member.node_rank, member.host, message.workers});
  if (phase_ == Phase::stopping) {
    const std::string cause = message.cause.size() <= max_cause_bytes ? message.cause : "";
    if (ending_->cause_link == member.link) cause_details_.set_cause(cause);
    else cause_details_.add_other(member.host, member.node_rank, cause);
    note_stopped();
  } else if (member.succeeded) {
    --unfinished_;
    check_finished();
  } else {
    stop_for_cause(causes::node_lost(member, "it stopped its workers without saying why"), member.link, true);
  }
}

void Coordinator::State::check_finished() {
  if (unfinished_ != 0) return;
  VerdictMessage verdict;
  verdict.why = "all workers have ended well";
  end(std::move(verdict));
}

void Coordinator::State::on(Member& member, const PassSignal& message) {
  const bool may_pass = message.signal == SIGUSR1 || message.signal == SIGUSR2;
  if (phase_ != Phase::running || message.round != job_.round || !member.in_round || !may_pass) return;
  for (const LinkId link : round_links_) {
    const Member* other = members_.find(link);
    if (other != nullptr && !other->finished()) out_.send(link, message);
  }
}

void Coordinator::State::on(Member& member, const Leave& message) {
  if (member.leaving) return;
  VerdictMessage cause = causes::left(member, {message.signal, truncate_text(message.sender)});
  members_.set_leaving(member, cause.signal);
  event(event_text::left, job_.round, member.node(), cause.why);
  const JobSettings& job = job_.settings;
  const bool in_round = member.in_round;
  const bool is_leader = member.runs_coordinator && options_.has_lease;
  const bool over = (member.runs_coordinator && !is_leader) ||
                    (in_round && job.fixed_size() && members_.available() < job.min_nodes) ||
                    (members_.available() == 0 && (in_round || phase_ == Phase::gathering));
  // Node rank 0 keeps the store until the round is over; other nodes may go once their workers are done.
  const bool idle = !in_round || (phase_ == Phase::running && member.finished() && member.node_rank != 0);
  if (idle && !member.runs_coordinator && (in_round || members_.available() > 0 || phase_ != Phase::gathering)) {
    release(member, cause.why);
    gather();
  } else if (over) {
    const int signal = cause.signal;
    stop_permanently(std::move(cause), &member, signal);
  } else if (phase_ == Phase::opening || phase_ == Phase::running) {
    Ending ending;
    ending.cause_link = member.link;
    ending.cause = std::move(cause);
    begin_stop(std::move(ending), 0);
  } else if (phase_ == Phase::gathering && is_leader) {
    Ending ending;
    ending.cause = std::move(cause);
    hand_over(ending);
  }
}

void Coordinator::State::on(Member& member, const Abort& received) {
  const Abort message{received.kind, received.exit_code, truncate_text(received.what)};
  const JobSettings& job = job_.settings;
  const bool may_go = !member.runs_coordinator || (options_.has_lease && member.in_round);
  const bool only_this_node = message.kind == AbortKind::cannot_go_on && may_go;
  const bool others_can = members_.available() > 1 && (!job.fixed_size() || members_.available() > job.min_nodes);
  if (only_this_node && member.leaving) return;
  if (only_this_node && !member.in_round && (phase_ != Phase::gathering || others_can)) {
    lose_member(member, message.what, now, false);
  } else if (only_this_node && member.in_round && others_can && job_.budget.any_left(now) &&
             !(phase_ == Phase::stopping && ending_->is_final)) {
    lose_orderly(member, message);
  } else {
    stop_permanently(causes::aborted(member, message), &member, 0);
  }
}

/// For the others this node is lost; its agent still answers, so its STOPPED is awaited, and its verdict is its own
/// abort message.
void Coordinator::State::lose_orderly(Member& member, const Abort& message) {
  VerdictMessage cause = causes::node_lost(member, message.what);
  event(event_text::lost, job_.round, member.node(), cause.why);
  members_.set_leaving(member, 0);
  member.aborted = message;
  if (phase_ == Phase::running) {
    stop_for_cause(std::move(cause), member.link, true);
  } else if (phase_ == Phase::opening) {
    Ending ending;
    ending.cause = std::move(cause);
    begin_stop(std::move(ending), 0);
  } else {
    count_loss(std::move(cause));
  }
}

/// For a member that answers pings while its main thread is blocked.
void Coordinator::State::note_stall(Member& member, Milliseconds stalled) {
  if (stalled.count() == 0) member.stall_reported = false;
  if (is_over() || stalled < stall_notice_delay || std::exchange(member.stall_reported, true)) return;
  out_.notice(concat(describe_with_rank(member),
                     " answers, but its ddrun waits for something, a disk or a terminal, since ",
                     causes::seconds_text(stalled), "; its workers run on"));
}

// ---- losing members

void Coordinator::State::note_activity(LinkId link) {
  if (Member* member = members_.find(link)) note_activity(*member);
}

void Coordinator::State::note_activity(Member& member) const {
  member.last_heard = now;
  member.broken.clear();
}

void Coordinator::State::connection_broken(LinkId link, const std::string& how) {
  if (Member* member = members_.find(link)) member->broken = how;
}

void Coordinator::State::lost(LinkId link, const std::string& how) {
  Member* member = members_.find(link);
  if (member == nullptr) return;
  if (phase_ == Phase::ended) members_.remove(link);
  else lose_member(*member, how, now, true);
}

/// `since`: last sign of life. Without `broken` the link still works: it gets REFUSED and is closed.
void Coordinator::State::lose_member(Member& member, const std::string& how, Clock::time_point since, bool broken) {
  const Member gone = member;
  members_.remove(gone.link);
  succession_.note_lost(gone);
  VerdictMessage cause = causes::node_lost(gone, how);
  const bool leader_lost = gone.runs_coordinator && options_.has_lease && !is_over();
  if (leader_lost && !broken && gone.in_round && gone.notified) {
    // The next coordinator does not wait for the workers of this machine.
    out_.send(gone.link, Stop{job_.round, true, cause.why, SIGKILL});
  }
  if (!broken) out_.refuse(gone.link, RefusalKind::lost, cause.why);
  fence(gone, since, broken);
  event(event_text::lost, job_.round, gone.node(), cause.why);
  if (leader_lost) {
    // The next coordinator counts the loss.
    return dismiss_members(RefusalKind::lost, concat("the coordinator on ", options_.host, " leads no more: ", how));
  }
  if (gone.runs_coordinator && !is_over()) {
    // The agent of this process: tell the others while the process still runs.
    const bool waited_for = phase_ == Phase::stopping && gone.in_round && gone.notified && !gone.stopped;
    stop_permanently(std::move(cause), nullptr, 0);
    if (waited_for && phase_ == Phase::stopping) note_stopped();
    return;
  }
  // A finished member is not missed, unless it had the store.
  const bool missed = gone.in_round && !(gone.finished() && gone.node_rank != 0);
  switch (phase_) {
    case Phase::gathering: gather(); break;
    case Phase::opening:
      if (missed) {
        Ending ending;
        ending.cause = std::move(cause);
        begin_stop(std::move(ending), 0);
      }
      break;
    case Phase::running:
      if (missed || (gone.in_round && succession_.is_suspended())) stop_for_cause(std::move(cause), gone.link, true);
      else if (gone.in_round) lost_finished_ = std::move(cause);
      break;
    case Phase::stopping:
      if (!gone.in_round || !gone.notified) break;
      if (gone.stopped) {
        escalate_to_kill();
        break;
      }
      // A leaving member may close its link before it gets the OPEN of a new round.
      if (gone.leaving && broken) note_stopped();
      else lost_while_stopping(std::move(cause), since, broken);
      escalate_to_kill();
      break;
    case Phase::recording:
    case Phase::ended: break;
  }
}

void Coordinator::State::lost_while_stopping(VerdictMessage cause, Clock::time_point since, bool broken) {
  Ending& ending = *ending_;
  if (ending.cause.kind == VerdictKind::worker_failed) {
    // Workers elsewhere fail as soon as those of a lost node are gone; that FAILED may arrive before the loss is
    // detected.
    const bool came_first = broken ? now - ending.since <= heartbeat_.interval() : since <= ending.since;
    if (came_first) {
      cause.why = concat(cause.why, "; at the same time ", ending.cause.why);
      ending.cause = std::move(cause);
      ending.cause_link = 0;
      cause_details_.clear();
      // A non-restartable exit code does not apply to a node loss.
      ending.uses_restart = job_.budget.any_left(now);
      if (std::exchange(ending.is_final, !ending.uses_restart) && ending.uses_restart) send_stop(0);
    }
  } else {
    count_loss(std::move(cause));
  }
  note_stopped();
}

/// While a round ends for a reason that costs no restart: the loss makes it cost one.
void Coordinator::State::count_loss(VerdictMessage cause) {
  Ending& ending = *ending_;
  if (ending.is_final || ending.uses_restart || !ending.had_started) return;
  ending.uses_restart = job_.budget.any_left(now);
  ending.is_final = !ending.uses_restart;
  ending.cause = std::move(cause);
  ending.cause_link = 0;
}

/// Workers of a lost member may still run. If its agent ended, the kernel closed the connection and the guard killed
/// the workers. A silent one gives up the coordinator within the heartbeat timeout and stops its workers within their
/// grace; one that is blocked does so from its link thread (AgentLinkOptions::kill_workers).
void Coordinator::State::fence(const Member& gone, Clock::time_point since, bool broken) {
  const bool had_workers = phase_ == Phase::running || (phase_ == Phase::stopping && ending_->had_started);
  if (options_.single_member || !had_workers || !gone.in_round || !gone.notified || gone.stopped) return;
  if (!job_.settings.fence && broken) return;
  const Clock::time_point until = since + lost_workers_timeout();
  if (until <= now || deadlines_.at(Due::fence).value_or(now) >= until) return;
  deadlines_.arm(Due::fence, until);
  fenced_ = describe_with_rank(gone);
}

/// The member leaves; the job continues without it.
void Coordinator::State::release(Member& member, const std::string& why) {
  const LinkId link = member.link;
  if (member.aborted) {
    VerdictMessage own = causes::aborted(member, *member.aborted);
    own.restarts = job_.budget.used();
    out_.send(link, std::move(own));
    out_.close(link);
  } else {
    out_.refuse(link, RefusalKind::permanent, why);
  }
  members_.remove(link);
}

// ---- stopping a round, and what comes then

/// A new rendezvous, which costs no restart.
void Coordinator::State::restart_for_newcomers(const std::vector<Member*>& newcomers) {
  Ending ending;
  ending.cause.kind = VerdictKind::launcher_failed;
  ending.cause.why = causes::joining({newcomers.begin(), newcomers.end()});
  begin_stop(std::move(ending), 0);
}

void Coordinator::State::stop_for_cause(VerdictMessage cause, LinkId cause_link, bool may_restart) {
  Ending ending;
  ending.uses_restart = may_restart && job_.budget.any_left(now);
  ending.is_final = !ending.uses_restart;
  if (may_restart && ending.is_final && job_.budget.used() > 0) cause.why += "; no restart is left";
  ending.cause = std::move(cause);
  ending.cause_link = cause_link;
  begin_stop(std::move(ending), 0);
}

void Coordinator::State::stop_permanently(VerdictMessage cause, const Member* member, int signal) {
  switch (phase_) {
    case Phase::gathering: end(std::move(cause)); break;
    case Phase::opening:
    case Phase::running: {
      Ending ending;
      ending.cause = std::move(cause);
      ending.is_final = true;
      ending.cause_link = member != nullptr ? member->link : 0;
      begin_stop(std::move(ending), signal);
      break;
    }
    case Phase::stopping:
      if (ending_->is_final) break;
      ending_->is_final = true;
      ending_->cause = std::move(cause);
      ending_->cause_link = member != nullptr ? member->link : 0;
      cause_details_.clear();
      break;
    case Phase::recording:
    case Phase::ended: break;
  }
}

void Coordinator::State::begin_stop(Ending ending, int signal) {
  ending.since = now;
  ending.had_started = phase_ == Phase::running;
  phase_ = Phase::stopping;
  for (const Due due : {Due::opened, Due::skew, Due::admission}) deadlines_.clear(due);
  if (!options_.single_member) deadlines_.arm(Due::stopped, now + stop_timeout(job_.settings));
  cause_details_.clear();
  to_stop_ = 0;
  ending_ = std::move(ending);
  for (const LinkId link : round_links_) {
    const Member* member = members_.find(link);
    if (member != nullptr && member->notified && !member->stopped) ++to_stop_;
  }
  send_stop(succession_.must_kill() ? SIGKILL : signal);
  if (to_stop_ == 0) on_all_stopped();
}

/// Sent again if the decision about another round has changed.
void Coordinator::State::send_stop(int signal) {
  Ending& ending = *ending_;
  ending.killed = signal == SIGKILL;
  Stop stop{job_.round, !ending.is_final, ending.cause.why, signal};
  if (ending.uses_restart) {
    stop.why += concat("; restarting all workers (restart ", job_.budget.used() + 1, " of ",
                       job_.settings.restart.max_restarts, ")");
  }
  event(event_text::ended, job_.round, stop.another_round, stop.why);
  for (const LinkId link : round_links_) {
    const Member* member = members_.find(link);
    if (member != nullptr && member->notified) out_.send(link, stop);
  }
}

void Coordinator::State::note_stopped() {
  if (--to_stop_ == 0) on_all_stopped();
}

void Coordinator::State::on_all_stopped() {
  Ending ending = std::move(*ending_);
  ending_.reset();
  deadlines_.clear(Due::stopped);
  if (ending.is_final) {
    ending.cause.cause = cause_details_.text();
    end(std::move(ending.cause));
    return;
  }
  if (const std::string again = repeated_cause(ending); !again.empty()) {
    out_.notice(concat("not restarting: ", again, " (", counted(job_.budget.left(now), "restart"),
                       " saved; --same-cause=0 restarts all the same)"));
    ending.cause.why += "; " + again;
    ending.cause.cause = cause_details_.text();
    end(std::move(ending.cause));
    return;
  }
  std::vector<LinkId> leavers;
  for (const LinkId link : round_links_) {
    Member* member = members_.find(link);
    if (member == nullptr) continue;
    member->in_round = member->notified = false;
    if (member->leaving) leavers.push_back(link);
  }
  const Member* own = own_member();
  if (options_.has_lease && own != nullptr && own->leaving) return hand_over(ending);
  phase_ = Phase::gathering;
  if (ending.had_started) join_until_.reset();
  if (ending.uses_restart) spend_restart(ending.cause.why);
  last_cause_ = ending.cause;
  last_cause_->cause = cause_details_.text();
  for (const LinkId link : leavers) {
    if (Member* member = members_.find(link))
      release(*member, concat("left the job after ", signal_name(member->leave_signal)));
  }
  if (ending.cause.kind == VerdictKind::worker_failed) count_failure(ending.machine, ending.cause.host);
  gather();
  const int available = members_.available();
  if (phase_ != Phase::gathering ||
      (available >= job_.settings.min_nodes && !deadlines_.is_armed(Due::fence) && !succession_.is_suspended()))
    return;
  const std::string waiting_for = concat(wait_reason(), ", after ", ending.cause.why);
  event(event_text::waiting, job_.round, available, job_.settings.min_nodes, job_.settings.max_nodes, waiting_for);
  for (auto& [link, member] : members_.all()) send_waiting(member, member.excluded, waiting_for);
}

/// Why another restart would fail as the last ones did; empty if unknown. Not with node_max_failures, since excluding a
/// host may help.
std::string Coordinator::State::repeated_cause(const Ending& ending) {
  if (!ending.uses_restart || ending.cause.kind != VerdictKind::worker_failed) return {};
  const Failure last = std::exchange(last_failure_, {cause_details_.key(), ending.cause.exit_code,
                                                     ending.since - started_at_ <= early_failure_time, 1});
  Failure& present = last_failure_;
  const int max_same_cause = job_.settings.restart.same_cause;
  if (max_same_cause == 0 || job_.settings.node_max_failures > 0 || present.key.empty()) return {};
  const bool same = present.key == last.key;
  if (same) present.times += last.times;
  const std::string what = concat("the same cause: ", present.key);
  if (same && present.at_start && last.at_start && present.exit_code == last.exit_code)
    return concat("the workers failed within ", causes::seconds_text(early_failure_time),
                  " of their start twice in a row, with ", what);
  return present.times >= max_same_cause ? concat(counted(present.times, "failure"), " in a row had ", what)
                                         : std::string();
}

/// The next round is a restart, after the configured pause.
void Coordinator::State::spend_restart(const std::string& why) {
  succession_.owe_restart();
  const Milliseconds pause = job_.budget.spend(now);
  if (pause.count() > 0) deadlines_.arm(Due::pause, now + pause);
  event(event_text::restart, job_.round, job_.budget.used(), job_.settings.restart.max_restarts, pause, why);
}

/// Workers of `machine`, labelled `host`, caused a failure again.
void Coordinator::State::count_failure(const std::string& machine, const std::string& host) {
  if (job_.settings.node_max_failures == 0) return;
  const int failures = ++job_.failures_of_host[machine];
  if (!job_.excluded(machine)) return;
  std::vector<LinkId> offenders;
  for (const auto& [link, member] : members_.all()) {
    if (member.machine == machine && !member.excluded) offenders.push_back(link);
  }
  for (const LinkId link : offenders) {
    Member* member = members_.find(link);
    if (member == nullptr) continue;
    event(event_text::excluded, job_.round, member->node(), failures);
    if (member->runs_coordinator) {
      // The job needs its coordinator: the member stays, as a spare that is never used.
      members_.set_excluded(*member);
      send_waiting(*member, true, concat("the others, since the workers of ", host, " failed ", failures, " times"));
    } else {
      release(*member, concat(host, " is left out: its workers failed ", failures, " times (--node-max-failures)"));
    }
  }
}

// ---- the end of the job

void Coordinator::State::end(VerdictMessage verdict) {
  verdict.restarts = job_.budget.used();
  job_.verdict = std::move(verdict);
  deadlines_.clear_all();
  succession_.forget_claims();
  if (!options_.has_lease) return publish_verdict();
  phase_ = Phase::recording;
  recording_since_ = now;
  arm_lease_deadline();
  to_record_ = true;
}

std::optional<VerdictMessage> Coordinator::State::take_verdict_to_record() {
  if (phase_ != Phase::recording || succession_.is_suspended() || !std::exchange(to_record_, false))
    return std::nullopt;
  return job_.verdict;
}

void Coordinator::State::recorded() {
  if (phase_ == Phase::recording) publish_verdict();
}

void Coordinator::State::publish_verdict() {
  phase_ = Phase::ended;
  deadlines_.clear_all();
  deadlines_.arm(Due::verdict, now + verdict_timeout);
  event(event_text::verdict, job_.round, *job_.verdict);
  // Only the observer gets the full cause; other agents get it abbreviated.
  observer_of_the_end_ = observer();
  abbreviated_cause_ = causes::abbreviate(job_.verdict->cause);
  std::vector<LinkId> released;
  for (const auto& [link, member] : members_.all()) {
    const bool took_part = member.in_round;
    send_outcome(link, took_part);
    if (!took_part && job_.verdict->kind == VerdictKind::success) released.push_back(link);
  }
  for (const LinkId link : released) {
    out_.close(link);
    members_.remove(link);
  }
}

/// A member without part in a successful job gets NOT_NEEDED; any other end is sent to all.
void Coordinator::State::send_outcome(LinkId link, bool took_part) {
  if (job_.verdict->kind == VerdictKind::success && !took_part) {
    out_.send(link, Refused{RefusalKind::not_needed, "the job has ended well without it"});
  } else if (link == observer_of_the_end_) {
    out_.send(link, *job_.verdict);
  } else {
    VerdictMessage brief = *job_.verdict;
    brief.cause = abbreviated_cause_;
    out_.send(link, std::move(brief));
  }
}

VerdictMessage Coordinator::State::too_few_nodes_verdict() const {
  const JobSettings& job = job_.settings;
  VerdictMessage few = causes::too_few(members_.available(), job.min_nodes, job.join_timeout, members_.names(20));
  const std::string turned_away = turned_away_.text();
  few.why += turned_away;
  if (turned_away.empty() && !last_cause_) {
    few.why +=
        "; look at what ddrun says on the others, and whether they reach the coordinator's port on " + options_.host;
  }
  if (!last_cause_) return few;
  few.why = concat(last_cause_->why, "; then ", few.why);
  if (last_cause_->kind != VerdictKind::node_lost && last_cause_->kind != VerdictKind::worker_failed) return few;
  VerdictMessage cause = *last_cause_;
  cause.why = few.why;
  return cause;
}

bool Coordinator::State::done() const { return phase_ == Phase::ended && members_.empty(); }

// ---- deadlines

std::optional<Clock::time_point> Coordinator::State::next_deadline() const {
  if (done()) return std::nullopt;
  const auto first = deadlines_.next();
  const auto ping = phase_ == Phase::ended ? std::nullopt : heartbeat_.next();
  return first && ping ? std::min(first, ping) : first ? first : ping;
}

void Coordinator::State::tick() {
  if (phase_ != Phase::ended) check_heartbeats();
  while (const auto due = deadlines_.take_expired(now)) on(*due);
}

void Coordinator::State::check_heartbeats() {
  const Heartbeat::Due due = heartbeat_.due(now, [&](LinkId link) -> std::optional<Clock::time_point> {
    const Member* member = members_.find(link);
    if (member == nullptr) return std::nullopt;
    return member->last_heard;
  });
  for (const LinkId link : due.ping) out_.ping(link);
  for (const LinkId link : due.silent) {
    Member* member = members_.find(link);
    // The coordinator's own agent shares this process: it is busy, not lost.
    if (member == nullptr || is_over() || member->runs_coordinator) continue;
    const std::string bound = causes::seconds_text(heartbeat_.timeout());
    lose_member(*member,
                member->broken.empty()
                    ? concat("nothing was heard from it for ", bound)
                    : concat("the connection broke: ", member->broken, "; it did not come back within ", bound),
                member->last_heard, false);
  }
}

void Coordinator::State::on(Due due) {
  switch (due) {
    case Due::opened:
      return lose_member(*members_.find(round_links_.front()), "it did not open the store in time", now, false);
    case Due::stopped: return lose_unstopped();
    case Due::skew: return on_skew();
    case Due::lease: {
      const std::string what =
          succession_.is_suspended()
              ? concat("its lease could not be renewed for ",
                       causes::seconds_text(now - *succession_.suspended_since()))
              : concat("the verdict could not be recorded for ", causes::seconds_text(now - recording_since_));
      return step_down(concat("the coordinator on ", options_.host, " leads no more: ", what));
    }
    case Due::admission: return admit_waiting();
    case Due::last_call: last_call_over_ = true; [[fallthrough]];
    case Due::claims:
    case Due::pause:
    case Due::fence: return gather();
    case Due::join: return end(too_few_nodes_verdict());
    case Due::verdict: {
      std::vector<LinkId> slow;
      for (const auto& [link, member] : members_.all()) slow.push_back(link);
      for (const LinkId link : slow) {
        out_.close(link);
        members_.remove(link);
      }
    }
  }
}

void Coordinator::State::lose_unstopped() {
  const std::string how =
      concat("its workers were not stopped after ", causes::seconds_text(stop_timeout(job_.settings)));
  for (const LinkId link : std::vector<LinkId>(round_links_)) {
    Member* member = members_.find(link);
    if (member == nullptr || !member->notified || member->stopped) continue;
    lose_member(*member, how, now, false);
    if (phase_ != Phase::running && phase_ != Phase::stopping) break;
  }
}

void Coordinator::State::on_skew() {
  std::vector<const Member*> late;
  for (const LinkId link : round_links_) {
    const Member* member = members_.find(link);
    if (member != nullptr && !member->succeeded) late.push_back(member);
  }
  if (!late.empty()) stop_permanently(causes::skewed(late, *job_.settings.exit_skew), late.front(), 0);
}

/// The agent that reports to the user: the coordinator's own, else node rank 0.
std::optional<LinkId> Coordinator::State::observer() const {
  if (const auto own = members_.own_link()) return own;
  if (round_links_.empty()) return std::nullopt;
  const Member* first = members_.find(round_links_.front());
  if (first == nullptr) return std::nullopt;
  return first->link;
}

// ---- public class

Coordinator::Coordinator(CoordinatorOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Coordinator::~Coordinator() = default;
Coordinator::Coordinator(Coordinator&&) noexcept = default;
Coordinator& Coordinator::operator=(Coordinator&&) noexcept = default;

void Coordinator::join(LinkId link, const Join& join, const LinkAddresses& addresses, Clock::time_point now) {
  state_->now = now;
  state_->join(link, join, addresses);
}

void Coordinator::receive(LinkId link, const FromAgent& message, Clock::time_point now) {
  state_->now = now;
  state_->receive(link, message);
}

void Coordinator::lost(LinkId link, const std::string& how, Clock::time_point now) {
  state_->now = now;
  state_->lost(link, how);
}

void Coordinator::note_activity(LinkId link, Clock::time_point now) {
  state_->now = now;
  state_->note_activity(link);
}

void Coordinator::connection_broken(LinkId link, const std::string& how) { state_->connection_broken(link, how); }

void Coordinator::suspend(Clock::time_point now) {
  state_->now = now;
  state_->suspend();
}

void Coordinator::lead(Term term, Clock::time_point now) {
  state_->now = now;
  state_->lead(term);
}

void Coordinator::step_down(const std::string& why, Clock::time_point now) {
  state_->now = now;
  state_->step_down(why);
}

std::optional<VerdictMessage> Coordinator::take_verdict_to_record() { return state_->take_verdict_to_record(); }

void Coordinator::recorded(Clock::time_point now) {
  state_->now = now;
  state_->recorded();
}

bool Coordinator::stepped_down() const { return state_->stepped_down(); }

void Coordinator::tick(Clock::time_point now) {
  state_->now = now;
  state_->tick();
}

std::vector<Coordinator::Output> Coordinator::take_outputs() { return state_->take_outputs(); }
std::vector<std::string> Coordinator::take_warnings() { return state_->take_warnings(); }
std::optional<Clock::time_point> Coordinator::next_deadline() const { return state_->next_deadline(); }
bool Coordinator::done() const { return state_->done(); }

std::vector<Coordinator::MemberView> Coordinator::members() const {
  std::vector<MemberView> views;
  views.reserve(state_->members().size());
  for (const auto& [link, member] : state_->members().all()) {
    views.push_back(MemberView{link, member.host, member.in_round ? member.node_rank : -1,
                               !member.in_round && member.notified_spare});
  }
  return views;
}

Round Coordinator::round() const { return state_->job().round; }
int Coordinator::restarts() const { return state_->job().budget.used(); }
std::optional<VerdictMessage> Coordinator::verdict() const { return state_->job().verdict; }

}  // namespace ddrun::rendezvous
