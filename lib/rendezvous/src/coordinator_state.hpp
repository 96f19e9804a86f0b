#pragma once

#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cause_details.hpp"
#include "ddrun/rendezvous/coordinator.hpp"
#include "heartbeat.hpp"
#include "job_memory.hpp"
#include "membership.hpp"

namespace ddrun::rendezvous {

/// All of a Coordinator. Its functions stand in files by what they are about.
class Coordinator::State {
 public:
  explicit State(CoordinatorOptions options);

  // joining.cpp
  void join(LinkId link, const Join& join, const LinkFacts& facts);

  // reports.cpp: what members say
  void receive(LinkId link, const FromAgent& message);
  // losing.cpp
  void lost(LinkId link, const std::string& how);

  // deadlines.cpp
  void tick();
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const;

  [[nodiscard]] bool done() const;
  [[nodiscard]] bool waits_for_latecomers() const { return latecomers_until_.has_value(); }
  [[nodiscard]] const Membership& members() const { return members_; }
  [[nodiscard]] const JobMemory& memory() const { return memory_; }
  [[nodiscard]] std::vector<Output> take_outputs();

  Clock::time_point now;  ///< set before each call

 private:
  enum class Phase {
    gathering,  ///< no round: waiting for members, for the last call, or for the pause before a restart to be over
    opening,    ///< node rank 0 was given OPEN
    running,    ///< all were given START
    stopping,   ///< STOP was sent, some have not sent STOPPED
    ended,      ///< the verdict is out
  };
  /// Why a round is stopped and what comes then.
  struct Ending {
    VerdictMessage cause;       ///< what the verdict would be if the job ended for it
    bool for_good = false;      ///< it does
    bool uses_restart = false;  ///< otherwise: a restart, or only a new meeting
    LinkId cause_link = 0;      ///< whose STOPPED has the details
    bool had_started = false;   ///< workers ran in the round
    Clock::time_point since;
  };
  /// A newcomer that cannot be there beside a member: one of both goes, once it is known whether the member lives.
  struct Claim {
    LinkId link = 0;
    Join join;
    LinkFacts facts;
    LinkId rival = 0;
    Clock::time_point asked;
    Clock::time_point deadline;
  };

  // outputs.cpp
  void send(LinkId link, FromCoordinator message);
  void close(LinkId link);
  void refuse(LinkId link, RefusalKind kind, const std::string& why);
  void event(std::string json);
  void flush_events();
  [[nodiscard]] std::optional<LinkId> observer() const;
  std::uint32_t ping(LinkId link);

  // joining.cpp
  [[nodiscard]] std::string objection(const Join& join);
  [[nodiscard]] const std::string& job_id(const Join& join) const;
  void admit(LinkId link, const Join& join, const LinkFacts& facts);
  void tell_waiting(Seat& seat, bool spare, const std::string& what_for);
  void answer_after_the_end(LinkId link);
  void count_answered(const Join& join);

  // claims.cpp
  void dispute(LinkId link, const Join& join, const LinkFacts& facts, Seat& rival);
  void settle_by_pong(Seat& rival, std::uint32_t number);
  void settle_by_time();
  void settle_by_loss(LinkId rival);
  bool drop_claim(LinkId link);

  // round.cpp
  void gather();
  void begin_round();
  void start_round(std::uint16_t port);
  [[nodiscard]] std::vector<Seat*> candidates();

  // reports.cpp
  void on(Seat& seat, const Opened& message);
  void on(Seat& seat, const Failed& message);
  void on(Seat& seat, const Succeeded& message);
  void on(Seat& seat, const Stopped& message);
  void on(Seat& seat, const Leave& message);
  void on(Seat& seat, const Abort& message);
  void check_finished();

  // losing.cpp
  void lose(Seat& seat, const std::string& how, Clock::time_point since, bool broken);
  void lost_while_stopping(VerdictMessage cause, Clock::time_point since, bool broken);
  void release(Seat& seat, const std::string& why);

  // stopping.cpp
  void meet_again(const std::string& why);
  void stop_after(VerdictMessage cause, const Seat& seat, bool may_restart);
  void stop_for_good(VerdictMessage cause, const Seat* seat, int signal);
  void begin_stop(Ending ending, int signal);
  void one_less_to_stop();
  void all_stopped();
  void leave_out(const std::string& host);

  // ending.cpp
  void end(VerdictMessage verdict);
  void tell_the_end(LinkId link, bool took_part);
  [[nodiscard]] VerdictMessage nobody_came() const;

  CoordinatorOptions options_;
  JobMemory memory_;
  Membership members_;
  Heartbeat heartbeat_;
  std::list<Claim> claims_;     ///< in order of deadline
  std::uint64_t answered_ = 0;  ///< agents that have joined, or were told why not
  std::uint64_t expected_ = 0;  ///< that were started together; 0: not known

  Phase phase_ = Phase::gathering;
  std::vector<LinkId> round_links_;  ///< in order of node rank; some may be gone
  std::string address_;              ///< of node rank 0
  std::size_t round_size_ = 0;
  std::size_t unfinished_ = 0;   ///< members of the round that have not finished
  std::size_t unsucceeded_ = 0;  ///< of which some have not succeeded
  std::size_t to_stop_ = 0;      ///< STOPPED that are waited for after STOP
  bool any_succeeded_ = false;
  std::optional<Ending> ending_;
  CauseDetails cause_details_;
  std::optional<VerdictMessage> last_cause_;  ///< of the round before, if the job went on

  // Deadlines; unset: not waited for.
  std::optional<Clock::time_point> join_until_;
  std::optional<Clock::time_point> last_call_;
  bool last_call_over_ = false;
  std::optional<Clock::time_point> pause_until_;
  std::optional<Clock::time_point> opened_until_;
  std::optional<Clock::time_point> stopped_until_;
  std::optional<Clock::time_point> skew_until_;
  std::optional<Clock::time_point> verdict_until_;
  std::optional<Clock::time_point> latecomers_until_;
  Clock::time_point gathering_since_;

  std::uint32_t pings_ = 0;
  std::vector<Output> outputs_;
  std::deque<std::string> early_events_;  ///< of which nobody could be told yet
};

}  // namespace ddrun::rendezvous
