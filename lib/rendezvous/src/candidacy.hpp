#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/lease/fence.hpp"
#include "ddrun/lease/lease.hpp"
#include "vote_messages.hpp"

namespace ddrun::rendezvous {

/// One agent's part in the vote on who leads a job: knows who leads from what voters say, and wins and keeps the votes
/// of more than half of them, if it is a candidate. Only an agent that has a voter of its own may be one: then it is
/// certain, where all voters have begun lately, that no leader is left of before. PROTOCOL.md, section 11.
///
/// No sockets, no clock, no thread: after each call its owner sends take_requests() and looks at what has changed.
class Candidacy {
 public:
  using Time = lease::FenceClock::time_point;

  struct Options {
    std::size_t voters = 3;
    std::string id;  ///< this agent's, no other's
    std::string job;
    Milliseconds ttl{5000};
    unsigned seed = 1;
  };
  explicit Candidacy(Options options);

  /// The voter in this process. Without one an agent never leads.
  void has_own(std::size_t voter) { own_ = voter; }

  // Of the connection to a voter; `voter` counts from 0.
  void connected(std::size_t voter, Time now);
  void disconnected(std::size_t voter, Time now);
  void heard(std::size_t voter, const VoteAnswer& answer, Time now);
  void tick(Time now);
  [[nodiscard]] std::optional<Time> next_deadline() const;

  // As in lease::Lease.
  void campaign(std::string address, Time now);
  void resign(Time now);
  void depose(std::uint64_t term, Time now);
  /// While it leads.
  void record(std::string text, Time now);

  struct Asked {
    std::size_t voter = 0;
    VoteRequest request;
  };
  [[nodiscard]] std::vector<Asked> take_requests();

  /// In which this agent leads; 0: it does not.
  [[nodiscard]] std::uint64_t term() const { return finishes_ ? 0 : term_; }
  /// While it leads: when requests were sent that more than half have said yes to.
  [[nodiscard]] Time held_since() const { return held_since_; }
  [[nodiscard]] const std::string& why_lost() const { return why_lost_; }
  /// Another that leads; its address may be empty.
  [[nodiscard]] std::optional<lease::Leader> leader() const;
  /// Recorded by more than half.
  [[nodiscard]] const std::optional<std::string>& verdict() const { return verdict_; }
  /// The verdict that record() was given cannot be recorded, as the job has another.
  [[nodiscard]] bool refused() const { return refused_; }
  /// What was to be released is known to be, by all that can be asked.
  [[nodiscard]] bool released() const;
  /// Why the votes of this one do not count; empty: they do.
  [[nodiscard]] const std::string& objection(std::size_t voter) const { return voters_[voter].objection; }
  /// So many can be asked at the moment.
  [[nodiscard]] std::size_t voters_there() const;
  [[nodiscard]] std::size_t majority() const { return voters_.size() / 2 + 1; }

 private:
  using Kind = VoteRequest::Kind;
  struct Sent {
    Kind kind;
    std::uint64_t term;
    Time at;
  };
  struct Peer {
    bool there = false;
    VoteAnswer state;                    ///< as it is there
    std::uint64_t id = 0;                ///< of the voter that was there last
    std::map<std::uint64_t, Sent> sent;  ///< not answered yet, by number
    std::optional<VoteAnswer::Ballot> said;
    Time held{};  ///< when the last request was sent that it said yes to in this term
    bool denies = false;
    bool has_verdict = false;
    std::string objection;
  };

  [[nodiscard]] Time over_at() const { return held_since_ + (options_.ttl - lease::fence_margin(options_.ttl)); }
  [[nodiscard]] bool is_over() const { return now_ >= over_at(); }
  void send(std::size_t voter, Kind kind, std::uint64_t term, std::string text = {}, bool sure = false);
  void send_to_all(Kind kind, std::uint64_t term, const std::string& text = {}, bool sure = false);
  void consider();
  void ask();
  void count();
  void fail();
  void win();
  void hold();
  void count_held();
  void lose(std::string why);
  void heard_of_vote(Peer& peer, const Sent& sent, const VoteAnswer& answer);
  void heard_of_hold(Peer& peer, const Sent& sent, const VoteAnswer& answer);
  void heard_of_record(Peer& peer, const VoteAnswer& answer);
  [[nodiscard]] std::uint64_t next_term() const;
  [[nodiscard]] Clock::duration place_in_line() const;
  [[nodiscard]] Clock::duration part_of(Milliseconds time);

  Options options_;
  std::minstd_rand random_;
  std::optional<std::size_t> own_;
  std::vector<Peer> voters_;
  std::vector<Asked> out_;
  Time now_{};
  std::uint64_t last_number_ = 0;
  bool candidate_ = false;
  std::string address_;
  std::uint64_t asking_ = 0;  ///< for votes in this term
  Time ask_until_{};
  Time try_at_{};
  Milliseconds spread_;  ///< of the next pause
  Time greet_at_{};      ///< a sign of life is due
  std::uint64_t term_ = 0;
  Time held_since_{};
  Time hold_at_{};
  std::string why_lost_;
  std::uint64_t voted_ = 0;  ///< the highest that any voter has voted for
  std::uint64_t seen_ = 0;   ///< the highest that anybody is known to have led in
  std::uint64_t deposed_ = 0;
  std::optional<std::string> verdict_;
  std::string to_record_;  ///< is being recorded
  std::string found_;      ///< a voter's, which may not be recorded by more than half
  bool finishes_ = false;  ///< leads for no other reason than to record what was found
  bool refused_ = false;
};

}  // namespace ddrun::rendezvous
