#include "round_machine.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "causes.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "node_ranks.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr Milliseconds open_timeout{30'000};
/// The longest time that a newcomer waits for the running round to settle, whatever --last-call is.
constexpr Milliseconds max_settle_time{30'000};
/// A worker group that fails within this time has made no progress that a restart could use.
constexpr Milliseconds early_failure_time{1'000};
// Of an exchange.
constexpr std::size_t mebibyte = 1024 * 1024;
/// Of a message, but for a single larger blob.
constexpr std::size_t max_part_bytes = mebibyte;
constexpr std::size_t max_blob_bytes = 3 * mebibyte;
/// Of a tag, as copied for all members: heartbeats behind them pass in time on a gigabit link.
constexpr std::size_t max_copied_bytes = 256 * mebibyte;

}  // namespace

std::string FailureHistory::add(const Ending& ending, Clock::time_point started_at, const JobSettings& settings) {
  if (!ending.is_restart() || ending.cause.kind != VerdictKind::worker_failed) return {};
  const FailureHistory last = *this;
  key_ = ending.details.key();
  exit_code_ = ending.cause.exit_code;
  at_start_ = ending.since - started_at <= early_failure_time;
  times_ = 1;
  const int max_same_cause = settings.restart.same_cause;
  if (max_same_cause == 0 || settings.node_max_failures > 0 || key_.empty()) return {};
  const bool same = key_ == last.key_;
  if (same) times_ += last.times_;
  const std::string what = concat("the same cause: ", key_);
  if (same && at_start_ && last.at_start_ && exit_code_ == last.exit_code_)
    return concat("the workers failed within ", causes::seconds_text(early_failure_time),
                  " of their start twice in a row, with ", what);
  return times_ >= max_same_cause ? concat(counted(times_, "failure"), " in a row had ", what) : std::string();
}

void Exchanges::begin(Round round, std::size_t members) {
  round_ = round;
  next_.assign(members, 0);
  complete_ = 0;
  open_ = {};
}

Result<std::vector<Exchanged>> Exchanges::add(int node_rank, const Exchange& from) {
  std::vector<Exchanged> parts;
  std::uint32_t& next = next_.at(static_cast<std::size_t>(node_rank));
  const std::uint32_t number = from.tag & ~other_order;
  if (number != next || number - complete_ >= open_.size()) return parts;
  ++next;
  Open& open = open_[number % open_.size()];
  open.blobs.resize(next_.size());
  open.blobs[static_cast<std::size_t>(node_rank)] = from.blob;
  open.bytes += from.blob.size();
  const std::size_t limit = max_copied_bytes / next_.size();
  if (from.blob.size() > max_blob_bytes || open.bytes > limit) {
    return fail(Errc::unavailable, concat("the MPI ranks put too many keys for one exchange between ", next_.size(),
                                          " machines: more than 3 MiB on one, or ", limit / 1024, " KiB on all"));
  }
  if (++open.count < next_.size()) return parts;
  ++complete_;
  std::size_t room = 0;
  for (std::size_t rank = 0; std::string & blob : std::exchange(open, {}).blobs) {
    if (parts.empty() || blob.size() > room) {
      parts.push_back({round_, from.tag, static_cast<std::uint32_t>(rank), {}, false});
      room = std::max(max_part_bytes, blob.size());
    }
    room -= blob.size();
    parts.back().blobs.push_back(std::move(blob));
    ++rank;
  }
  parts.back().last = true;
  return parts;
}

// ---- opening and starting

void RoundMachine::begin(std::vector<Member*> members) {
  if (!job_.state.enter(CoordinatorOrder::Step::open)) return;
  const std::vector<const Member*> seen(members.begin(), members.end());
  members_.begin(std::move(members));
  any_succeeded_ = false;
  int world_size = 0;
  std::vector<std::string> hosts;
  for (Member* member : members_.all()) {
    member->notified_spare = false;
    world_size += member->local_world_size;
    hosts.push_back(member->host);
  }
  address_ = address_of_node_rank_0(seen, job_.options.own_addresses);
  job_.event(event_text::round, job_.round, job_.budget.used(), world_size, address_, hosts);
  if (!job_.options.single_member) job_.deadlines.arm(Due::opened, job_.now + open_timeout);
  Member& first = *members_.first();
  members_.set(first, Part::notified);
  job_.out.send(first.link, Open{job_.round, address_, allowed_addresses(seen, job_.options.own_addresses)});
}

void RoundMachine::on(Member& member, const Opened& message) {
  if (job_.state != CoordinatorState::opening || message.round != job_.round || message.port == 0) return;
  if (member.in_round() && member.node_rank == 0) start(message.port);
}

void RoundMachine::start(std::uint16_t port) {
  if (!job_.state.enter(CoordinatorOrder::Step::start)) return;
  std::vector<NodeShape> nodes;
  nodes.reserve(members_.size());
  std::vector<std::string> hosts;
  for (const Member* member : members_.all()) {
    nodes.push_back(NodeShape{member->local_world_size, member->role});
    hosts.push_back(member->host);
  }
  const std::string first_hosts = job_.options.single_member ? "" : causes::first_names(std::move(hosts));
  std::vector<RankAssignment> ranks = assign_ranks(nodes);
  job_.deadlines.clear(Due::opened);
  job_.started = true;
  job_.succession.note_started();
  started_at_ = job_.now;
  for (Exchanges& order : exchanges_) order.begin(job_.round, members_.size());
  lost_finished_.reset();
  const Member* own = job_.members.own();
  job_.coordinator_node_rank = own != nullptr && own->in_round() ? own->node_rank : -1;
  const std::string job_state = job_.options.term == 0 ? "" : job_.serialize(job_.now);
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = *members_.all()[rank];
    members_.set(member, Part::notified);
    member.kept_rank = member.node_rank;
    ranks[rank].restart_count = job_.budget.used();
    ranks[rank].max_restarts = job_.settings.restart.max_restarts;
    ranks[rank].master_addr = address_;
    ranks[rank].master_port = port;
    ranks[rank].host = member.host;
    ranks[rank].hosts = first_hosts;
    job_.out.send(member.link, Start{job_.round, std::move(ranks[rank]), job_.options.term, job_state});
  }
  job_.event(event_text::started, job_.round, job_.budget.used(), static_cast<int>(members_.size()));
  schedule_admission();
}

