#include "succession.hpp"

#include <algorithm>
#include <utility>

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
  has_lost_members_ = owes_restart_ = false;
  recovery_.reset();
}

void Succession::note_lost(const Member& gone) {
  if (recovery_) recovery_->remove_claim(gone.link);
  has_lost_members_ = has_lost_members_ || gone.kept_rank >= 0;
}

/// An earlier coordinator is recovered from once: its members have had their time to rejoin.
bool Succession::is_news(const RoundClaim& claim) const {
  if (recovery_) return false;
  return former_ == Former::unknown || claim.node_count > 0 || (claim.term != 0 && former_ == Former::none);
}

void Succession::expect_claims(Clock::time_point now, Clock::time_point stopped_by, bool without_leader) {
  recovery_.emplace(std::min(now + first_claim_timeout, stopped_by), stopped_by, without_leader);
}

void Succession::add_claim(Member& member, const RoundClaim& claim, Membership& members) {
  claimed_ = std::max(claimed_, claim.round);
  if (!recovery_) return;
  const Recovery::AddedClaim added = recovery_->add_claim(member.link, claim);
  for (const LinkId link : added.outdated) {
    if (Member* other = members.find(link)) other->kept_rank = -1;
  }
  if (added.of_last_round) member.kept_rank = claim.node_rank;
}

std::optional<Clock::time_point> Succession::wait_until(Clock::time_point now, bool all_places_taken) const {
  if (!recovery_ || recovery_->complete() || now >= recovery_->deadline()) return std::nullopt;
  if (recovery_->is_new_job() && all_places_taken) return std::nullopt;
  return recovery_->deadline();
}

std::optional<Recovery> Succession::take_claims() {
  if (recovery_) former_ = recovery_->is_new_job() ? Former::none : Former::known;
  return std::exchange(recovery_, std::nullopt);
}

}  // namespace ddrun::rendezvous
