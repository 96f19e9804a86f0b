#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::agent {

/// Whether the exit code is one of `policy.success_on`; never for a signal.
[[nodiscard]] bool is_success(const ExitStatus& status, const RestartPolicy& policy);

/// States of a worker group, in order. A restart goes from `closing` back to `rendezvous`.
enum class GroupState {
  idle,
  rendezvous,  ///< waiting for the coordinator: for a round or for the verdict
  preparing,   ///< what precedes the workers on this machine runs: --before, the import of --preload
  starting,    ///< workers are being spawned: services, or all others
  serving,     ///< services run, and mains wait for them to be ready
  running,     ///< all were spawned, not all have ended
  looking,     ///< their stacks are being read, before a stop or a kill
  stopping,    ///< they are signalled, and the grace time runs; also for what they left behind
  killing,     ///< SIGKILL was sent
  closing,     ///< no process is left; the rest of the output is being written
  finished,
};

[[nodiscard]] std::string_view name(GroupState state);

/// The workers of services are spawned first; those of main programs, which end the job, when services are ready.
enum class Part { services, mains };

// Events.
namespace event {
struct Start {};
struct Prepared {};  ///< also after CancelPrepare
struct Spawned {     ///< every worker of this part was started, unless the state has changed meanwhile
  Part part = Part::mains;
};
struct SpawnFailed {  ///< or Prepare has, or the workers cannot go on without what this machine had for them
  std::string message;
  int code = exit_codes::launcher_failed;
};
struct WorkerEnded {
  int slot = 0;
  ExitStatus status;
  // For a failure that would be the first of its attempt:
  std::string hang{};  ///< "rank 0 timed out": its last words say that it waited in vain for others; else empty
  RankName name{};
  int local_rank = 0;
  pid_t pid = 0;
  std::string why{};  ///< as in rendezvous::Failed
};
/// A rank has declared it (DeclaredFailure); its process may still run.
struct RankFailed {
  int slot = 0;
  RankName name{};
  int local_rank = 0;
  pid_t pid = 0;
  int code = 1;
  std::string what{};
};
struct WorkersKilled {};  ///< by the link's thread or the sweeper: this process was blocked or stood still
struct StacksRead {};
struct GroupGone {};  ///< no worker and no descendant of a worker is left
struct GraceExpired {
  Milliseconds duration{0};  ///< of the grace time, for the message
};
struct KillExpired {  ///< processes are left kill_timeout after SIGKILL
  std::string left;   ///< these processes, for messages
};
struct OutputClosed {
  rendezvous::Stopped report{};  ///< of the attempt
};
struct JobTimeout {};
struct EndingSignal {
  int signal = 0;
  std::string sender;
  bool at_once = false;  ///< it repeats an earlier one and forces SIGKILL
};
struct ParentLost {  ///< guard or sweeper was killed
  std::string message;
};
struct SkewExpired {};  ///< --exit-skew after the first worker's success
struct ServicesReady {};
struct ReadyExpired {   ///< a --ready-timeout
  std::set<int> slots;  ///< of those that are not ready
  std::string message;
};
}  // namespace event

using Event =
    std::variant<event::Start, event::Prepared, event::Spawned, event::SpawnFailed, event::WorkerEnded,
                 event::RankFailed, event::WorkersKilled, event::StacksRead, event::GroupGone, event::GraceExpired,
                 event::KillExpired, event::OutputClosed, event::JobTimeout, event::EndingSignal, event::ParentLost,
                 event::SkewExpired, event::ServicesReady, event::ReadyExpired, rendezvous::RoundBegins,
                 rendezvous::StopOrder, rendezvous::VerdictMessage, rendezvous::CoordinatorLost>;

[[nodiscard]] std::string_view name(const Event& event);