// ---- running

void RoundMachine::on(Member& member, const Failed& message) {
  // Later failures during a stop are consequences: only the first one is the cause.
  if (job_.state != CoordinatorState::running || message.round != job_.round || !member.owes_stopped()) return;
  VerdictMessage cause = causes::worker_failed(message, member);
  const std::string reason = message.declared || message.why.empty() ? "" : ": " + causes::truncate_text(message.why);
  job_.event(event_text::failed, message, member.node(), cause.why + reason);
  stop_for_cause({.cause = std::move(cause),
                  .cause_link = member.link,
                  .machine = member.machine,
                  .reason = reason,
                  .looks = message.waited},
                 message.may_restart);
}

void RoundMachine::on(Member& member, const Succeeded& message) {
  if (job_.state != CoordinatorState::running || message.round != job_.round || member.part != Part::notified) return;
  members_.set(member, Part::succeeded);
  job_.event(event_text::succeeded, job_.round, member.node());
  const auto& skew = job_.settings.exit_skew;
  if (!any_succeeded_ && skew) job_.deadlines.arm(Due::skew, job_.now + *skew);
  any_succeeded_ = true;
  if (members_.count(Part::notified) != 0) return check_exchange();
  job_.deadlines.clear(Due::skew);
  if (!job_.options.single_member) job_.deadlines.arm(Due::stopped, job_.now + job_.stop_timeout());
}

