#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ddrun/base/deadlines.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/lease/candidate.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "dialer.hpp"

namespace ddrun::rendezvous {

enum class MemberState {
  idle,       ///< does not join yet
  searching,  ///< for a coordinator, by the lease: none is known
  joining,    ///< a coordinator is dialled that has not accepted this node yet
  waiting,    ///< a member without workers
  in_round,   ///< a member with workers: from START to STOPPED
  rejoining,  ///< no member any more: joins again once its workers are stopped
  over,       ///< verdict, refusal or loss: nothing more is sent or heard
  closing,    ///< what is queued is being delivered
  awaiting,   ///< the agents of the coordinator here do not have the verdict yet
  resigning,  ///< the lease is being given back
  closed,
};

[[nodiscard]] constexpr std::string_view name(MemberState state) {
  constexpr std::string_view names[] = {"idle", "searching", "joining",  "waiting",   "in_round", "rejoining",
                                        "over", "closing",   "awaiting", "resigning", "closed"};
  return names[static_cast<int>(state)];
}

struct MemberOrder {
  using enum MemberState;
  enum class Step { search, join, admit, start, stop, rejoin, end, abandon, close, drain, resign, finish };
  static constexpr std::uint32_t any = any_of(searching, joining, waiting, in_round, rejoining);
  static constexpr LegalStep<MemberState> steps[] = {
      {"a search", any_of(idle, searching, joining, waiting, rejoining), searching},
      {"JOIN", any_of(idle, searching, joining, waiting, rejoining), joining},
      {"WELCOME", any_of(joining), waiting},
      {"START", any_of(waiting), in_round},
      {"STOPPED", any_of(in_round), waiting},
      {"a stop to join again", any_of(in_round), rejoining},
      {"the end", any | any_of(idle), over},
      {"the end without a word", any | any_of(idle, over), over},
      {"the close", any_of(waiting, in_round, rejoining, over), closing},
      {"the wait for the coordinator here", any_of(closing), awaiting},
      {"the return of the lease", any_of(awaiting), resigning},
      {"the last step", any_of(closing, awaiting, resigning), closed},
  };
  static constexpr LegalStep<MemberState> deadlines[] = {
      {"the notice of a wait that lasts", any},
      {"the deadline of a leader", any_of(searching, joining)},
      {"the deadline of a coordinator to confirm that another one leads", any_of(waiting, in_round)},
      {"the verdict to be recorded again", any},
      {"the deadline of the close", any_of(closing, awaiting, resigning)},
  };
};

// Events, besides messages, LinkLoss and lease::Tell.
namespace member_event {
struct Prepare {};  ///< once, before Begin: the coordinator is started if it runs here
struct Begin {};    ///< join, for at most the join timeout
/// An attempt to reach the coordinator has failed; another one follows.
struct Retry {
  std::string why;
};
/// Connections to the coordinator have been refused at all its addresses for half a second.
struct NotListening {};
/// A name of the coordinator was resolved. `is_here`: by its present addresses this machine runs it.
struct Located {
  Result<bool> is_here;
};
struct ServerStarted {};
struct ServerFailed {
  Error error;
};
/// All its agents have the verdict.
struct ServerDone {
  int server;
};
/// It has dismissed its agents.
struct ServerSteppedDown {
  int server;
};
struct StoreOpened {
  Round round;
  Result<std::uint16_t> port;
};
/// Result of Record, or of the server's own attempt.
struct Recorded {
  VerdictMessage verdict;
  bool done;
};
struct Resigned {};
struct Abandon {};  ///< Rendezvous::abandon
struct Close {};    ///< Rendezvous::async_close
struct LinkClosed {};
struct TimeIsUp {};  ///< next_deadline() is reached
}  // namespace member_event

using MemberEvent =
    std::variant<member_event::Prepare, member_event::Begin, FromAgent, FromCoordinator, LinkLoss, lease::Tell,
                 member_event::Retry, member_event::NotListening, member_event::Located, member_event::ServerStarted,
                 member_event::ServerFailed, member_event::ServerDone, member_event::ServerSteppedDown,
                 member_event::StoreOpened, member_event::Recorded, member_event::Resigned, member_event::Abandon,
                 member_event::Close, member_event::LinkClosed, member_event::TimeIsUp>;

// Actions, besides messages to the coordinator and ToAgent.
namespace member_action {
/// Replaces the link by one to the coordinator in this process, to that at `address` of the lease, or, where that is
/// empty, to the configured one.
struct Dial {
  bool is_here;
  std::string address;
  Join join;
  Deadline by;
  bool was_reachable;  ///< as in DialerOptions
};
struct Hang {};  ///< closes the link at once, which tells the coordinator that no workers run here
/// The link kills the workers after their whole grace, as if its coordinator had ordered that.
struct BoundWorkers {};
struct CloseLink {};  ///< after what is queued; LinkClosed follows, at once without a link
/// A new coordinator in this process, with this number; ServerStarted or ServerFailed follows.
struct StartServer {
  int server;
  Term term;
  Join own_join;
};
// For the server that was started last:
struct Suspend {};
struct Lead {
  Term term;
};
struct StepDown {
  std::string why;
};
struct NoteRecorded {};
struct StopServer {
  int server;
};
// For the lease:
struct StartLease {};
struct Campaign {
  bool serves;  ///< with the server's address
};
struct Resign {
  bool answers;  ///< Resigned follows
};
struct Depose {
  Term term;
};
struct Record {
  VerdictMessage verdict;
};
// For the worker store:
struct OpenStore {
  Open order;  ///< StoreOpened follows
};
struct CloseStore {};
struct DropAll {};  ///< link, servers and lease, at once
struct Done {};     ///< the completion of Rendezvous::async_close
}  // namespace member_action

using MemberAction =
    std::variant<FromAgent, ToAgent, member_action::Dial, member_action::Hang, member_action::BoundWorkers,
                 member_action::CloseLink, member_action::StartServer, member_action::Suspend, member_action::Lead,
                 member_action::StepDown, member_action::NoteRecorded, member_action::StopServer,
                 member_action::StartLease, member_action::Campaign, member_action::Resign, member_action::Depose,
                 member_action::Record, member_action::OpenStore, member_action::CloseStore, member_action::DropAll,
                 member_action::Done>;

struct MemberOptions {
  RendezvousSpec spec;
  std::string run_id;
  std::string host;             ///< label of this machine until the coordinator assigns one
  Join join;                    ///< what stays the same of each
  bool is_explicit = false;     ///< as in CoordinatorLocation
  bool may_run_server = false;  ///< CoordinatorLocation::is_local
  std::function<std::string()> new_agent_id;
  StepHook on_step;
};

/// Upper bound of the workers' grace time. The coordinator's fence relies on it, but for the one set with --fence.
[[nodiscard]] inline Milliseconds max_grace(Grace grace, const RendezvousSpec& spec) {
  const bool is_whole = grace != Grace::lost_sight || spec.fence;
  return shutdown::grace_out_of_sight(Milliseconds::max(), is_whole);
}

/// The endpoints of a coordinator's address in the lease; what is no HOST:PORT is left out.
[[nodiscard]] std::vector<Endpoint> announced_endpoints(const std::string& text);

/// Decides what this machine does as a member of a job (PROTOCOL.md): when it joins which coordinator, when it runs
/// one, what its agent hears, and how its part ends. Knows no socket, thread, process or clock: its driver passes
/// events in, carries the returned actions out in their order, and passes TimeIsUp at next_deadline().
class MemberMachine {
 public:
  explicit MemberMachine(MemberOptions options);

