#include "coordinator.hpp"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <tuple>
#include <utility>
#include <variant>

#include "causes.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "membership.hpp"
#include "node_ranks.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr Milliseconds stall_notice_delay{10'000};
/// For members of a round to rejoin under the next coordinator, after their workers are stopped.
constexpr Milliseconds rejoin_timeout{5'000};

/// Of a host name in JOIN.
constexpr std::size_t max_host_name_bytes = 255;
// With the largest number of nodes that settings allow, ranks still fit into an int.
constexpr std::uint32_t max_workers_per_node = 16'384;
/// Upper bound of a term or round that an agent may claim: there is always a next one.
constexpr std::uint64_t max_term = std::uint64_t{1} << 62U;

struct Rejection {
  Refused refused;
  std::string seen_from_here;  ///< the reason, for the machines that are there
};

Rejection refuse(const std::string& why, const std::string& seen_from_here = "") {
  return {{RefusalKind::permanent, why}, seen_from_here.empty() ? why : seen_from_here};
}

Rejection other_job(std::string why, std::string seen_from_here) {
  return {{RefusalKind::other_job, std::move(why)}, std::move(seen_from_here)};
}

/// What is wrong with the agent itself.
std::optional<Rejection> check_agent(const Join& join, const JobState& job, const CoordinatorOptions& options) {
  const std::string& served = !options.job_id.empty() ? options.job_id : job.job_id;
  if (!served.empty() && join.job_id != served) {
    return other_job(concat("the coordinator on ", options.host, " serves the job ", served, ", not ", join.job_id,
                            "; give both the same --rdzv-id, or this one another endpoint"),
                     concat("--rdzv-id is ", join.job_id, " there, ", served, " here"));
  }
  if (join.claim.term > max_term || join.claim.round > max_term) {
    return refuse("no job gets to the term or round that is claimed");
  }
  if (options.term != 0 && join.claim.term > options.term) {
    return Rejection{{RefusalKind::moved, concat("the coordinator on ", options.host, " leads no more")}, ""};
  }
  if (join.agent_id.empty()) return refuse("an agent needs an id");
  if (join.host.size() > max_host_name_bytes) return refuse("the name of a host has at most 255 bytes");
  if (join.local_world_size == 0 || (join.local_world_size > max_workers_per_node && !options.single_member)) {
    return refuse(concat("a node has 1 to ", max_workers_per_node, " workers, not ", join.local_world_size));
  }
  return std::nullopt;
}

/// What differs from the job.
std::optional<Rejection> check_agreement(const Join& join, const JobState& job, const CoordinatorOptions& options) {
  if (join.version != job.version) {
    return refuse(concat("this is ddrun ", join.version, ", but the other nodes of the job run ", job.version),
                  concat("it runs ddrun ", join.version, ", and this job ", job.version));
  }
  // With explicit node ranks on both sides the command lines may differ: an agent of another job would not have a free
  // rank.
  const bool both_have_ranks = job.has_node_ranks && join.node_rank >= 0;
  if (!both_have_ranks && !same_program(job.raw_settings, join.settings)) {
    return other_job(
        concat("the coordinator on ", options.host, " serves a job that runs another program, or the same ",
               "with other arguments; give each job an --rdzv-id of its own, or another endpoint (one job ",
               "whose machines run different command lines needs an --rdzv-id, too, or another --node-rank on each)"),
        "it runs another program, or the same with other arguments (see --rdzv-id)");
  }
  const auto differences = [&](Audience audience) {
    return describe_differences(job.raw_settings, join.settings, audience);
  };
  if (const std::string different = differences(Audience::there); !different.empty()) {
    return refuse(concat("this node and those that are there do not agree: ", different), differences(Audience::here));
  }
  if (join.node_rank < -1 || join.node_rank >= job.settings.max_nodes) {
    return refuse(concat("node rank ", join.node_rank, " is not from 0 to ", job.settings.max_nodes - 1));
  }
  if (job.excluded(machine_of(join))) {
    return refuse(concat(join.host, " is left out: its workers failed ", job.settings.node_max_failures,
                         " times (--node-max-failures)"));
  }
  return std::nullopt;
}

/// Why this agent cannot take part in the job, whatever the members are; empty if it can. The first agent whose version
/// and identity are valid defines `job`: that of CoordinatorOptions::own_join if there is one, else the joining one.
std::optional<Rejection> check_join(const Join& join, JobState& job, const CoordinatorOptions& options) {
  if (auto wrong = check_agent(join, job, options)) return wrong;
  if (job.raw_settings.empty()) {
    // If an agent runs the coordinator, its job is served, even if another agent joins first.
    const Join& first = options.own_join ? *options.own_join : join;
    const auto settings = options.settings ? *options.settings : read_settings(first.settings);
    if (!settings) return refuse(settings.error().message);
    job.adopt(first, *settings);
  }
  return check_agreement(join, job, options);
}

std::string conflict_text(const Join& join, const Member& rival, const LinkAddresses& addresses) {
  if (join.agent_id == rival.agent_id) return concat("an agent of this id is there already: ", describe(rival));
  // On the coordinator's machine, whose loopback address means nothing to others.
  const IpAddress& address = rival.peer_address.is_loopback() ? addresses.local_address : rival.peer_address;
  return concat("node rank ", join.node_rank, " is taken by ", rival.host, " (", address.text(), ")");
}

std::string left_text(const Member& member) { return concat("left the job after ", signal_name(member.leaving->code)); }

std::string leads_no_more(const Job& job, const std::string& why) {
  return concat("the coordinator on ", job.options.host, " leads no more: ", why);
}

/// Starts to wait for members of an earlier coordinator's last round.
void expect_claims(Job& job) {
  const auto stopped = std::max<Clock::duration>(job.options.lease_ttl, rejoin_timeout + job.lost_workers_timeout());
  job.succession.expect_claims(job.now, job.now + stopped, job.options.has_lease);
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : job_(std::move(options), [this]() -> std::optional<LinkId> {
        // The agent that reports to the user: the coordinator's own, else node rank 0.
        const Member* own = job_.members.own();
        const Member* observer = own != nullptr ? own : round_.members().first();
        return observer != nullptr ? std::optional(observer->link) : std::nullopt;
      }) {}

// ---- joining

void Coordinator::join(LinkId link, const Join& join, const LinkAddresses& addresses, Clock::time_point now) {
  job_.now = now;
  if (job_.members.find(link) != nullptr) {
    job_.out.close(link);
    return lost(link, "it sent a second JOIN", now);
  }
  if (stepped_down_) return job_.out.refuse(link, RefusalKind::moved, *stepped_down_);
  // No member, and nothing has run yet: the job is defined anew by this agent.
  if (job_.members.empty() && !job_.started && !job_.verdict) {
    job_.first_join = now;
    job_.raw_settings.clear();
    job_.job_id.clear();
    job_.succession.forget_former();
    gathering_.reset();
  }
  // Where all machines wish for one rank, the coordinator's own gets it.
  const auto& own = job_.options.own_join;
  const bool is_owns = own && own->node_rank == join.node_rank && own->agent_id != join.agent_id;
  const Member* const holder = join.rank_is_wish ? job_.members.conflicting_member(join) : nullptr;
  const bool is_taken = holder != nullptr && holder->agent_id != join.agent_id && holder->machine != machine_of(join);
  if (join.rank_is_wish && (is_owns || is_taken)) {
    Join any = join;
    any.node_rank = -1;
    any.rank_is_wish = false;
    return this->join(link, any, addresses, now);
  }
  const std::string machine =
      concat(join.host.substr(0, max_host_name_bytes), " (", addresses.peer_address.text(), ")");
  if (const auto rejected = check_join(join, job_, job_.options)) {
    const Refused& refused = rejected->refused;
    job_.event(event_text::refused, job_.round, join.host, addresses.peer_address.text(), refused.why);
    if (refused.kind != RefusalKind::moved) turned_away_.warn(machine, rejected->seen_from_here);
    job_.out.refuse(link, refused.kind, refused.why);
  } else if (job_.state == CoordinatorState::ended) {
    send_outcome(link, false);
    job_.out.close(link);
  } else if (const Member* rival = job_.members.conflicting_member(join)) {
    const std::string why = conflict_text(join, *rival, addresses);
    // The same agent again: its old connection is not known to be lost yet.
    if (join.agent_id != rival->agent_id) turned_away_.warn(machine, why);
    job_.out.refuse(link, RefusalKind::taken, why);
  } else {
    turned_away_.set_admitted(machine);
    unproven_.set_admitted(addresses.peer_address.text());
    admit(link, join, addresses);
  }
}

void Coordinator::admit(LinkId link, const Join& join, const LinkAddresses& addresses) {
  const CoordinatorOptions& options = job_.options;
  const bool is_own = options.single_member || (options.own_join && options.own_join->agent_id == join.agent_id);
  Member& member = job_.members.add(link, join, addresses, is_own, job_.now);
  if (!options.single_member) job_.heartbeat.add(link, job_.now);
  const bool may_recover = options.term != 0 && !job_.started && !job_.verdict;
  if (may_recover && job_.succession.is_news(join.claim)) expect_claims(job_);
  if (options.term == 0 && join.claim.term == 0 && !job_.started && !job_.verdict) {
    job_.succession.note_orphan(join.claim, job_.first_join + job_.lost_workers_timeout() + job_.heartbeat.interval());
  }
  if (join.claim.term < options.term) {
    job_.succession.add_claim(member, join.claim, job_.members);
    job_.merge(join.claim.job_state, job_.now);  // also from a late claim: the number of restarts never decreases
  }
  job_.out.send(link, Welcome{options.host, static_cast<std::uint32_t>(options.heartbeat_interval.count()),
                              static_cast<std::uint32_t>(options.heartbeat_misses), "",
                              options.term});  // the transport sets the session
  const bool in_time = job_.state == CoordinatorState::gathering || round_.is_stopping_for_another();
  const bool spare = !round_.has_free_place() && (!in_time || job_.members.available() > job_.settings.max_nodes);
  job_.event(event_text::joined, job_.round, member.node(), member.local_world_size, job_.members.available(), spare);
  if (job_.state != CoordinatorState::gathering) return round_.admit(member, spare);
  gather();
  if (job_.state != CoordinatorState::gathering || job_.members.find(link) == nullptr) return;
  job_.send_waiting(member, spare, gathering_.wait_reason());
}

// ---- between rounds

void Coordinator::gather() {
  if (job_.state != CoordinatorState::gathering) return;
  job_.arm_lease_deadline();
  if (gathering_.awaits_claims()) return;
  if (const auto claims = job_.succession.take_claims()) {
    if (auto verdict = gathering_.recover(*claims)) return end(std::move(*verdict));
  }
  if (gathering_.is_complete()) begin_round();
}

void Coordinator::begin_round() {
  job_.members.assign_labels();
  const auto max_nodes = static_cast<std::size_t>(job_.settings.max_nodes);
  const std::vector<Member*> available = job_.members.available_members();
  // Above every claim, late ones included.
  job_.round = std::max(job_.round, job_.succession.claimed()) + 1;
  job_.deadlines.clear(Due::last_call);
  round_.begin(order_members(choose_members(available, max_nodes)));
  for (Member* member : available) {
    if (!member->in_round() && !member->notified_spare) job_.send_waiting(*member, true, "a place in the job");
  }
}

void Coordinator::after_round() {
  auto ended = round_.take_ended();
  if (!ended) return;
  VerdictMessage& cause = ended->cause;
  details_ = ended->details;
  details_.describe(cause, &Failure::full);
  if (ended->is_final()) return end(std::move(cause));
  if (const std::string again = failures_.add(*ended, round_.started_at(), job_.settings); !again.empty()) {
    job_.out.notice(concat("not restarting: ", again, " (", counted(job_.budget.left(job_.now), "restart"),
                           " saved; --same-cause=0 restarts all the same)"));
    cause.why += "; " + again;
    return end(std::move(cause));
  }
  round_.members().dissolve();
  if (const Member* own = job_.members.own(); job_.options.has_lease && own != nullptr && own->leaving) {
    if (ended->is_restart()) job_.succession.owe_restart();
    return step_down(leads_no_more(job_, cause.why), job_.now);
  }
  if (!job_.state.enter(CoordinatorOrder::Step::gather)) return;
  if (ended->is_restart()) gathering_.spend_restart(cause.why);
  gathering_.note_ended(cause, ended->had_started);
  for (Member* member : std::vector<Member*>(round_.members().all())) {
    if (member->leaving) release(*member, left_text(*member));
  }
  if (cause.kind == VerdictKind::worker_failed) count_failure(ended->machine, cause.host);
  gather();
  const int available = job_.members.available();
  const auto& [min_nodes, max_nodes] = std::tie(job_.settings.min_nodes, job_.settings.max_nodes);
  const bool must_wait = available < min_nodes || gathering_.is_held_up();
  if (job_.state != CoordinatorState::gathering || (!must_wait && !job_.deadlines.is_armed(Due::pause))) return;
  const std::string reason = gathering_.wait_reason();
  const std::string in_full = concat(reason, ", after ", cause.why);
  const std::string& waiting_for = ended->announced == cause.why ? reason : in_full;
  if (must_wait) job_.event(event_text::waiting, job_.round, available, min_nodes, max_nodes, in_full);
  for (auto& [link, member] : job_.members.all()) job_.send_waiting(member, member.excluded, waiting_for);
}

/// Workers of `machine`, labelled `host`, caused a failure again.
void Coordinator::count_failure(const std::string& machine, const std::string& host) {
  if (job_.settings.node_max_failures == 0) return;
  const int failures = ++job_.failures_of_host[machine];
  if (!job_.excluded(machine)) return;
  std::vector<Member*> offenders;
  for (auto& [link, member] : job_.members.all()) {
    if (member.machine == machine && !member.excluded) offenders.push_back(&member);
  }
  for (Member* member : offenders) {
    job_.event(event_text::excluded, job_.round, member->node(), failures);
    if (member->runs_coordinator) {
      // The job needs its coordinator: the member stays, as a spare that is never used.
      job_.members.set_excluded(*member);
      job_.send_waiting(*member, true,
                        concat("the others, since the workers of ", host, " failed ", failures, " times"));
    } else {
      release(*member, concat(host, " is left out: its workers failed ", failures, " times (--node-max-failures)"));
    }
  }
}

// ---- messages from members

void Coordinator::receive(LinkId link, const FromAgent& message, Clock::time_point now) {
  Member* member = job_.members.find(link);
  if (member == nullptr) return;
  job_.now = now;
  member->note_heard(now);
  if (std::holds_alternative<Join>(message)) {
    job_.out.close(link);
    lost(link, "it sent a second JOIN", now);
  } else if (const auto* pong = std::get_if<Pong>(&message)) {
    member->pong = pong->number;
    job_.out.on_pong(link, pong->number);
    survey_.on_pong(link, pong->number);
    const Milliseconds stalled{pong->stalled_ms};
    if (stalled.count() == 0) member->stall_reported = false;
    if (job_.is_over() || stalled < stall_notice_delay || std::exchange(member->stall_reported, true)) return;
    job_.out.notice(
        concat(describe_with_rank(*member), " answers, but its ddrun waits for something, a disk or a terminal, since ",
               causes::seconds_text(std::chrono::round<std::chrono::seconds>(stalled)), "; its workers run on"));
  } else if (!job_.is_over()) {
    std::visit(
        [&](const auto& payload) {
          if constexpr (requires { on(*member, payload); }) on(*member, payload);
          else if constexpr (requires { round_.on(*member, payload); }) round_.on(*member, payload);
          else if constexpr (requires { survey_.on(*member, payload); }) survey_.on(*member, payload);
        },
        message);
    after_round();
  }
}

void Coordinator::on(Member& member, const Leave& message) {
  const Leave leave{message.kind, message.code, causes::truncate_text(message.text)};
  if (leave.kind != LeaveKind::signalled) give_up(member, leave);
  else if (!member.leaving) leave_on_signal(member, leave);
}

void Coordinator::leave_on_signal(Member& member, Leave message) {
  VerdictMessage cause = causes::left(member, message);
  const int signal = cause.signal;
  message.code = signal;
  Membership& members = job_.members;
  members.set_leaving(member, std::move(message));
  job_.event(event_text::left, job_.round, member.node(), cause.why);
  const bool gathering = job_.state == CoordinatorState::gathering;
  const bool in_round = member.in_round();
  const bool is_leader = member.runs_coordinator && job_.options.has_lease;
  const bool over = (member.runs_coordinator && !is_leader) ||
                    (in_round && job_.settings.fixed_size() && members.available() < job_.settings.min_nodes) ||
                    (members.available() == 0 && (in_round || gathering));
  // Node rank 0 keeps the store until the round is over; other nodes may go once their workers are done.
  const bool done = job_.state == CoordinatorState::running && member.part == Part::finished && member.node_rank != 0;
  if ((!in_round || done) && !member.runs_coordinator && (in_round || members.available() > 0 || !gathering)) {
    release(member, cause.why);
    gather();
  } else if (over) {
    stop_permanently(std::move(cause), &member, signal);
  } else if (job_.state == CoordinatorState::opening || job_.state == CoordinatorState::running) {
    round_.stop({.cause = std::move(cause), .cause_link = member.link});
  } else if (gathering && is_leader) {
    step_down(leads_no_more(job_, cause.why), job_.now);
  }
}

void Coordinator::give_up(Member& member, const Leave& message) {
  const bool gathering = job_.state == CoordinatorState::gathering;
  const bool in_round = member.in_round();
  const bool may_go = !member.runs_coordinator || (job_.options.has_lease && in_round);
  const bool only_this_node = message.kind == LeaveKind::cannot_go_on && may_go;
  const int available = job_.members.available();
  const bool others_can = available > 1 && (!job_.settings.fixed_size() || available > job_.settings.min_nodes);
  const bool ends = job_.state == CoordinatorState::stopping && !round_.is_stopping_for_another();
  if (only_this_node && member.leaving) return;
  if (only_this_node && !in_round && (!gathering || others_can)) {
    lose_member(member, message.text, job_.now, false);
  } else if (only_this_node && in_round && others_can && job_.can_restart() && !ends) {
    round_.lose_orderly(member, message);
  } else {
    VerdictMessage cause = causes::left(member, message);
    if (job_.options.single_member) cause.why = message.text;  // the host need not be named
    stop_permanently(std::move(cause), &member, 0);
  }
}

// ---- losing members

void Coordinator::note_activity(LinkId link, Clock::time_point now) {
  job_.now = now;
  if (Member* member = job_.members.find(link)) member->note_heard(now);
}

void Coordinator::connection_broken(LinkId link, const std::string& how) {
  if (Member* member = job_.members.find(link)) member->broken = how;
}

void Coordinator::lost(LinkId link, const std::string& how, Clock::time_point now) {
  job_.now = now;
  Member* member = job_.members.find(link);
  if (member == nullptr) return;
  if (job_.state == CoordinatorState::ended) remove(*member);
  else lose_member(*member, how, now, true);
}

/// `since`: last sign of life. Without `broken` the link still works: it gets REFUSED and is closed.
void Coordinator::lose_member(Member& member, const std::string& how, Clock::time_point since, bool broken) {
  const Member gone = member;
  remove(member);
  job_.succession.note_lost(gone);
  VerdictMessage cause = causes::node_lost(gone, how);
  const bool own_lost = gone.runs_coordinator && !job_.is_over();
  const bool leader_lost = own_lost && job_.options.has_lease;
  if (leader_lost && !broken && gone.was_notified()) {
    // The next coordinator does not wait for the workers of this machine.
    job_.out.send(gone.link, Stop{job_.round, true, cause.why, SIGKILL});
  }
  if (!broken) job_.out.refuse(gone.link, RefusalKind::lost, cause.why);
  const bool may_run = round_.has_workers() && gone.owes_stopped() && !job_.options.single_member;
  if (may_run && (job_.settings.fence || !broken)) gathering_.fence(gone, since);
  job_.event(event_text::lost, job_.round, gone.node(), cause.why);
  if (leader_lost) {
    // The next coordinator counts the loss.
    return dismiss_members(RefusalKind::lost, leads_no_more(job_, how));
  }
  // The agent of this process: tell the others while the process still runs.
  if (own_lost) stop_permanently(std::move(cause), nullptr, 0);
  else round_.on_lost(gone, std::move(cause), since, broken);
  gather();
  after_round();
}

void Coordinator::check_heartbeats() {
  const Heartbeat::Due due = job_.heartbeat.due(job_.now, [&](LinkId link) -> std::optional<Clock::time_point> {
    const Member* member = job_.members.find(link);
    if (member == nullptr) return std::nullopt;
    return member->last_heard;
  });
  for (const LinkId link : due.ping) job_.out.ping(link, job_.members.find(link)->pong);
  for (const LinkId link : due.silent) {
    Member* member = job_.members.find(link);
    // The coordinator's own agent shares this process: it is busy, not lost.
    if (member == nullptr || job_.is_over() || member->runs_coordinator) continue;
    const std::string bound = causes::seconds_text(job_.heartbeat.timeout());
    lose_member(*member,
                member->broken.empty()
                    ? concat("nothing was heard from it for ", bound)
                    : concat("the connection broke: ", member->broken, "; it did not come back within ", bound),
                member->last_heard, false);
  }
}

/// The member leaves; the job continues without it.
void Coordinator::release(Member& member, const std::string& why) {
  if (member.leaving && member.leaving->kind != LeaveKind::signalled) {
    VerdictMessage own = causes::left(member, *member.leaving);
    own.restarts = job_.budget.used();
    job_.out.send(member.link, std::move(own));
    job_.out.close(member.link);
  } else {
    job_.out.refuse(member.link, RefusalKind::permanent, why);
  }
  remove(member);
}

void Coordinator::remove(const Member& member) {
  const LinkId link = member.link;
  round_.members().remove(member);
  job_.members.remove(link);
  survey_.on_lost(link);
}

// ---- the lease

void Coordinator::suspend(Clock::time_point now) {
  job_.now = now;
  if (!job_.succession.suspend(now)) return;
  job_.arm_lease_deadline();
  if (!job_.is_over()) round_.on_suspended();
}

void Coordinator::lead(Term term, Clock::time_point now) {
  job_.now = now;
  job_.options.term = term;
  Succession& succession = job_.succession;
  if (!succession.resume()) return;
  job_.arm_lease_deadline();
  const bool gathering = job_.state == CoordinatorState::gathering;
  if (succession.has_lost_members() && (gathering || job_.state == CoordinatorState::stopping)) {
    // They may have continued under another coordinator, whose rounds are unknown here; their claims tell.
    return dismiss_members(RefusalKind::lost, concat("the coordinator on ", job_.options.host,
                                                     " had lost its lease, and members: looking for them anew"));
  }
  if (!job_.is_over()) job_.out.notice("the lease that says who leads the job is renewed");
  to_record_ = job_.state == CoordinatorState::recording;
  // No round has run here, but another coordinator may have led meanwhile.
  const bool may_recover = gathering && !job_.started && !job_.members.empty();
  if (may_recover && !succession.expects_claims()) expect_claims(job_);
  gather();
  round_.schedule_admission();
}

/// Kind `lost` makes the next coordinator count a restart: needed for one that no claim carries.
void Coordinator::step_down(const std::string& why, Clock::time_point now) {
  job_.now = now;
  const bool owes_restart = job_.succession.owes_restart() || round_.owes_restart();
  dismiss_members(owes_restart ? RefusalKind::lost : RefusalKind::moved, why);
}

/// Refuses all members; those that leave are released.
void Coordinator::dismiss_members(RefusalKind kind, const std::string& why) {
  if (job_.state == CoordinatorState::ended || !job_.state.enter(CoordinatorOrder::Step::step_down)) return;
  job_.event(event_text::moved, job_.round, why);
  job_.deadlines.clear_all();
  survey_.clear();
  job_.succession.forget_claims();
  stepped_down_ = why;
  while (!job_.members.empty()) {
    Member& member = job_.members.all().begin()->second;
    if (member.leaving) {
      release(member, left_text(member));
    } else {
      job_.out.refuse(member.link, kind, why);
      remove(member);
    }
  }
}

// ---- the end of the job

void Coordinator::stop_permanently(VerdictMessage cause, const Member* member, int signal) {
  if (job_.state == CoordinatorState::gathering) end(std::move(cause));
  else round_.stop_permanently(std::move(cause), member, signal);
}

void Coordinator::end(VerdictMessage verdict) {
  if (job_.options.has_lease && !job_.state.enter(CoordinatorOrder::Step::record)) return;
  verdict.restarts = job_.budget.used();
  job_.verdict = std::move(verdict);
  job_.ended_at = job_.now;
  job_.deadlines.clear_all();
  survey_.clear();
  job_.succession.forget_claims();
  if (!job_.options.has_lease) return publish_verdict();
  job_.arm_lease_deadline();
  to_record_ = true;
}

std::optional<VerdictMessage> Coordinator::take_verdict_to_record() {
  const bool may = job_.state == CoordinatorState::recording && !job_.succession.is_suspended();
  return may && std::exchange(to_record_, false) ? job_.verdict : std::nullopt;
}

void Coordinator::recorded(Clock::time_point now) {
  job_.now = now;
  if (job_.state == CoordinatorState::recording) publish_verdict();
}

void Coordinator::publish_verdict() {
  if (!job_.state.enter(CoordinatorOrder::Step::publish)) return;
  job_.deadlines.clear_all();
  job_.deadlines.arm(Due::verdict, job_.now + shutdown::verdict_timeout);
  job_.event(event_text::verdict, job_.round, *job_.verdict);
  observer_of_the_end_ = job_.out.observer();
  std::vector<const Member*> released;
  for (const auto& [link, member] : job_.members.all()) {
    send_outcome(link, member.in_round());
    if (!member.in_round() && job_.verdict->kind == VerdictKind::success) released.push_back(&member);
  }
  for (const Member* member : released) {
    job_.out.close(member->link);
    remove(*member);
  }
}

/// A member without part in a successful job gets NOT_NEEDED; any other end is sent to all.
void Coordinator::send_outcome(LinkId link, bool took_part) {
  if (job_.verdict->kind == VerdictKind::success && !took_part) {
    return job_.out.send(link, Refused{RefusalKind::not_needed, "the job has ended well without it"});
  }
  VerdictMessage verdict = *job_.verdict;
  // Only the observer gets the full cause.
  if (link != observer_of_the_end_ && !verdict.cause.empty()) details_.describe(verdict, &Failure::brief);
  job_.out.send(link, std::move(verdict));
}

// ---- the end by a defect of ddrun

std::vector<Output> Coordinator::take_outputs() {
  if (const auto wrong = job_.state.take_wrong()) {
    end_by_defect(concat("the coordinator on ", job_.options.host, " ", *wrong));
  }
  return job_.out.take();
}

/// The next coordinator counts a restart: it may take the same step.
void Coordinator::end_by_defect(const std::string& what) {
  if (job_.state == CoordinatorState::ended) return;
  if (job_.options.has_lease) return dismiss_members(RefusalKind::lost, what);
  end({.kind = VerdictKind::launcher_failed,
       .exit_code = exit_codes::launcher_failed,
       .host = job_.options.host,
       .why = what});
}

// ---- deadlines

std::optional<Clock::time_point> Coordinator::next_deadline() const {
  if (done()) return std::nullopt;
  const auto first = job_.deadlines.next();
  const auto ping = job_.state == CoordinatorState::ended ? std::nullopt : job_.heartbeat.next();
  return first && ping ? std::min(first, ping) : first ? first : ping;
}

void Coordinator::tick(Clock::time_point now) {
  job_.now = now;
  if (job_.state != CoordinatorState::ended) check_heartbeats();
  job_.deadlines.expire(now, [this](Due due, bool again) {
    if (job_.state.check(due, again)) on(due);
  });
}

void Coordinator::on(Due due) {
  switch (due) {
    case Due::opened:
      return lose_member(*round_.members().first(), "it did not open the store in time", job_.now, false);
    case Due::stopped: {
      const std::string how = concat("its workers were not stopped after ", causes::seconds_text(job_.stop_timeout()));
      for (Member* member : std::vector<Member*>(round_.members().all())) {
        if (!member->owes_stopped()) continue;
        lose_member(*member, how, job_.now, false);
        if (job_.state != CoordinatorState::running && job_.state != CoordinatorState::stopping) break;
      }
      break;
    }
    case Due::skew: round_.on_skew(); break;
    case Due::survey: return survey_.on_timeout();
    case Due::lease: {
      const auto since = job_.succession.suspended_since();
      const std::string why = concat(
          since ? "its lease could not be renewed for " : "the verdict could not be recorded for ",
          causes::seconds_text(std::chrono::round<std::chrono::seconds>(job_.now - since.value_or(job_.ended_at))));
      return step_down(leads_no_more(job_, why), job_.now);
    }
    case Due::admission: round_.admit_waiting(); break;
    case Due::last_call: gathering_.note_last_call_over(); [[fallthrough]];
    case Due::claims:
    case Due::pause:
    case Due::fence: return gather();
    case Due::join: return end(gathering_.too_few_verdict(unproven_.text(turned_away_.text())));
    case Due::verdict:
      while (!job_.members.empty()) {
        const Member& slow = job_.members.all().begin()->second;
        job_.out.close(slow.link);
        remove(slow);
      }
      return;
  }
  after_round();
}

}  // namespace ddrun::rendezvous