void RoundMachine::on(Member& member, const Stopped& message) {
  if (message.round != job_.round || !member.owes_stopped()) return;
  const bool succeeded = member.part == Part::succeeded;
  members_.set(member, succeeded ? Part::finished : Part::stopped);
  if (!message.workers.empty()) {
    job_.out.report({LogKind::report, message.workers, job_.round, member.node_rank, member.host});
  }
  if (ending_) {
    if (!message.held_up.failure.empty()) ending_->details.set_held_up(message.held_up);
    if (ending_->cause_link == member.link) ending_->details.set_cause(message.failure);
    else ending_->details.add_other(member, message.failure);
  } else if (!succeeded) {
    stop_for_cause(
        {.cause = causes::node_lost(member, "it stopped its workers without saying why"), .cause_link = member.link},
        true);
  }
}

void RoundMachine::on(const Member& member, const PassSignal& message) {
  const bool may_pass = message.signal == SIGUSR1 || message.signal == SIGUSR2;
  if (job_.state != CoordinatorState::running || message.round != job_.round || !member.in_round() || !may_pass) return;
  for (const Member* other : members_.all()) {
    if (other->part != Part::finished) job_.out.send(other->link, message);
  }
}

void RoundMachine::on(const Member& member, const Exchange& message) {
  const bool may_send = job_.state == CoordinatorState::running && member.part == Part::notified;
  if (!may_send || message.round != job_.round) return;
  const bool other_order = (message.tag & Exchanges::other_order) != 0;
  const auto complete = exchanges_[other_order ? 1 : 0].add(member.node_rank, message);
  if (!complete) {
    return stop_permanently({.kind = VerdictKind::launcher_failed,
                             .exit_code = exit_codes::launcher_failed,
                             .host = member.host,
                             .why = complete.error().message},
                            &member);
  }
  for (const Exchanged& part : *complete) {
    for (const Member* other : members_.all()) {
      if (other->owes_stopped()) job_.out.send(other->link, part);
    }
  }
  check_exchange();
}

/// The ranks of a member that has succeeded contribute to nothing more.
void RoundMachine::check_exchange() {
  for (const Member* member : members_.all()) {
    const bool has_ended = member->part == Part::succeeded || member->part == Part::finished;
    const bool is_missed =
        std::ranges::any_of(exchanges_, [&](const auto& order) { return order.waits_for(member->node_rank); });
    if (!has_ended || !is_missed) continue;
    return stop_for_cause(
        {.cause = causes::ranks_missing(*member), .cause_link = member->link, .machine = member->machine}, true);
  }
}

void RoundMachine::on_skew() {
  std::vector<const Member*> late;
  for (const Member* member : members_.all()) {
    if (member->part == Part::notified) late.push_back(member);
  }
  if (!late.empty()) stop_permanently(causes::skewed(late, *job_.settings.exit_skew), late.front());
}

void RoundMachine::on_suspended() {
  if (job_.state == CoordinatorState::opening) stop({.cause = {.why = "the lease could not be renewed"}});
  job_.out.notice(
      "the lease that says who leads the job could not be renewed: the round that runs goes on, but no other one "
      "begins before it could");
  // A finished member was not needed, but may begin the next round with another coordinator.
  if (job_.state == CoordinatorState::running && lost_finished_) {
    stop_for_cause({.cause = *std::exchange(lost_finished_, std::nullopt)}, true);
  }
  escalate_to_kill();
}

// ---- newcomers beside the round

bool RoundMachine::has_free_place() const {
  return !job_.succession.is_suspended() &&
         (job_.state == CoordinatorState::opening || job_.state == CoordinatorState::running) && !any_succeeded_ &&
         members_.size() < static_cast<std::size_t>(job_.settings.max_nodes);
}

Clock::duration RoundMachine::settle_time() const { return std::min(job_.settings.last_call, max_settle_time); }

/// The running round may be stopped for newcomers from then on.
Clock::time_point RoundMachine::admit_from() const {
  return job_.state == CoordinatorState::running ? started_at_ + settle_time() : job_.now;
}

