#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/deadlines.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/rendezvous/coordinator_options.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "heartbeat.hpp"
#include "job_state.hpp"
#include "membership.hpp"

namespace ddrun::rendezvous {

/// A message to send; without one: close the link after everything queued before.
struct Output {
  LinkId link = 0;
  std::optional<FromCoordinator> message;
};

/// Output queue of a coordinator. Logs go to one agent only, the observer, which shows them to the user.
class Outgoing {
 public:
  /// `observer`: its current link, if there is one.
  explicit Outgoing(std::function<std::optional<LinkId>()> observer) : observer_(std::move(observer)) {}

  void send(LinkId link, FromCoordinator message);
  void close(LinkId link);
  void refuse(LinkId link, RefusalKind kind, const std::string& why);
  /// `heard`: number of its last PONG. Returns the number of this ping.
  std::uint32_t ping(LinkId link, std::uint32_t heard);
  void on_pong(LinkId link, std::uint32_t number);

  /// Queued until there is an observer; only the last `max_early` are kept.
  void event(std::string json, std::size_t max_early);
  void notice(const std::string& text);
  /// `report` is sent without its text if the observer has too many unread bytes, so that it is not disconnected for
  /// being slow.
  void report(Log report);

  [[nodiscard]] std::vector<Output> take();
  [[nodiscard]] std::optional<LinkId> observer() const { return observer_(); }

 private:
  /// Bytes of reports sent to the observer. Those sent before a ping are read when its PONG arrives.
  struct Reported {
    LinkId to = 0;
    std::uint64_t sent = 0;
    std::uint64_t read = 0;
    std::uint32_t ping = 0;  ///< 0: none pending
    std::uint64_t sent_before_ping = 0;
  };

  std::function<std::optional<LinkId>()> observer_;
  std::vector<Output> outputs_;
  std::deque<std::string> early_events_;
  std::uint32_t pings_ = 0;
  Reported reported_;
};

/// What a coordinator knows of others of its job, before and after it: whether it may decide at present, and what
/// members claim of an earlier one's last round (PROTOCOL.md, section 10). Without a lease nothing here ever changes.
///
/// The idea: nothing of a coordinator is replicated. Each START carries the job's state to all members, and a member
/// brings its last one to the next coordinator as its claim. The highest term and round among the claims is where the
/// job was, and a coordinator that has all of that round's claims knows that its workers have ended, since an agent
/// joins only then. The lease decides who may act: a coordinator that has lost it lets the round run, but begins none
/// and gives no verdict, so two coordinators never start workers of one job.
class Succession {
 public:
  // The lease.
  /// Another coordinator may lead from now on. False if that was known.
  bool suspend(Clock::time_point now);
  /// The lease is held again. False if it always was.
  bool resume();
  /// Since when no round may begin, and no verdict be sent; empty: both may.
  [[nodiscard]] const std::optional<Clock::time_point>& suspended_since() const { return suspended_since_; }
  [[nodiscard]] bool is_suspended() const { return suspended_since_.has_value(); }
  /// The next coordinator does not wait for members it does not know of, so their workers must end with the lease: once
  /// members of a round are lost without a lease, the rest get no grace.
  [[nodiscard]] bool must_kill() const { return is_suspended() && has_lost_members_; }

  // Rounds of this coordinator.
  void note_started();
  void note_lost(const Member& gone);
  /// A restart was decided that no START has carried yet.
  void owe_restart() { owes_restart_ = true; }
  [[nodiscard]] bool owes_restart() const { return owes_restart_ || must_kill(); }
  /// A member of the last round was lost. It may have continued under another coordinator.
  [[nodiscard]] bool has_lost_members() const { return has_lost_members_; }

  // Takeover: claims of members about an earlier coordinator's last round.
  /// Whether this claim is a reason to wait for others of the same round.
  [[nodiscard]] bool is_news(const RoundClaim& claim) const;
  /// Workers of that round run until `stopped_by` at most. `without_leader`: the former coordinator's machine runs
  /// none, so its claim is not awaited.
  void expect_claims(Clock::time_point now, Clock::time_point stopped_by, bool without_leader);
  /// A member that claims any round but the last one counts as a newcomer.
  void add_claim(Member& member, const RoundClaim& claim, Membership& members);
  [[nodiscard]] bool expects_claims() const { return claims_.has_value(); }
  /// Until when the claims are awaited; empty: no longer. `all_places_taken`: as many members as the job may have are
  /// there.
  [[nodiscard]] std::optional<Clock::time_point> wait_until(Clock::time_point now, bool all_places_taken) const;
  // A new job without a lease, whose coordinator's machine has just lost its power and another job with it.
  /// A machine of that job joins, whose own workers have ended. Those of the others may run until `stopped_by`.
  void note_orphan(const RoundClaim& claim, Clock::time_point stopped_by);
  /// Until when the rest of them, but the old coordinator's machine, is awaited; empty: no longer.
  [[nodiscard]] std::optional<Clock::time_point> awaits_orphans_until(Clock::time_point now) const;