  [[nodiscard]] std::vector<MemberAction> step(const MemberEvent& event, Clock::time_point now);

  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const { return deadlines_.next(); }
  [[nodiscard]] MemberState state() const { return state_; }
  [[nodiscard]] bool runs_coordinator() const { return server_ != Server::none; }
  [[nodiscard]] const std::string& describe_wait() const { return notice_; }
  [[nodiscard]] const RoundClaim& claim() const { return claim_; }

 private:
  using Step = MemberOrder::Step;
  enum class Server { none, serving, done };
  enum class Due { notice, search, superseded, record, close };

  template <class Action>
  void act(Action action) {
    actions_.emplace_back(std::move(action));
  }
  void tell(ToAgent what) { act(std::move(what)); }
  void send(FromAgent message) { act(std::move(message)); }
  [[nodiscard]] bool is_member() const { return state_ == MemberState::waiting || state_ == MemberState::in_round; }
  /// By the lease, with a coordinator dialled or not.
  [[nodiscard]] bool is_searching() const {
    return state_ == MemberState::searching || (has_lease() && state_ == MemberState::joining);
  }
  [[nodiscard]] bool is_over() const { return state_ >= MemberState::over; }
  [[nodiscard]] bool has_lease() const { return options_.spec.has_lease(); }
  [[nodiscard]] bool leads() const { return leader_ && leader_->is_self; }