void RoundMachine::admit(Member& newcomer, bool spare) {
  const bool joins = has_free_place();
  const bool joins_now = joins && admit_from() <= job_.now;
  if (joins && !joins_now) {
    job_.send_waiting(newcomer, false,
                      concat("the round that runs to have lasted ", causes::seconds_text(settle_time()),
                             ", in case more nodes come (--last-call)"));
    return job_.deadlines.arm(Due::admission, admit_from());
  }
  job_.send_waiting(newcomer, spare,
                    spare                                                   ? "a place in the job"
                    : job_.state == CoordinatorState::stopping || joins_now ? "the end of the round before"
                                                                            : "the next round");
  if (joins_now) restart_for_newcomers({&newcomer});
}

void RoundMachine::schedule_admission() {
  job_.deadlines.clear(Due::admission);
  if (!has_free_place()) return;
  const auto& all = job_.members.all();
  const bool any_waits = std::any_of(
      all.begin(), all.end(), [](const auto& entry) { return !entry.second.in_round() && entry.second.available(); });
  if (any_waits) job_.deadlines.arm(Due::admission, admit_from());
}

void RoundMachine::admit_waiting() {
  const bool place = has_free_place();
  std::vector<const Member*> newcomers;
  for (Member* member : job_.members.available_members()) {
    if (member->in_round()) continue;
    if (place) newcomers.push_back(member);
    else if (!member->notified_spare) job_.send_waiting(*member, true, "the next round");
  }
  if (!newcomers.empty()) restart_for_newcomers(newcomers);
}

/// A new rendezvous, which costs no restart.
void RoundMachine::restart_for_newcomers(const std::vector<const Member*>& newcomers) {
  stop({.cause = {.kind = VerdictKind::launcher_failed, .why = causes::joining(newcomers)}});
}

// ---- losing members

void RoundMachine::on_lost(const Member& gone, VerdictMessage cause, Clock::time_point since, bool broken) {
  // A finished member is not missed, unless it had the store.
  const bool missed = gone.in_round() && !(gone.part == Part::finished && gone.node_rank != 0);
  if (job_.state == CoordinatorState::opening && missed) {
    stop({.cause = std::move(cause)});
  } else if (job_.state == CoordinatorState::running &&
             (missed || (gone.in_round() && job_.succession.is_suspended()))) {
    stop_for_cause({.cause = std::move(cause), .cause_link = gone.link}, true);
  } else if (job_.state == CoordinatorState::running && gone.in_round()) {
    lost_finished_ = std::move(cause);
  } else if (job_.state == CoordinatorState::stopping && gone.was_notified()) {
    // A leaving member may close its link before it gets the OPEN of a new round.
    const bool has_left = gone.leaving && broken;
    if (gone.owes_stopped() && !has_left) lost_while_stopping(std::move(cause), since, broken);
    escalate_to_kill();
  }
}

void RoundMachine::lost_while_stopping(VerdictMessage cause, Clock::time_point since, bool broken) {
  Ending& ending = *ending_;
  if (ending.cause.kind != VerdictKind::worker_failed) return count_loss(std::move(cause));
  // Workers elsewhere fail as soon as those of a lost node are gone; that FAILED may arrive before the loss is
  // detected.
  const bool came_first = broken ? job_.now - ending.since <= job_.heartbeat.interval() : since <= ending.since;
  if (!came_first) return;
  cause.why = concat(cause.why, "; at the same time ", ending.cause.why);
  ending.replace(std::move(cause), 0);
  // A non-restartable exit code does not apply to a node loss.
  const bool was_final = ending.is_final();
  ending.set_restart(job_.can_restart());
  if (was_final && ending.is_restart()) send_stop(0);
}

/// While a round ends for a reason that costs no restart: the loss makes it cost one.
void RoundMachine::count_loss(VerdictMessage cause) {
  Ending& ending = *ending_;
  if (ending.next != Ending::Next::new_round || !ending.had_started) return;
  ending.set_restart(job_.can_restart());
  ending.cause = std::move(cause);
  ending.cause_link = 0;
}

