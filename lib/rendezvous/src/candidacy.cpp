#include "candidacy.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

using Ballot = VoteAnswer::Ballot;

namespace {

/// A voter that has not answered meanwhile does not vote this time; later more, up to half of the time to live.
constexpr Milliseconds first_time_to_vote{500};
constexpr Milliseconds longest_between_holds{1000};
constexpr Milliseconds longest_between_greetings{5000};
/// Before a candidate tries again: those that stand first in the list sooner; and as two of them keep each other from
/// winning, each waits for a random part of a time that doubles, also beyond what a message takes.
constexpr std::chrono::milliseconds pause_of_each{3};
constexpr Milliseconds first_spread{20};
/// To a voter that does not answer no more are sent.
constexpr std::size_t most_unanswered = 16;

}  // namespace

Candidacy::Candidacy(Options options)
    : options_(std::move(options)), random_(options_.seed), voters_(options_.voters), spread_(first_spread) {}

void Candidacy::send(std::size_t voter, Kind kind, std::uint64_t term, std::string text, bool sure) {
  Peer& peer = voters_[voter];
  if (!peer.there || peer.sent.size() >= most_unanswered) return;
  VoteRequest request;
  request.kind = kind;
  request.number = ++last_number_;
  request.term = term;
  request.candidate = options_.id;
  request.text = std::move(text);
  request.ttl_ms = static_cast<std::uint32_t>(options_.ttl.count());
  request.sure = sure;
  peer.sent[request.number] = {kind, term, now_};
  out_.push_back({voter, std::move(request)});
}

void Candidacy::send_to_all(Kind kind, std::uint64_t term, const std::string& text, bool sure) {
  for (std::size_t voter = 0; voter < voters_.size(); ++voter) send(voter, kind, term, text, sure);
}

std::vector<Candidacy::Asked> Candidacy::take_requests() { return std::exchange(out_, {}); }

// ---- connections to voters

void Candidacy::connected(std::size_t voter, Time now) {
  now_ = now;
  voters_[voter].there = true;
  send(voter, Kind::enter, seen_, options_.job);
  if (deposed_ != 0) send(voter, Kind::depose, deposed_);
  if (asking_ != 0) send(voter, Kind::vote, asking_);
  if (term_ != 0) {
    if (is_over()) lose("it could not be renewed in time");
    else send(voter, Kind::hold, term_, address_);
  }
  if (!to_record_.empty()) send(voter, Kind::record, term_, to_record_);
}

/// Its vote may still be ours, for as long as it has said so.
void Candidacy::disconnected(std::size_t voter, Time now) {
  now_ = now;
  Peer& peer = voters_[voter];
  peer.there = false;
  peer.sent.clear();
  peer.state = {};
  peer.said.reset();
  if (asking_ != 0) count();
}

void Candidacy::heard(std::size_t voter, const VoteAnswer& answer, Time now) {
  now_ = now;
  Peer& peer = voters_[voter];
  const auto found = peer.sent.find(answer.number);
  std::optional<Sent> sent;
  if (found != peer.sent.end()) {
    sent = found->second;
    peer.sent.erase(found);
  }
  if (answer.number != 0 && !sent) return;
  if (answer.ballot == Ballot::other_job) {
    peer.objection = answer.verdict;
    peer.there = false;
    return;
  }
  peer.objection.clear();
  peer.state = answer;
  peer.id = answer.voter;
  voted_ = std::max(voted_, answer.voted);
  seen_ = std::max({seen_, answer.seen, answer.leader_term});
  if (answer.sure && !verdict_) verdict_ = answer.verdict;
  if (answer.leader_term != 0) spread_ = first_spread;
  // One that was not there then, or remembers nothing, hears it from all that know it.
  if (verdict_ && !answer.sure && sent && sent->kind == Kind::enter) send(voter, Kind::record, 0, *verdict_, true);
  if (sent) {
    switch (sent->kind) {
      case Kind::vote: heard_of_vote(peer, *sent, answer); break;
      case Kind::hold: heard_of_hold(peer, *sent, answer); break;
      case Kind::record: heard_of_record(peer, answer); break;
      case Kind::enter:
      case Kind::release:
      case Kind::depose: break;
    }
  }
  // It had not heard of it, or has heard of the leader again from a message that was late.
  if (deposed_ != 0 && answer.leader_term == deposed_) send(voter, Kind::depose, deposed_);
  consider();
}