  struct LastRound {
    RoundClaim claim;  ///< of the highest term and round; term 0: no round was claimed
    std::vector<LinkId> members;
    bool succeeded = false;  ///< all members of it claim success
  };
  /// Ends the wait; empty if no claim was expected.
  [[nodiscard]] std::optional<LastRound> take_claims();
  void forget_claims() { claims_.reset(); }
  /// The job is defined anew.
  void forget_former() { former_ = Former::unknown; }
  /// The highest round of any claim.
  [[nodiscard]] Round claimed() const { return claimed_; }

 private:
  /// Whether the job has had another coordinator.
  enum class Former { unknown, none, known };
  struct Claims {
    struct Of {
      int node_rank = -1;
      bool succeeded = false;
    };
    [[nodiscard]] Clock::time_point deadline() const { return former == Former::none ? first_by : by; }
    [[nodiscard]] bool all_there() const { return last.term != 0 && of.size() >= size(); }
    [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(last.node_count); }
    [[nodiscard]] bool complete() const;

    Clock::time_point first_by, by;
    bool without_leader;
    Former former = Former::none;  ///< no member knows of any
    RoundClaim last{};             ///< as in LastRound
    int leader_rank = -1;          ///< node rank of the coordinator's own machine in it; -1: none
    std::map<LinkId, Of> of{};     ///< of those that claim it
  };

  std::optional<Clock::time_point> suspended_since_;
  bool has_lost_members_ = false;  ///< since the last START
  bool owes_restart_ = false;
  struct Orphans {
    Round round = 0;
    std::size_t nodes = 0;
    std::set<int> node_ranks{};  ///< that have come
    Clock::time_point by{};
  };
  std::optional<Claims> claims_;
  Orphans orphans_;
  Former former_ = Former::unknown;
  Round claimed_ = 0;
};

enum class CoordinatorState {
  gathering,  ///< no round: waiting for members, the last call, or the pause before a restart
  opening,    ///< OPEN was sent to node rank 0
  running,    ///< START was sent to all
  stopping,   ///< STOP was sent, STOPPED is missing from some
  recording,  ///< the verdict is being recorded before it is sent
  ended,      ///< the verdict was sent, or another coordinator took over
};

[[nodiscard]] constexpr std::string_view name(CoordinatorState state) {
  constexpr std::string_view names[] = {"gathering", "opening", "running", "stopping", "recording", "ended"};
  return names[static_cast<int>(state)];
}

/// Deadlines of a coordinator, each handled completely before the next. Those that expire at one instant are handled in
/// this order: losses and the end of a round before what begins one, and the end for lack of nodes after all.
enum class Due { opened, stopped, skew, survey, lease, claims, pause, fence, admission, last_call, join, verdict };

struct CoordinatorOrder {
  using enum CoordinatorState;
  enum class Step { open, start, stop, gather, record, publish, step_down };
  static constexpr LegalStep<CoordinatorState> steps[] = {
      {"OPEN", any_of(gathering), opening},
      {"START", any_of(opening), running},
      {"STOP", any_of(opening, running), stopping},
      {"the end of a round", any_of(stopping), gathering},
      {"the end of the job", any_of(gathering, running, stopping), recording},
      {"VERDICT", any_of(gathering, running, stopping, recording), ended},
      {"stepping down", any_of(gathering, opening, running, stopping, recording), ended},
  };
  static constexpr LegalStep<CoordinatorState> deadlines[] = {
      {"the deadline of OPENED", any_of(opening)},
      {"the deadline of STOPPED of all", any_of(running, stopping)},
      {"the end of --exit-skew", any_of(running)},
      {"the deadline of answers from all machines", any_of(gathering, opening, running, stopping)},
      {"the deadline of the lease, or of the verdict's record", any_of(gathering, recording)},
      {"the deadline of members of a former coordinator's round", any_of(gathering)},
      {"the end of the pause before a restart", any_of(gathering)},
      {"the end of workers that may still run on a lost machine", any_of(gathering, stopping)},
      {"the admission of members that wait beside the round", any_of(opening, running)},
      {"the end of the last call", any_of(gathering)},
      {"the deadline of enough nodes", any_of(gathering)},
      {"the deadline of the end of all connections", any_of(ended)},
  };
};

/// A job as its coordinator knows it: what Coordinator, Gathering and RoundMachine share. All of it is read by each;
/// the members are changed by Coordinator, a deadline by the class that handles it.
struct Job : JobState {
  Job(CoordinatorOptions given, std::function<std::optional<LinkId>()> observer)
      : options(std::move(given)),
        state(options.on_step),
        heartbeat(options.heartbeat_interval, options.heartbeat_misses),
        out(std::move(observer)) {}