void RoundMachine::lose_orderly(Member& member, const Leave& message) {
  VerdictMessage cause = causes::node_lost(member, message.text);
  job_.event(event_text::lost, job_.round, member.node(), cause.why);
  job_.members.set_leaving(member, message);
  if (job_.state == CoordinatorState::running) {
    stop_for_cause({.cause = std::move(cause), .cause_link = member.link}, true);
  } else if (job_.state == CoordinatorState::opening) {
    stop({.cause = std::move(cause)});
  } else {
    count_loss(std::move(cause));
  }
}

// ---- stopping

void RoundMachine::stop_for_cause(Ending ending, bool may_restart) {
  ending.set_restart(may_restart && job_.can_restart());
  if (may_restart && ending.is_final() && job_.budget.used() > 0) ending.cause.why += "; no restart is left";
  ending.looks = ending.looks && !job_.options.single_member;
  stop(std::move(ending));
}

void RoundMachine::stop_permanently(VerdictMessage cause, const Member* member, int signal) {
  const LinkId link = member != nullptr ? member->link : 0;
  if (job_.state == CoordinatorState::opening || job_.state == CoordinatorState::running) {
    stop({std::move(cause), Ending::Next::end_of_job, link}, signal);
  } else if (is_stopping_for_another()) {
    if (ending_->is_restart()) job_.succession.owe_restart();  // should another coordinator go on
    ending_->next = Ending::Next::end_of_job;
    ending_->replace(std::move(cause), link);
  }
}

void RoundMachine::stop(Ending ending, int signal) {
  ending.since = job_.now;
  ending.had_started = job_.state == CoordinatorState::running;
  if (!job_.state.enter(CoordinatorOrder::Step::stop)) return;
  for (const Due due : {Due::opened, Due::skew, Due::admission}) job_.deadlines.clear(due);
  if (!job_.options.single_member) job_.deadlines.arm(Due::stopped, job_.now + job_.stop_timeout());
  ending_ = std::move(ending);
  for (Exchanges& order : exchanges_) order.begin(0, 0);
  send_stop(job_.succession.must_kill() ? SIGKILL : signal);
}

/// Sent again if the decision about another round has changed.
void RoundMachine::send_stop(int signal) {
  Ending& ending = *ending_;
  ending.signal = signal;
  if (ending.had_started) ending.announced = ending.cause.why;
  Stop stop{job_.round, !ending.is_final(), ending.cause.why, signal};
  if (ending.is_restart()) {
    stop.why += concat(ending.reason, "; restarting all workers (restart ", job_.budget.used() + 1, " of ",
                       job_.settings.restart.max_restarts, ")");
  }
  // Only the first time: a repeated one does not wait.
  if (std::exchange(ending.looks, false) && signal != SIGKILL) stop.look = survey_.begin_at_stop();
  job_.event(event_text::ended, job_.round, stop.another_round, stop.why);
  for (const Member* member : members_.all()) {
    stop.awaits_page = stop.look != 0 && member->link == job_.out.observer();
    if (member->was_notified()) job_.out.send(member->link, stop);
  }
}

/// Repeats STOP with SIGKILL for members that were stopped with grace before.
void RoundMachine::escalate_to_kill() {
  const bool waits = job_.state == CoordinatorState::stopping && members_.to_stop() > 0;
  if (waits && ending_->signal != SIGKILL && job_.succession.must_kill()) send_stop(SIGKILL);
}

std::optional<Ending> RoundMachine::take_ended() {
  if (job_.state == CoordinatorState::running && members_.count(Part::finished) == members_.size()) {
    return Ending{.cause = causes::success(), .next = Ending::Next::end_of_job};
  }
  if (job_.state != CoordinatorState::stopping || members_.to_stop() != 0) return std::nullopt;
  job_.deadlines.clear(Due::stopped);
  return std::exchange(ending_, std::nullopt);
}

bool RoundMachine::has_workers() const {
  return job_.state == CoordinatorState::running || (job_.state == CoordinatorState::stopping && ending_->had_started);
}

}  // namespace ddrun::rendezvous