  void on(const member_event::Prepare&);
  void on(const member_event::Begin&);
  void on(const FromAgent& message);
  void on(const FromCoordinator& message);
  void on(const LinkLoss& loss);
  void on(const lease::Tell& what);
  void on(const member_event::Retry& retry);
  void on(const member_event::NotListening&);
  void on(const member_event::Located& located);
  void on(const member_event::ServerStarted&);
  void on(const member_event::ServerFailed& failed);
  void on(const member_event::ServerDone& done);
  void on(const member_event::ServerSteppedDown& stepped_down);
  void on(const member_event::StoreOpened& opened);
  void on(const member_event::Recorded& recorded);
  void on(const member_event::Resigned&);
  void on(const member_event::Abandon&);
  void on(const member_event::Close&);
  void on(const member_event::LinkClosed&);
  void on(const member_event::TimeIsUp&);
  void on(Due due);

  // Messages of the agent, and of the coordinator.
  void say(const Failed& failed) {
    if (is_member() && !leave_) send(failed);
  }
  void say(const Succeeded& succeeded);
  void say(const Stopped& stopped);
  void say(const Leave& leave);
  void obey(const Welcome& welcome);
  void obey(const Refused& refused);
  void obey(const Waiting& waiting);
  void obey(const Open& open);
  void obey(const Start& start);
  void obey(const Stop& stop);
  void obey(const VerdictMessage& verdict) { end(verdict); }
  template <class ForWorkers>
  requires std::same_as<ForWorkers, PassSignal> || std::same_as<ForWorkers, Exchanged>
  void obey(const ForWorkers& message) {
    if (message.round == claim_.round && state_ == MemberState::in_round) tell(message);
  }
  // The lease.
  void on(const lease::Leader& leader);
  void on(const lease::tell::NoLeader&) { leader_.reset(); }
  void on(const lease::tell::Lost&);
  void on(const lease::tell::Verdict& verdict);
  void on(const lease::tell::Status& status);
  void on(const lease::tell::Unusable& unusable);

  void join_by(Deadline until);
  void start_server();
  void lose(const LinkLoss& loss);
  void rejoin(const std::string& why, int signal, Grace grace);
  void find_coordinator_again();
  void search_coordinator(Deadline until);
  void follow(const lease::Leader& leader);
  [[nodiscard]] int step_down(const std::string& why);
  void campaign();
  void resign(bool answers);
  void notice_later(std::string text);
  void end(VerdictMessage verdict);
  void end_as_recorded();
  [[nodiscard]] Join join_message() const;
  [[nodiscard]] VerdictMessage failure(std::string why) const;
  [[nodiscard]] VerdictMessage left_verdict(const Leave& leave, const char* when) const;
  [[nodiscard]] const char* when_not_member() const;
  void go_on_closing();
  void finish_closing();
  void end_by_defect(const std::string& what, const MemberEvent& event);

  MemberOptions options_;
  LegalState<MemberState, MemberOrder> state_;
  Clock::time_point now_;  ///< of the event that is being handled
  std::vector<MemberAction> actions_;
  Deadlines<Due, Clock::time_point> deadlines_;
  std::string notice_;  ///< for Due::notice: the present wait for a round
  bool retry_noticed_ = false;
  std::string agent_id_;
  RoundClaim claim_;            ///< of the last START, for another coordinator
  Round last_over_ = 0;         ///< of the present coordinator: what still comes of it is late
  std::string rejoin_reason_;   ///< empty: not a member before
  std::optional<Leave> leave_;  ///< this node has to leave
  Deadline join_until_{};       ///< by which a coordinator has to accept this node
  Milliseconds dials_for_{};    ///< until then, when it was last dialled
  Server server_ = Server::none;
  int servers_ = 0;  ///< number of the last one

  // With a lease.
  bool is_candidate_ = false;
  bool has_resigned_ = false;              ///< the lease is given back
  Term term_ = 0;                          ///< of this machine's last leadership; 0: never
  Term joined_term_ = 0;                   ///< of the last coordinator that accepted this node
  std::optional<lease::Leader> leader_;    ///< empty: unknown
  std::optional<lease::Leader> followed_;  ///< by the link
  std::string lease_error_;                ///< why it is unknown; empty: the engine works
  std::string superseded_by_;              ///< for Due::superseded
  std::optional<VerdictMessage> recorded_;
  VerdictMessage to_record_;  ///< for Due::record
};

}  // namespace ddrun::rendezvous
