#include "job.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "causes.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

namespace {

/// Of unread reports; below the transport's limit for an agent that does not read.
constexpr std::uint64_t max_unread_report_bytes = 32UL << 20U;
constexpr Milliseconds first_claim_timeout{10'000};  ///< for the first claim to arrive

}  // namespace

void Outgoing::send(LinkId link, FromCoordinator message) { outputs_.push_back(Output{link, std::move(message)}); }

void Outgoing::close(LinkId link) { outputs_.push_back(Output{link, std::nullopt}); }

void Outgoing::refuse(LinkId link, RefusalKind kind, const std::string& why) {
  send(link, Refused{kind, why});
  close(link);
}

std::uint32_t Outgoing::ping(LinkId link, std::uint32_t heard) {
  if (++pings_ == 0) ++pings_;
  send(link, Ping{pings_, 0, heard});
  if (link == reported_.to && reported_.ping == 0) {
    reported_.ping = pings_;
    reported_.sent_before_ping = reported_.sent;
  }
  return pings_;
}

void Outgoing::on_pong(LinkId link, std::uint32_t number) {
  if (link != reported_.to || reported_.ping == 0 || static_cast<std::int32_t>(number - reported_.ping) < 0) return;
  reported_.read = reported_.sent_before_ping;
  reported_.ping = 0;
}

void Outgoing::event(std::string json, std::size_t max_early) {
  early_events_.push_back(std::move(json));
  if (const auto to = observer_()) {
    for (auto& one : std::exchange(early_events_, {})) send(*to, Log{LogKind::event, std::move(one)});
    return;
  }
  while (early_events_.size() > max_early) early_events_.pop_front();
}

void Outgoing::notice(const std::string& text) {
  if (const auto to = observer_()) send(*to, Log{LogKind::notice, text});
}

void Outgoing::report(Log report) {
  const auto to = observer_();
  if (!to) return;
  if (reported_.to != *to) reported_ = {.to = *to};
  const bool fits = reported_.sent - reported_.read + report.text.size() <= max_unread_report_bytes;
  if (fits) reported_.sent += report.text.size();
  else report.text.clear();
  send(*to, std::move(report));
}

std::vector<Output> Outgoing::take() { return std::exchange(outputs_, {}); }

bool Succession::suspend(Clock::time_point now) {
  if (suspended_since_) return false;
  suspended_since_ = now;
  return true;
}

bool Succession::resume() { return std::exchange(suspended_since_, std::nullopt).has_value(); }

void Succession::note_started() {
  orphans_ = {};
  has_lost_members_ = owes_restart_ = false;
  claims_.reset();
}

void Succession::note_lost(const Member& gone) {
  if (claims_) claims_->of.erase(gone.link);
  has_lost_members_ = has_lost_members_ || gone.kept_rank >= 0;
}

/// An earlier coordinator is recovered from once: its members have had their time to rejoin.
bool Succession::is_news(const RoundClaim& claim) const {
  if (claims_) return false;
  return former_ == Former::unknown || claim.node_count > 0 || (claim.term != 0 && former_ == Former::none);
}

void Succession::expect_claims(Clock::time_point now, Clock::time_point stopped_by, bool without_leader) {
  claims_ = Claims{std::min(now + first_claim_timeout, stopped_by), stopped_by, without_leader};
}

void Succession::add_claim(Member& member, const RoundClaim& claim, Membership& members) {
  claimed_ = std::max(claimed_, claim.round);
  if (!claims_ || claim.term == 0) return;
  claims_->former = Former::known;
  RoundClaim& last = claims_->last;
  const auto order_key = [](const RoundClaim& one) { return std::pair(one.term, one.round); };
  if (claim.node_count < 1 || order_key(claim) < order_key(last)) return;
  if (order_key(claim) > order_key(last)) {
    for (const auto& [outdated, of] : std::exchange(claims_->of, {})) {
      if (Member* other = members.find(outdated)) other->kept_rank = -1;
    }
    last = claim;
    JobState job;
    claims_->leader_rank = job.restore(claim.job_state, Clock::time_point{}) ? job.coordinator_node_rank : -1;
  }
  // All claims count: some members may have found the next coordinator before they were notified.
  last.moved = last.moved || claim.moved;
  claims_->of[member.link] = {claim.node_rank, claim.succeeded};
  member.kept_rank = claim.node_rank;
}

void Succession::note_orphan(const RoundClaim& claim, Clock::time_point stopped_by) {
  if (claim.round < orphans_.round || claim.node_count < 2) return;
  if (claim.round > orphans_.round)
    orphans_ = {claim.round, static_cast<std::size_t>(claim.node_count), {}, stopped_by};
  orphans_.node_ranks.insert(claim.node_rank);
}

std::optional<Clock::time_point> Succession::awaits_orphans_until(Clock::time_point now) const {
  const bool all_there = orphans_.node_ranks.size() + 1 >= orphans_.nodes;
  return all_there || now >= orphans_.by ? std::nullopt : std::optional(orphans_.by);
}

/// All members that may still run workers of the last round have claimed it.
bool Succession::Claims::complete() const {
  if (all_there()) return true;
  if (last.term == 0 || !without_leader || leader_rank < 0 || of.size() + 1 < size()) return false;
  return std::none_of(of.begin(), of.end(), [this](const auto& one) { return one.second.node_rank == leader_rank; });
}

std::optional<Clock::time_point> Succession::wait_until(Clock::time_point now, bool all_places_taken) const {
  if (!claims_ || claims_->complete() || now >= claims_->deadline()) return std::nullopt;
  if (claims_->former == Former::none && all_places_taken) return std::nullopt;
  return claims_->deadline();
}

std::optional<Succession::LastRound> Succession::take_claims() {
  if (!claims_) return std::nullopt;
  const Claims claims = *std::exchange(claims_, std::nullopt);
  former_ = claims.former;
  LastRound round{claims.last, {}, claims.all_there()};
  for (const auto& [link, of] : claims.of) {
    round.members.push_back(link);
    round.succeeded = round.succeeded && of.succeeded;
  }
  return round;
}

void Gathering::reset() {
  job_.deadlines.clear(Due::join);
  job_.deadlines.clear(Due::last_call);
  join_until_.reset();
  last_call_over_ = false;
  last_cause_.reset();
}

bool Gathering::awaits_claims() {
  auto& deadlines = job_.deadlines;
  const int available = job_.members.available();
  if (!join_until_) join_until_ = deadlines.at(Due::pause).value_or(job_.now) + job_.settings.join_timeout;
  if (available < job_.settings.min_nodes) deadlines.arm(Due::join, *join_until_);
  else deadlines.clear(Due::join);
  const auto until = std::max(job_.succession.wait_until(job_.now, available >= job_.settings.max_nodes),
                              job_.succession.awaits_orphans_until(job_.now));
  if (until) deadlines.arm(Due::claims, *until);
  else deadlines.clear(Due::claims);
  return until.has_value();
}

std::optional<VerdictMessage> Gathering::recover(const Succession::LastRound& round) {
  const RoundClaim& last = round.claim;
  if (last.term == 0) return std::nullopt;  // no round was ever started
  job_.round = std::max(job_.round, last.round);
  job_.started = true;
  job_.merge(last.job_state, job_.now);
  if (round.succeeded) {
    for (const LinkId link : round.members) {
      // They took part in the successful round.
      if (Member* member = job_.members.find(link)) member->part = Part::finished;
    }
    return causes::success();
  }
  VerdictMessage cause{.kind = VerdictKind::node_lost,
                       .exit_code = exit_codes::launcher_failed,
                       .why = "the coordinator of the round before was lost"};
  if (!last.moved) {
    if (!job_.can_restart()) {
      if (job_.budget.used() > 0) cause.why += "; no restart is left";
      return cause;
    }
    spend_restart(cause.why);
  }
  last_cause_ = std::move(cause);
  return std::nullopt;
}

bool Gathering::is_complete() {
  auto& deadlines = job_.deadlines;
  const int available = job_.members.available();
  if (available < job_.settings.min_nodes) {
    deadlines.clear(Due::last_call);
    last_call_over_ = false;
    return false;
  }
  if (deadlines.is_armed(Due::pause) || is_held_up()) return false;
  const int expected = job_.options.first_round_nodes;
  const bool all_expected = expected > 0 && available >= expected;
  const auto last_call = job_.settings.last_call;
  const bool last_call_over = job_.started || last_call_over_ || last_call.count() == 0 || all_expected;
  if (available >= job_.settings.max_nodes || last_call_over) return true;
  if (!deadlines.is_armed(Due::last_call)) deadlines.arm(Due::last_call, job_.now + last_call);
  return false;
}

void Gathering::note_ended(VerdictMessage cause, bool had_started) {
  if (had_started) join_until_.reset();
  last_cause_ = std::move(cause);
}

void Gathering::spend_restart(const std::string& why) {
  job_.succession.owe_restart();
  const Milliseconds pause = job_.budget.spend(job_.now);
  if (pause.count() > 0) job_.deadlines.arm(Due::pause, job_.now + pause);
  job_.event(event_text::restart, job_.round, job_.budget.used(), job_.settings.restart.max_restarts, pause, why);
}

void Gathering::fence(const Member& gone, Clock::time_point since) {
  const Clock::time_point until = since + job_.fence_time(gone);
  if (until <= job_.now || job_.deadlines.at(Due::fence).value_or(job_.now) >= until) return;
  job_.deadlines.arm(Due::fence, until);
  fenced_ = describe_with_rank(gone);
}

std::string Gathering::wait_reason() const {
  const int wanted = job_.settings.min_nodes - job_.members.available();
  if (wanted > 0) return causes::more_nodes(wanted);
  if (job_.succession.expects_claims()) return "the others of the last round";
  if (job_.succession.awaits_orphans_until(job_.now)) {
    return "the other machines of the job before, or the end of its workers there";
  }
  if (job_.succession.is_suspended()) return "the lease, which cannot be renewed at the moment";
  if (const auto until = job_.deadlines.at(Due::fence)) {
    return concat("the end of workers that may still run on ", fenced_, ", for ",
                  causes::seconds_text(std::chrono::ceil<std::chrono::seconds>(*until - job_.now)), " (--fence)");
  }
  return job_.deadlines.is_armed(Due::pause) ? "the end of the pause before the restart" : "the end of the last call";
}

VerdictMessage Gathering::too_few_verdict(const std::string& turned_away) const {
  const JobSettings& settings = job_.settings;
  VerdictMessage few =
      causes::too_few(job_.members.available(), settings.min_nodes, settings.join_timeout, job_.members.names(20));
  few.why += turned_away;
  if (turned_away.empty() && !last_cause_) {
    few.why += "; look at what ddrun says on the others, and whether they reach the coordinator's port on " +
               job_.options.host;
  }
  if (!last_cause_) return few;
  few.why = concat(last_cause_->why, "; then ", few.why);
  if (last_cause_->kind != VerdictKind::node_lost && last_cause_->kind != VerdictKind::worker_failed) return few;
  VerdictMessage cause = *last_cause_;
  cause.why = few.why;
  return cause;
}

}  // namespace ddrun::rendezvous