  CoordinatorOptions options;
  LegalState<CoordinatorState, CoordinatorOrder> state;
  Membership members;
  Heartbeat heartbeat;
  Outgoing out;
  Deadlines<Due, Clock::time_point> deadlines;
  Succession succession;
  Clock::time_point now;       ///< of the event that is being handled
  Clock::time_point ended_at;  ///< the verdict was known
  Clock::time_point first_join{};

  /// The verdict is known.
  [[nodiscard]] bool is_over() const {
    return state == CoordinatorState::recording || state == CoordinatorState::ended;
  }
  [[nodiscard]] bool can_restart() const { return budget.any_left(now); }

  /// Until when the next round, or the verdict, may wait for the lease.
  void arm_lease_deadline() {
    const auto& suspended = succession.suspended_since();
    const bool waits = state == CoordinatorState::recording || (suspended && state == CoordinatorState::gathering);
    if (waits) deadlines.arm(Due::lease, suspended.value_or(ended_at) + options.suspend_timeout);
    else deadlines.clear(Due::lease);
  }
  /// After the last sign of life of members of another coordinator, until their workers have ended.
  [[nodiscard]] Clock::duration lost_workers_timeout() const {
    return settings.fence ? Clock::duration(*settings.fence)
                          : heartbeat.limit() + settings.grace + shutdown::kill_margin;
  }
  /// The same for a member of this one: its agent has lost sight of it no later than the limit and an interval after;
  /// two for one that has not sent PONG.
  [[nodiscard]] Clock::duration fence_time(const Member& member) const {
    if (settings.fence) return *settings.fence;
    return heartbeat.limit() + heartbeat.interval() * (member.pong == 0 ? 2 : 1) +
           shutdown::grace_out_of_sight(settings.grace, false) + shutdown::kill_margin;
  }
  /// From STOP, or from the last SUCCEEDED, until a member without STOPPED counts as lost: the grace time, and time for
  /// slow output.
  [[nodiscard]] Milliseconds stop_timeout() const { return settings.grace + shutdown::stop_margin; }
  void send_waiting(Member& member, bool spare, const std::string& waiting_for) {
    member.notified_spare = spare;
    out.send(member.link,
             Waiting{static_cast<std::uint32_t>(members.available()), static_cast<std::uint32_t>(settings.min_nodes),
                     static_cast<std::uint32_t>(settings.max_nodes), spare, waiting_for});
  }
  /// Queues the event line that `make`, of event_text, returns for these arguments.
  template <class Make, class... Args>
  void event(Make make, const Args&... args) {
    if (options.with_events) out.event(make(args...), members.size() + 100);
  }
};

/// Between rounds: what the next one waits for. Whether it then begins, and with which members, is decided by
/// Coordinator.
///
/// The idea of the fence: workers of two rounds never run side by side, and a silent machine cannot be asked. But its
/// agent knows the same limits: it loses sight of the coordinator within the heartbeat timeout of what was last
/// confirmed, stops its workers, and kills them within the grace time that counts out of sight. So the coordinator
/// need only wait until that instant, by its own clock, from the machine's last sign of life; no hardware is switched
/// off and no vote is taken.
class Gathering {
 public:
  explicit Gathering(Job& job) : job_(job) {}

  /// The job is defined anew.
  void reset();
  // Called in this order whenever members, or what the round waits for, have changed; they arm its deadlines.
  /// True while members of an earlier coordinator's last round may still join.
  [[nodiscard]] bool awaits_claims();
  /// That round is over: the job continues from there. The verdict, if the job is over as well.
  [[nodiscard]] std::optional<VerdictMessage> recover(const Succession::LastRound& round);
  /// True if a round can begin.
  [[nodiscard]] bool is_complete();

  void note_last_call_over() { last_call_over_ = true; }
  /// A round is over, or did not begin, for this reason. `had_started`: the join timeout begins anew.
  void note_ended(VerdictMessage cause, bool had_started);
  /// The next round is a restart, after the configured pause.
  void spend_restart(const std::string& why);
  /// Workers of a lost member may still run. If its agent ended, the kernel closed the connection and the guard killed
  /// the workers. A silent one gives up the coordinator within the heartbeat timeout and stops its workers within their
  /// grace; of one that is blocked, its link kills them.
  void fence(const Member& gone, Clock::time_point since);

  /// What waiting members wait for.
  [[nodiscard]] std::string wait_reason() const;
  [[nodiscard]] bool is_held_up() const {
    return job_.deadlines.is_armed(Due::fence) || job_.succession.is_suspended();
  }
  /// `turned_away`: as of TurnedAway.
  [[nodiscard]] VerdictMessage too_few_verdict(const std::string& turned_away) const;

 private:
  Job& job_;
  /// Its time goes on beside a round that is not started.
  std::optional<Clock::time_point> join_until_;
  bool last_call_over_ = false;
  std::string fenced_;                        ///< the lost member whose workers the fence waits for
  std::optional<VerdictMessage> last_cause_;  ///< of the last round, if the job continued
};

}  // namespace ddrun::rendezvous
