#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/ip_address.hpp"
#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "handshake.hpp"

namespace ddrun::rendezvous {

struct DialerOptions {
  /// Candidate addresses of the coordinator, tried in turn until one works. Names are resolved for each attempt.
  std::vector<Endpoint> coordinators;
  /// As in RendezvousOptions; named in the error about a mismatching secret.
  std::string secret_file;
  /// Sent first.
  Join join;
  /// Deadline for the coordinator's reply to JOIN.
  Deadline connect_by = Deadline::max();
  /// How long JOIN is retried after RefusalKind::taken.
  Milliseconds conflict_timeout{6'000};
  /// The coordinator runs in this process: its silence does not count as a loss.
  bool is_local = false;
  /// It was connected a moment ago: if connections are refused, it has ended and is not just late.
  bool was_reachable = false;
  /// Local IP address to bind to; empty: chosen by the system.
  std::string local_address;
  StepHook on_step;
};

/// Of workers whose round ends with this agent's membership.
enum class Grace {
  whole,       ///< their coordinator has ended, or handed over
  lost_sight,  ///< it may begin the next round soon, without this agent
  none,
};

/// That of workers which this message ends, whether or not the main thread of their agent is blocked.
[[nodiscard]] std::optional<Grace> ordered_stop(const FromCoordinator& message);

/// Why a link ended.
struct LinkLoss {
  Error error;               ///< for the user: names the coordinator and what to do
  bool unreachable = false;  ///< an established connection was lost; the coordinator may still run
  /// The coordinator's process closed it, or has ended. Otherwise it may begin the next round while this agent's
  /// workers are being stopped.
  bool has_ended = false;

  [[nodiscard]] Grace grace() const { return has_ended ? Grace::whole : Grace::lost_sight; }
};

/// What Dialer wants next. LookUp, Connect and Pause come without a connection: one that is left is to be closed.
namespace dial {
struct LookUp {
  std::string host;
  Clock::duration timeout;
};
struct Connect {
  Endpoint to;       ///< an address
  std::string from;  ///< as DialerOptions::local_address
};
struct Pause {};
struct Greet {};  ///< begin the handshake
struct Open {};   ///< this agent is in the session
struct Watch {};  ///< the connection goes on
}  // namespace dial

struct DialStep {
  /// FromAgent is what to say first, JOIN or RESUME (without its count). LinkLoss is the last step.
  std::variant<dial::LookUp, dial::Connect, dial::Pause, dial::Greet, FromAgent, dial::Open, dial::Watch, LinkLoss>
      next;
  Deadline due = Deadline::max();         ///< for timed_out(), unless another step comes before
  std::vector<std::string> retries = {};  ///< why attempts failed after which another one follows
  bool not_listening = false;             ///< all candidates have refused connections for half a second
};

enum class DialerState {
  searching,  ///< for an address, or waiting for the next attempt
  connecting,
  greeting,  ///< no hello has come
  proving,
  joining,  ///< JOIN or RESUME was sent
  joined,
};

[[nodiscard]] constexpr std::string_view name(DialerState state) {
  constexpr std::string_view names[] = {"searching", "connecting", "greeting", "proving", "joining", "joined"};
  return names[static_cast<int>(state)];
}

struct DialerOrder {
  using enum DialerState;
  enum class Step { connect, pause, greet, prove, ask, open, resume };
  static constexpr std::uint32_t any = any_of(searching, connecting, greeting, proving, joining);
  static constexpr LegalStep<DialerState> steps[] = {
      {"a connection", any, connecting},
      {"a pause", any, searching},
      {"a greeting", any_of(connecting), greeting},
      {"a proof", any_of(greeting, proving), proving},
      {"JOIN or RESUME", any_of(greeting, proving), joining},
      {"its answer", any_of(joining), joined},
      {"a connection to resume", any_of(joined), connecting},
  };
};

/// Decides which address of the coordinator an agent tries next, when, what it says there, whether a broken or silent
/// connection is lost, and what the user reads. Each function is an event and returns the next step. Pure: no socket,
/// resolver or clock.
///
/// The idea: a failed connection has one of three meanings, and each ends in another way. Before the first WELCOME the
/// coordinator is not there yet: every address is tried again until the join deadline. Afterwards the connection broke
/// but the coordinator runs: RESUME continues it for the heartbeat timeout, and no message is lost. Or the coordinator
/// has ended: it closed in order, or its machine refuses for longer than a device on the path would; then there is
/// nothing to wait for. Silence is judged by what the coordinator has confirmed to have heard, not by what arrives
/// here: its fence for this agent's workers counts from there, so both ends reach the same instant.
class Dialer {
 public:
  explicit Dialer(const DialerOptions& options);

