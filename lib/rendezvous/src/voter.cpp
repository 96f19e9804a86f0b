#include "voter.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

using Ballot = VoteAnswer::Ballot;

Voter::Voter(std::uint64_t id, std::string job, Milliseconds ttl, Time now)
    : id_(id), job_(std::move(job)), ttl_(ttl), fresh_until_(now + ttl) {}

VoteAnswer Voter::ask(const VoteRequest& request, Time now) {
  using Kind = VoteRequest::Kind;
  Ballot result = Ballot::yes;
  switch (request.kind) {
    case Kind::enter:
      if (request.text != job_ || Milliseconds(request.ttl_ms) != ttl_) {
        VoteAnswer answer;
        answer.number = request.number;
        answer.voter = id_;
        answer.ballot = Ballot::other_job;
        answer.verdict = request.text != job_
                             ? concat("votes for the job ", job_, ", not ", request.text)
                             : concat("has a --lease-ttl of ", ttl_.count(), " ms, not ", request.ttl_ms, " ms");
        return answer;
      }
      seen_ = std::max(seen_, request.term);
      break;
    case Kind::vote: result = vote(request, now); break;
    case Kind::hold: result = hold(request, now); break;
    case Kind::release:
      if (is_for(request)) vote_ = {};
      break;
    case Kind::depose:
      deposed_ = std::max(deposed_, request.term);
      if (vote_.term != 0 && vote_.term <= deposed_) vote_ = {};
      break;
    case Kind::record: result = record(request, now); break;
  }
  VoteAnswer answer = state(now);
  answer.number = request.number;
  answer.ballot = result;
  // A candidate must know of one that may not be recorded by more than half, but may be.
  answer.verdict = verdict_;
  return answer;
}

Ballot Voter::vote(const VoteRequest& request, Time now) {
  if (sure_) return Ballot::no;  // nobody leads a job that is over
  if (!(is_for(request) && bound(now))) {
    if (bound(now) || request.term <= std::max({voted_, seen_, deposed_})) return Ballot::no;
    vote_ = {request.term, request.candidate, "", false, {}};
    voted_ = request.term;
  }
  vote_.until = now + ttl_;
  return now < fresh_until_ ? Ballot::fresh : Ballot::yes;
}

/// Of one that leads with the votes of more than half: so no other does, and this one may join in.
Ballot Voter::hold(const VoteRequest& request, Time now) {
  if (request.term <= deposed_ || (bound(now) && !is_for(request))) return Ballot::no;
  // It has led, and another after it: its message is from the past.
  if (request.term < seen_) return Ballot::no;
  vote_ = {request.term, request.candidate, request.text, true, now + ttl_};
  // It led when it said so, which was after this voter began: so did no other that this one may have voted for before.
  fresh_until_ = std::min(fresh_until_, now);
  voted_ = std::max(voted_, request.term);
  seen_ = request.term;
  return Ballot::yes;
}

Ballot Voter::record(const VoteRequest& request, Time now) {
  if (request.text.empty()) return Ballot::no;
  if (request.sure && !sure_) {
    // Of any agent that knows it.
    verdict_ = request.text;
    sure_ = true;
  }
  if (sure_) return verdict_ == request.text ? Ballot::yes : Ballot::no;
  if (!bound(now) || !is_for(request)) return Ballot::no;
  // One that a leader before could not have recorded by more than half, or the one that leads would know of it.
  if (verdict_term_ < request.term) verdict_.clear();
  if (verdict_.empty()) {
    verdict_ = request.text;
    verdict_term_ = request.term;
  }
  return verdict_ == request.text ? Ballot::yes : Ballot::no;
}

void Voter::ended(const std::string& candidate) {
  if (vote_.candidate == candidate) vote_ = {};
}

VoteAnswer Voter::state(Time now) const {
  VoteAnswer answer;
  answer.ballot = Ballot::yes;
  answer.voter = id_;
  answer.voted = voted_;
  answer.seen = seen_;
  if (bound(now) && vote_.leads) {
    answer.leader_term = vote_.term;
    answer.leader_address = vote_.address;
  }
  if (sure_) answer.verdict = verdict_;
  answer.sure = sure_;
  return answer;
}

std::optional<Voter::Time> Voter::next_change(Time now) const {
  return bound(now) ? std::optional(vote_.until) : std::nullopt;
}

}  // namespace ddrun::rendezvous