std::size_t Candidacy::voters_there() const {
  return static_cast<std::size_t>(std::count_if(voters_.begin(), voters_.end(), [](const Peer& p) { return p.there; }));
}

std::optional<lease::Leader> Candidacy::leader() const {
  const Peer* best = nullptr;
  for (const Peer& peer : voters_) {
    if (!peer.there || peer.state.leader_term == 0 || peer.state.leader_term == term_) continue;
    if (best == nullptr || peer.state.leader_term > best->state.leader_term) best = &peer;
  }
  if (best == nullptr) return std::nullopt;
  return lease::Leader{best->state.leader_term, best->state.leader_address, false};
}

// ---- time

void Candidacy::tick(Time now) {
  now_ = now;
  if (now_ >= greet_at_) {
    greet_at_ = now_ + std::min(options_.ttl / 3, longest_between_greetings);
    send_to_all(Kind::enter, seen_, options_.job);
  }
  if (term_ != 0) {
    if (is_over()) {
      lose(concat("more than half of the machines that vote could not be asked within ",
                  format_duration(options_.ttl - lease::fence_margin(options_.ttl))));
    } else if (now_ >= hold_at_) {
      hold();
    }
  }
  if (asking_ != 0 && now_ >= ask_until_) fail();
  consider();
}

std::optional<Candidacy::Time> Candidacy::next_deadline() const {
  Time first = greet_at_;
  if (term_ != 0) {
    first = std::min({first, hold_at_, over_at()});
  } else if (asking_ != 0) {
    first = std::min(first, ask_until_);
  } else if (candidate_ && !verdict_ && try_at_ > now_) {
    first = std::min(first, try_at_);
  }
  return first;
}

// ---- to win

void Candidacy::campaign(std::string address, Time now) {
  now_ = now;
  if (!std::exchange(candidate_, true)) try_at_ = now_ + place_in_line();
  address_ = std::move(address);
  if (term_ == 0) consider();
  else if (is_over()) lose("it could not be renewed in time");
  else hold();
}

Clock::duration Candidacy::part_of(Milliseconds time) {
  return std::chrono::microseconds(static_cast<std::int64_t>(random_()) % (time.count() * 1000));
}

Clock::duration Candidacy::place_in_line() const { return pause_of_each * static_cast<int>(own_.value_or(0)); }

/// Each candidate has terms of its own, so that no two ever lead in one.
std::uint64_t Candidacy::next_term() const {
  const std::uint64_t above = std::max({voted_, seen_, deposed_}) + 1;
  const std::uint64_t all = voters_.size();
  const std::uint64_t own = *own_;
  return above + (own + all - (above - 1) % all) % all;
}

/// Asks for votes if the time has come and there may be enough.
void Candidacy::consider() {
  if (!candidate_ || !own_ || term_ != 0 || asking_ != 0 || verdict_ || now_ < try_at_) return;
  const auto free = std::count_if(voters_.begin(), voters_.end(),
                                  [](const Peer& peer) { return peer.there && peer.state.leader_term == 0; });
  if (static_cast<std::size_t>(free) >= majority()) ask();
}

void Candidacy::ask() {
  asking_ = next_term();
  voted_ = asking_;
  ask_until_ = now_ + std::clamp(20 * spread_, first_time_to_vote, options_.ttl / 2);
  found_.clear();
  for (Peer& peer : voters_) {
    peer.said.reset();
    peer.held = {};
    peer.denies = peer.has_verdict = false;
  }
  send_to_all(Kind::vote, asking_);
}

void Candidacy::heard_of_vote(Peer& peer, const Sent& sent, const VoteAnswer& answer) {
  if (sent.term != asking_) return;
  peer.said = answer.ballot;
  if (answer.ballot != Ballot::no) {
    peer.held = sent.at;
    if (!answer.verdict.empty() && found_.empty()) found_ = answer.verdict;
  }
  count();
}

void Candidacy::count() {
  // One that stands in the list under two names has one vote.
  std::set<std::uint64_t> yes, any;
  bool all_have_answered = true;
  for (const Peer& peer : voters_) {
    if (peer.there && !peer.said) all_have_answered = false;
    if (!peer.said || *peer.said == Ballot::no) continue;
    any.insert(peer.id);
    if (*peer.said == Ballot::yes) yes.insert(peer.id);
  }
  // Where all have begun lately, this agent's among them, no candidate can have won before.
  const bool enough = yes.size() >= majority() || any.size() == voters_.size();
  if (enough && !verdict_) win();
  else if (enough || all_have_answered) fail();
}