// Actions, to be run in the order given.
namespace action {
struct Prepare {};  ///< dispatch Prepared or SpawnFailed, also at once
struct CancelPrepare {
  int signal = 0;  ///< SIGTERM, or SIGKILL
};
struct SpawnWorkers {
  int attempt = 0;
  Part part = Part::mains;
};
struct AwaitReady {};        ///< dispatch ServicesReady or ReadyExpired unless a stop begins before
struct StartServiceMargin {  ///< dispatch RankFailed after a while unless a stop begins before
  int slot = 0;              ///< of a service that has ended well
};
struct ReadStacks {                          ///< show where the ranks are, and dispatch StacksRead
  std::string why;                           ///< "after 6.0 s (--timeout)"
  Milliseconds limit = Milliseconds::max();  ///< StacksRead comes after it at the latest
  bool finds_cause = true;                   ///< the rank that holds up the others is the cause
  std::set<int> slots{};                     ///< only these; empty: all
  enum class Scope {
    machine,  ///< this one
    asks,     ///< all: the coordinator is asked
    order,    ///< all, as `look` says; 0: as StopOrder will say
  };
  Scope scope = Scope::machine;
  std::uint32_t look = 0;    ///< as in StopOrder
  bool awaits_page = false;  ///< as in StopOrder
};
struct AnswerOrder {  ///< of StopOrder, to ReadStacks with the scope `order`
  std::uint32_t look = 0;
  bool awaits_page = false;
};
struct GiveUpStacks {};  ///< no StacksRead follows
struct SignalGroup {     ///< to each worker's process group, then SIGCONT for stopped ones
  int signal = 0;
};
struct StartGrace {  ///< one that runs already can only get shorter
  Milliseconds duration{0};
};
struct KillGroup {};  ///< SIGKILL to each worker's process group and to all other descendants
struct CheckGone {};  ///< dispatch GroupGone, now or as soon as it is true
struct CloseOutput {};
struct StartSkew {  ///< dispatch SkewExpired after this time unless the attempt is over before
  Milliseconds duration{0};
};
struct Finish {};
struct Join {};
struct Send {  ///< to the coordinator
  rendezvous::FromAgent message;
};
struct Abandon {  ///< no more messages: for the others this node is lost
  std::string why;
};
}  // namespace action

using Action =
    std::variant<action::Prepare, action::CancelPrepare, action::SpawnWorkers, action::AwaitReady,
                 action::StartServiceMargin, action::ReadStacks, action::AnswerOrder, action::GiveUpStacks,
                 action::SignalGroup, action::StartGrace, action::KillGroup, action::CheckGone, action::CloseOutput,
                 action::StartSkew, action::Finish, action::Join, action::Send, action::Abandon>;

/// A row of the machine's table: events that can come in a state, the states that may follow, and the actions that may
/// be taken.
struct Step {
  GroupState from = GroupState::idle;
  unsigned events = 0;   ///< a bit for each index in Event
  unsigned next = 0;     ///< a bit for each state; that of `from` if it may stay
  unsigned actions = 0;  ///< a bit for each index in Action
  bool ignored = false;  ///< the events can come, and have no effect

  [[nodiscard]] bool applies_to(GroupState state, const Event& event) const {
    return from == state && (events & (1U << event.index())) != 0;
  }
  [[nodiscard]] bool may_lead_to(GroupState state) const { return (next & (1U << static_cast<unsigned>(state))) != 0; }
  [[nodiscard]] bool may_cause(const Action& action) const { return (actions & (1U << action.index())) != 0; }
};

/// All rows; exactly one applies to each pair of state and event that can occur.
[[nodiscard]] std::span<const Step> state_table();

/// GroupState machine for the workers of this machine; the coordinator decides about rounds, restarts and the end of
/// the job. It has no process, socket or clock: the owner feeds events and runs the actions that step() returns.
class GroupMachine {
 public:
  struct Rules {
    RestartPolicy restart;  ///< what counts as success
    StopPolicy stop;
    std::optional<Milliseconds> exit_skew;
    Milliseconds job_limit{0};  ///< --timeout, for the message
    bool several_machines = false;
    /// Workers for messages; null: local ranks are the slots.
    std::function<std::string(const std::set<int>& slots)> name_workers{};
    /// Whether the coordinator is in this agent, which therefore ends last. May change while the job runs.
    std::function<bool()> runs_coordinator = [] { return false; };
  };
  /// `services`: slots of the workers that end after the others and whose success ends nothing.
  GroupMachine(Rules rules, int workers, std::set<int> services = {});

  /// The only way to another state. If the table has no row for the event in this state, or the row does not have what
  /// the machine decided, which is a defect of ddrun, the job ends in order: Leave, whose text names state and event,
  /// and a stop of the workers.
  [[nodiscard]] std::vector<Action> step(const Event& event);

  [[nodiscard]] GroupState state() const { return state_; }
  [[nodiscard]] int attempt() const { return attempt_; }
  /// The group is being taken down: workers that end now were stopped by ddrun.
  [[nodiscard]] bool taking_down() const { return state_ >= GroupState::looking && state_ <= GroupState::killing; }
  /// There is no further attempt on this machine.
  [[nodiscard]] bool job_is_ending() const { return job_is_ending_; }
  /// Slot of the attempt's first failure.
  [[nodiscard]] std::optional<int> first_failure() const { return first_failure_; }

  // Why the job ended here, valid in `finished`; a verdict of the coordinator takes precedence.
  [[nodiscard]] Verdict verdict() const { return verdict_; }
  [[nodiscard]] int ending_signal() const { return ending_signal_; }
  [[nodiscard]] const std::string& signal_sender() const { return signal_sender_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] int launcher_code() const { return launcher_code_; }

