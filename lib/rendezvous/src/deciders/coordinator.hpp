#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/coordinator_options.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "job.hpp"
#include "round_machine.hpp"
#include "survey.hpp"

namespace ddrun::rendezvous {

/// Machines that were refused, with the reasons, for the user. Bounded, whatever clients send.
class TurnedAway {
 public:
  /// False if this machine was refused for this reason before, or if the list is full.
  bool add(const std::string& machine, std::string why) {
    why.resize(std::min(why.size(), max_why_bytes));
    for (Entry& entry : entries_) {
      if (entry.machine != machine || entry.why != why) continue;
      entry.admitted = false;
      return false;
    }
    is_full_ = is_full_ || entries_.size() == max_entries;
    if (!is_full_) entries_.push_back({machine, why, false});
    return !is_full_;
  }
  /// The same, with a warning if it is new.
  void warn(const std::string& machine, const std::string& why) {
    if (add(machine, why)) warnings_.push_back(concat(machine, " was turned away: ", entries_.back().why));
  }
  /// Empties the list.
  [[nodiscard]] std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }
  /// It was admitted later.
  void set_admitted(const std::string& machine) {
    for (Entry& entry : entries_) entry.admitted = entry.admitted || entry.machine == machine;
  }
  /// "; turned away: a (10.0.0.1): ...; b (10.0.0.2): ..."; empty: none that was not admitted later. `all`: of others.
  [[nodiscard]] std::string text(std::string all = {}) const {
    for (const Entry& entry : entries_) {
      if (!entry.admitted) all += concat("; ", all.empty() ? "turned away: " : "", entry.machine, ": ", entry.why);
    }
    return is_full_ ? concat(all, all.empty() ? "; turned away: others" : "; others") : all;
  }

 private:
  struct Entry {
    std::string machine, why;
    bool admitted = false;
  };
  static constexpr std::size_t max_entries = 10;
  static constexpr std::size_t max_why_bytes = 400;
  std::vector<Entry> entries_;
  std::vector<std::string> warnings_;
  bool is_full_ = false;  ///< and more came
};

/// Decides for one job which members form which round, with which ranks, when a round is over and how the job ends
/// (lib/rendezvous/PROTOCOL.md, section 5). A pure state machine: its owner passes in events and the time, carries out
/// take_outputs(), and calls `tick` at `next_deadline`. No clock, sockets or threads; never blocks and never fails;
/// memory is proportional to the number of members. Not thread-safe.
class Coordinator {
 public:
  using Output = rendezvous::Output;

  explicit Coordinator(CoordinatorOptions options);
  Coordinator(const Coordinator&) = delete;  // its parts refer to it
  Coordinator& operator=(const Coordinator&) = delete;

  /// The first message of a link.
  void join(LinkId link, const Join& join, const LinkAddresses& addresses, Clock::time_point now);
  /// An agent at this address was refused before it could send Join: `why` is for the end of a job without enough
  /// machines. What it says of itself is not known.
  void note_refused_peer(const std::string& address, const std::string& why) { (void)unproven_.add(address, why); }
  /// Any later message. One that does not fit the state is ignored; a second Join closes the link.
  void receive(LinkId link, const FromAgent& message, Clock::time_point now);
  /// Part of a message arrived: counts as a sign of life.
  void note_activity(LinkId link, Clock::time_point now);
  /// The connection was reset; it may resume under the same number within the heartbeat timeout. `how` is for messages
  /// ("connection reset by peer").
  void connection_broken(LinkId link, const std::string& how);
  /// The agent closed the connection, or its process ended.
  void lost(LinkId link, const std::string& how, Clock::time_point now);
  /// Runs what is due.
  void tick(Clock::time_point now);

  // With a lease:
  /// The lease expired, and another coordinator may get it: from now on no round begins and no verdict is sent. The
  /// running round continues unless members are lost.
  void suspend(Clock::time_point now);
  /// The lease is held again, with a new term.
  void lead(Term term, Clock::time_point now);
  /// Another coordinator leads, or will. All members are sent to it.
  void step_down(const std::string& why, Clock::time_point now);
  /// The verdict of a job that has just ended: record it, then call recorded(). Empty while suspended; returned once
  /// more after lead() if it was not recorded.
  [[nodiscard]] std::optional<VerdictMessage> take_verdict_to_record();
  void recorded(Clock::time_point now);
  /// After step_down(), or by itself when the agent in its process leaves.
  [[nodiscard]] bool stepped_down() const { return stepped_down_.has_value(); }

  /// Pending actions in order; empties the list. Call after each of the functions above.
  [[nodiscard]] std::vector<Output> take_outputs();
  /// Texts for the user of this process, such as refused machines; empties the list. Limit their rate.
  [[nodiscard]] std::vector<std::string> take_warnings() { return turned_away_.take_warnings(); }
  /// When to call `tick`; empty if nothing is pending.
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const;
  /// The job has ended, and every agent was notified or timed out.
  [[nodiscard]] bool done() const { return job_.state == CoordinatorState::ended && job_.members.empty(); }

  [[nodiscard]] const Job& job() const { return job_; }

 private:
  void admit(LinkId link, const Join& join, const LinkAddresses& addresses);
  void gather();
  void begin_round();
  void on(Member& member, const Leave& message);
  void leave_on_signal(Member& member, Leave message);
  void give_up(Member& member, const Leave& message);
  void on(Due due);
  void check_heartbeats();
  void lose_member(Member& member, const std::string& how, Clock::time_point since, bool broken);
  void release(Member& member, const std::string& why);
  void remove(const Member& member);
  void after_round();
  void count_failure(const std::string& machine, const std::string& host);
  void stop_permanently(VerdictMessage cause, const Member* member, int signal);
  void end(VerdictMessage verdict);
  void publish_verdict();
  void send_outcome(LinkId link, bool took_part);
  void dismiss_members(RefusalKind kind, const std::string& why);
  void end_by_defect(const std::string& what);

  Job job_;
  Gathering gathering_{job_};
  Survey survey_{job_};
  RoundMachine round_{job_, survey_};
  FailureHistory failures_;
  TurnedAway turned_away_;
  TurnedAway unproven_;     ///< by address; apart, as strangers may fill it
  bool to_record_ = false;  ///< the transport has not taken the verdict yet
  CauseDetails details_;    ///< of the last round
  std::optional<LinkId> observer_of_the_end_;
  std::optional<std::string> stepped_down_;  ///< why; the reply to agents that join later
};

}  // namespace ddrun::rendezvous
