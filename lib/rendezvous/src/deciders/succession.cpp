#include "succession.hpp"

#include <algorithm>
#include <utility>

#include "job_state.hpp"

namespace ddrun::rendezvous {

namespace {

/// For the first claim to arrive.
constexpr Milliseconds first_claim_timeout{10'000};

}  // namespace

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

}  // namespace ddrun::rendezvous