  DialStep begin(Clock::time_point now);
  DialStep timed_out(Clock::time_point now);
  DialStep resolved(const Result<std::vector<std::string>>& addresses, Clock::time_point now);
  DialStep connected(Clock::time_point now);
  DialStep refused(Clock::time_point now);
  DialStep unreachable(const std::string& how, Clock::time_point now);
  /// One address failed; the next one follows. With `permanent_error` a retry is pointless.
  DialStep failed(const std::string& why, Clock::time_point now, std::optional<Errc> permanent_error = std::nullopt);
  /// Each time bytes of the handshake were fed. Empty: more are needed.
  std::optional<DialStep> shook_hands(HandshakeState state, std::uint16_t peer_version, Clock::time_point now);
  /// Any bytes.
  void heard(Clock::time_point now) { last_heard_ = now; }
  /// Is answered with PONG. Empty: it changes nothing here.
  std::optional<DialStep> pinged(const Ping& ping, Clock::time_point now);
  /// STOPPED is sent.
  void workers_ended() { has_workers_ = false; }
  /// Any message but PING. Empty: it changes nothing here.
  std::optional<DialStep> received(const FromCoordinator& message, Clock::time_point now);
  /// The peer violated the protocol.
  [[nodiscard]] DialStep unusable(const std::string& why) const;
  /// The connection is gone; `in_order`: closed by the process, or by the kernel at its end.
  DialStep hung_up(const std::string& how, bool in_order, Clock::time_point now);

  [[nodiscard]] DialerState state() const { return state_; }
  [[nodiscard]] bool is_joined() const { return state_ == DialerState::joined; }
  /// Joined, or resuming a broken connection.
  [[nodiscard]] bool is_member() const { return is_joined() || break_reason_; }
  /// When this agent, which has workers, loses sight of the coordinator at the latest, unless a later PONG is
  /// confirmed. Their grace time counts from then, also if the agent stood still meanwhile: the next round waits no
  /// longer. Empty without workers or heartbeats, and if the coordinator runs here.
  [[nodiscard]] std::optional<Clock::time_point> loses_sight_at() const;
  [[nodiscard]] bool has_workers() const { return has_workers_; }
  [[nodiscard]] Milliseconds heartbeat() const { return heartbeat_; }

 private:
  using Step = DialerOrder::Step;
  /// A possible address of the coordinator, and the result of the last attempt.
  struct Candidate {
    Endpoint endpoint;
    std::string last_error;
    std::optional<Errc> permanent_error;  ///< retrying is pointless
    bool was_reached;                     ///< at the last attempt
  };

  /// The loss of the link if the order lacks the step.
  std::optional<DialStep> enter(Step step);
  DialStep enter(Step step, DialStep next) { return enter(step).value_or(std::move(next)); }
  [[nodiscard]] bool may_come(const FromCoordinator& message) const;
  DialStep next_target(Clock::time_point now);
  DialStep connect(Step why, Clock::time_point now);
  DialStep pause(Milliseconds longest, Clock::time_point now);
  DialStep watch_silence(Clock::time_point now);
  [[nodiscard]] Clock::time_point silent_since() const;
  [[nodiscard]] Clock::time_point unheard_since() const;
  [[nodiscard]] Clock::duration silence_limit() const;
  [[nodiscard]] DialStep give_up() const;
  std::optional<DialStep> try_elsewhere(const Refused& refused, Clock::time_point now);
  [[nodiscard]] bool is_not_listening(Clock::time_point now) const;
  [[nodiscard]] std::ptrdiff_t usable_candidates() const;
  [[nodiscard]] IpAddress address() const { return IpAddress::parse(target_.host).value_or(IpAddress()); }
  [[nodiscard]] std::string target_text() const;
  [[nodiscard]] Deadline after(Clock::duration timeout, Clock::time_point now) const {
    return std::min(now + timeout, by_);
  }
  [[nodiscard]] Candidate& candidate() { return candidates_[begun_ - 1]; }

  DialerOptions options_;
  std::vector<Candidate> candidates_;
  std::size_t begun_ = 0;          ///< candidates in this pass, the present one included
  std::vector<Endpoint> targets_;  ///< untried addresses of the candidate, next one last
  Endpoint target_;
  Milliseconds pause_;
  Deadline by_;  ///< for the reply to JOIN or RESUME
  LegalState<DialerState, DialerOrder> state_;
  std::optional<Clock::time_point> refused_since_;  ///< connection refused
  std::optional<Clock::time_point> taken_since_;    ///< node rank or id in use
  std::optional<std::string> break_reason_;         ///< of the connection to be resumed

  // Of WELCOME.
  std::string coordinator_host_;
  std::string session_;
  Milliseconds heartbeat_{0};  ///< 0: unknown
  Clock::duration heartbeat_timeout_{};
  Clock::time_point last_heard_{};
  bool has_workers_ = false;          ///< between START and STOPPED
  Clock::time_point greeted_at_{};    ///< JOIN or RESUME was sent
  Clock::time_point confirmed_at_{};  ///< the last message known to have come was sent
  bool is_new_ = false;               ///< that was JOIN
  Clock::time_point resumed_at_{};    ///< this process was suspended: silence counts from here
  std::deque<std::pair<std::uint32_t, Clock::time_point>> unconfirmed_;  ///< PONGs, and when they were sent
  Deadline silent_at_{};                                                 ///< as the timer has it
};

}  // namespace ddrun::rendezvous