 private:
  using Actions = std::vector<Action>;
  struct Decision {
    GroupState next;
    Actions actions;
  };
  Decision handle(const event::Start&);
  Decision handle(const event::Prepared&);
  Decision handle(const event::Spawned&);
  Decision handle(const event::SpawnFailed&);
  Decision handle(const event::WorkerEnded&);
  Decision handle(const event::RankFailed&);
  Decision handle(const event::WorkersKilled&);
  Decision handle(const event::StacksRead&);
  Decision handle(const event::GroupGone&);
  Decision handle(const event::GraceExpired&);
  Decision handle(const event::KillExpired&);
  Decision handle(const event::OutputClosed&);
  Decision handle(const event::JobTimeout&);
  Decision handle(const event::EndingSignal&);
  Decision handle(const event::ParentLost&);
  Decision handle(const event::SkewExpired&);
  Decision handle(const event::ServicesReady&);
  Decision handle(const event::ReadyExpired&);
  Decision handle(const rendezvous::RoundBegins&);
  Decision handle(const rendezvous::StopOrder&);
  Decision handle(const rendezvous::VerdictMessage&);
  Decision handle(const rendezvous::CoordinatorLost&);

  [[nodiscard]] Decision stay(Actions actions = {}) const { return {state_, std::move(actions)}; }
  /// `rest` with other actions before its own.
  [[nodiscard]] static Decision after(Actions first, Decision rest);

  /// All workers of the job succeeded; only processes that they left behind are being stopped.
  [[nodiscard]] bool job_succeeded() const;
  Decision handle_first_signal(const event::EndingSignal& ending);
  Decision handle_repeated_signal(const event::EndingSignal& ending);
  /// The attempt's first failure, of a worker whose stacks are read first if `why` says so.
  Decision fail_attempt(int slot, rendezvous::Failed failed, std::string why);
  Actions start_skew();
  Decision all_succeeded();
  [[nodiscard]] static Decision finish();
  /// No worker is left, or none whose end matters.
  [[nodiscard]] bool only_leftovers() const { return running_.empty() && (succeeded_ || serving_.empty()); }
  /// The Abandon that was delayed until no worker is left.
  Actions pending_abandon();
  /// With the stacks read first if `stacks` says why and workers run.
  Decision end_job(Verdict verdict, int signal_for_workers, action::ReadStacks stacks = {});
  /// The same with LEAVE, which on several machines follows the stacks.
  Decision leave_job(action::Send leave, Verdict verdict, int signal_for_workers, action::ReadStacks stacks);
  /// A failure of ddrun itself.
  Actions cannot_go_on(std::string message, int code = exit_codes::launcher_failed);
  Decision wrong_step(std::string what);
  Decision take_down(int signal, action::ReadStacks stacks = {});
  /// Where take_down() waits for stacks, it does no longer.
  [[nodiscard]] Decision at_once(Decision rest) const;
  [[nodiscard]] Milliseconds grace() const { return std::min(rules_.stop.grace, max_grace_); }
  [[nodiscard]] Decision stop_group(int signal) const;
  [[nodiscard]] static Decision kill();
  [[nodiscard]] static action::Send leave(rendezvous::LeaveKind kind, int code, std::string text) {
    return {rendezvous::Leave{kind, code, std::move(text)}};
  }

  Rules rules_;
  std::set<int> mains_;     ///< slots
  std::set<int> services_;  ///< slots

  GroupState state_ = GroupState::idle;
  rendezvous::Round round_ = 0;
  int attempt_ = 0;
  std::set<int> running_;  ///< slots of mains that have not ended
  std::set<int> serving_;  ///< the same of services
  std::optional<int> first_failure_;
  bool succeeded_ = false;      ///< all mains of this machine have
  bool only_node_ = false;      ///< the round has no other node
  bool skipped_round_ = false;  ///< it began while the job was ending here: no worker was started
  /// What follows `preparing` and `looking`: a stop by this signal, or a kill by SIGKILL; 0: no stop.
  int next_stop_ = 0;
  bool looks_at_all_ = false;                     ///< `looking` is about all machines
  bool answer_due_ = false;                       ///< in `looking`: a StopOrder follows what was sent
  std::optional<action::Send> pending_leave_;     ///< in `looking`: to be sent at its end
  Milliseconds max_grace_ = Milliseconds::max();  ///< of the attempt's stop
  Verdict verdict_ = Verdict::success;
  bool job_is_ending_ = false;  ///< by a signal, a timeout or a failure of ddrun, or the verdict is known
  int ending_signal_ = 0;
  std::string signal_sender_;
  std::string message_;
  int launcher_code_ = exit_codes::launcher_failed;
  bool awaits_verdict_ = true;    ///< false once this agent has left, lost the coordinator or has the verdict
  bool abandon_pending_ = false;  ///< Abandon as soon as no worker is left here
  bool skew_running_ = false;
  bool margin_running_ = false;
};

}  // namespace ddrun::agent