void Candidacy::fail() {
  send_to_all(Kind::release, asking_);
  asking_ = 0;
  try_at_ = now_ + place_in_line() + part_of(spread_);
  spread_ = std::min(2 * spread_, options_.ttl);
}

void Candidacy::win() {
  term_ = std::exchange(asking_, 0);
  seen_ = term_;
  spread_ = first_spread;
  held_since_ = {};
  refused_ = false;
  count_held();
  if (is_over()) return lose("it was late");
  finishes_ = !found_.empty() && !verdict_;
  hold();
  if (finishes_) {
    to_record_ = found_;
    send_to_all(Kind::record, term_, to_record_);
  }
}

// ---- to keep it

/// While the lease holds: a voter takes from it that no other leads.
void Candidacy::hold() {
  hold_at_ = now_ + std::min<Clock::duration>(options_.ttl / 4, longest_between_holds);
  send_to_all(Kind::hold, term_, address_);
}

void Candidacy::heard_of_hold(Peer& peer, const Sent& sent, const VoteAnswer& answer) {
  if (term_ == 0 || sent.term != term_) return;
  if (answer.ballot == Ballot::yes) {
    peer.held = std::max(peer.held, sent.at);
    peer.denies = false;
    // It may not have stood by this one when it was asked.
    if (!to_record_.empty() && !peer.has_verdict) {
      send(static_cast<std::size_t>(&peer - voters_.data()), Kind::record, term_, to_record_);
    }
    return count_held();
  }
  if (answer.seen > term_) return lose(concat("another has led in term ", answer.seen));
  peer.denies = true;
  const auto against =
      std::count_if(voters_.begin(), voters_.end(), [](const Peer& one) { return one.there && one.denies; });
  if (static_cast<std::size_t>(against) > voters_.size() - majority()) lose("more than half of the votes are lost");
}

/// More than half have said yes to what was sent at this time, or later.
void Candidacy::count_held() {
  std::map<std::uint64_t, Time> of;
  for (const Peer& peer : voters_) {
    if (peer.held == Time{}) continue;
    Time& held = of[peer.id];
    held = std::max(held, peer.held);
  }
  if (of.size() < majority()) return;
  std::vector<Time> times;
  for (const auto& [voter, held] : of) times.push_back(held);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(majority() - 1), times.end(),
                   std::greater<>());
  held_since_ = std::max(held_since_, times[majority() - 1]);
}

void Candidacy::lose(std::string why) {
  send_to_all(Kind::release, term_);
  term_ = 0;
  to_record_.clear();
  finishes_ = false;
  why_lost_ = std::move(why);
  try_at_ = now_ + part_of(first_spread);
}

void Candidacy::resign(Time now) {
  now_ = now;
  candidate_ = false;
  if (const std::uint64_t given_back = std::max(term_, asking_); given_back != 0) {
    send_to_all(Kind::release, given_back);
  }
  term_ = asking_ = 0;
  to_record_.clear();
  finishes_ = false;
}

bool Candidacy::released() const {
  return std::none_of(voters_.begin(), voters_.end(), [](const Peer& peer) {
    return peer.there && std::any_of(peer.sent.begin(), peer.sent.end(),
                                     [](const auto& sent) { return sent.second.kind == Kind::release; });
  });
}

void Candidacy::depose(std::uint64_t term, Time now) {
  now_ = now;
  if (term_ != 0 || term <= deposed_) return;
  deposed_ = term;
  send_to_all(Kind::depose, term);
}

// ---- the verdict

void Candidacy::record(std::string text, Time now) {
  now_ = now;
  to_record_ = std::move(text);
  for (Peer& peer : voters_) peer.has_verdict = false;
  send_to_all(Kind::record, term_, to_record_);
}

void Candidacy::heard_of_record(Peer& peer, const VoteAnswer& answer) {
  if (to_record_.empty() || verdict_) return;
  if (answer.ballot == Ballot::no) {
    refused_ = refused_ || (!answer.verdict.empty() && answer.verdict != to_record_);
    return;
  }
  peer.has_verdict = true;
  std::set<std::uint64_t> with;
  for (const Peer& one : voters_) {
    if (one.has_verdict) with.insert(one.id);
  }
  if (with.size() < majority()) return;
  verdict_ = std::exchange(to_record_, {});
  send_to_all(Kind::record, term_, *verdict_, true);
  if (!finishes_) return;
  finishes_ = false;
  send_to_all(Kind::release, std::exchange(term_, 0));
}

}  // namespace ddrun::rendezvous
