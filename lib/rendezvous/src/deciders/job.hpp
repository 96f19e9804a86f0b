#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
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
#include "succession.hpp"

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
  /// `heard`: number of its last PONG.
  void ping(LinkId link, std::uint32_t heard);
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
enum class Due { opened, stopped, skew, lease, claims, pause, fence, admission, last_call, join, verdict };

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

}  // namespace ddrun::rendezvous
