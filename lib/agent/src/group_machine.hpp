#pragma once

#include <sys/types.h>

#include <cstddef>
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
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::agent {

/// Exit codes that a policy names are compared with real exit codes only; a signal is never among them.
[[nodiscard]] bool is_success(const ExitStatus& status, const RestartPolicy& policy);

/// The life of a worker group, in order. A restart goes from `closing` back to `rendezvous`.
enum class State {
  idle,
  rendezvous,  ///< waiting for the coordinator: for a round or for the verdict
  starting,    ///< workers are being spawned
  running,     ///< all were spawned, not all have ended
  stopping,    ///< they were told to end and have their grace time; also what they left behind
  killing,     ///< SIGKILL was sent
  closing,     ///< no process is left; the rest of their output is being written
  finished,
};

[[nodiscard]] std::string_view name(State state);

// What happens to a group.
namespace event {
struct Start {};
struct Spawned {};  ///< every worker of the attempt runs, or has run
struct SpawnFailed {
  std::string message;
  int code = exit_codes::launcher_failed;
};
struct WorkerEnded {
  int local_rank = 0;
  ExitStatus status;
};
struct GroupGone {};  ///< no worker and nothing that a worker started is left
struct GraceExpired {};
struct KillExpired {  ///< SIGKILL has not helped for long
  std::string left;   ///< the processes that are there, for messages
};
struct OutputClosed {};
struct JobTimeout {};
struct EndingSignal {
  int signal = 0;
  std::string sender;
  bool at_once = false;  ///< after an earlier one: a person has lost patience
};
struct ParentLost {  ///< guard or sweeper was killed
  std::string message;
};
struct SkewExpired {};  ///< --exit-skew after the first worker's success
// What the coordinator says.
struct RoundBegins {
  int restart_count = 0;
  bool only_node = false;  ///< no other takes part
};
struct StopOrdered {
  int signal = 0;  ///< for the workers; 0: SIGTERM
};
struct VerdictReceived {};
struct CoordinatorLost {
  std::string message;
};
}  // namespace event

using Event = std::variant<event::Start, event::Spawned, event::SpawnFailed, event::WorkerEnded, event::GroupGone,
                           event::GraceExpired, event::KillExpired, event::OutputClosed, event::JobTimeout,
                           event::EndingSignal, event::ParentLost, event::SkewExpired, event::RoundBegins,
                           event::StopOrdered, event::VerdictReceived, event::CoordinatorLost>;

[[nodiscard]] std::string_view name(const Event& event);

// What is to be done about it, in the order given.
namespace action {
struct SpawnWorkers {
  int attempt = 0;
};
struct CancelSpawn {};  ///< no worker of this attempt is needed any more: ends --before
struct SignalGroup {    ///< to every worker's process group, then SIGCONT so that stopped ones hear it
  int signal = 0;
};
struct StartGrace {
  Milliseconds duration{0};
};
struct KillGroup {};  ///< SIGKILL to every worker's process group and to whatever else descends from us
struct CheckGone {};  ///< say GroupGone, now or as soon as it is true
struct CloseOutput {};
struct StartSkew {  ///< say SkewExpired after this time unless the attempt is over before
  Milliseconds duration{0};
};
struct Finish {};
// What the coordinator has to know.
struct Join {};
struct SendFailed {
  int local_rank = 0;
  ExitStatus status;
};
struct SendSucceeded {};
struct SendStopped {};
struct SendLeave {
  rendezvous::Leave message;
};
struct SendAbort {
  rendezvous::Abort message;
};
struct Abandon {  ///< no more words: for the others this node is lost
  std::string why;
};
}  // namespace action

using Action = std::variant<action::SpawnWorkers, action::CancelSpawn, action::SignalGroup, action::StartGrace,
                            action::KillGroup, action::CheckGone, action::CloseOutput, action::StartSkew,
                            action::Finish, action::Join, action::SendFailed, action::SendSucceeded,
                            action::SendStopped, action::SendLeave, action::SendAbort, action::Abandon>;

/// A row of the machine's table: an event that can come in a state, the states that may follow, and the actions that
/// may be taken.
struct Step {
  State from = State::idle;
  std::size_t event = 0;  ///< index in Event
  unsigned next = 0;      ///< a bit for each State; that of `from` if it may stay
  unsigned actions = 0;   ///< a bit for each index in Action
  bool ignored = false;   ///< the event can come, and has no effect

  [[nodiscard]] constexpr bool may_lead_to(State state) const {
    return (next & (1U << static_cast<unsigned>(state))) != 0;
  }
  [[nodiscard]] bool may_cause(const Action& action) const { return (actions & (1U << action.index())) != 0; }
};

/// All rows, one for each pair of state and event that can occur.
[[nodiscard]] std::span<const Step> state_table();

/// Decides about the workers of this machine; rounds, restarts and the end of the job are the coordinator's. Does
/// nothing itself: its owner carries the actions out and says what happens. No processes, sockets or clocks in here: a
/// test walks it with plain values.
class GroupMachine {
 public:
  struct Rules {
    RestartPolicy restart;  ///< what counts as success
    StopPolicy stop;
    std::optional<Milliseconds> exit_skew;
    Milliseconds job_limit{0};  ///< --timeout, for the message
    /// Whether that is in this very agent, which therefore ends last. May change while the job runs.
    std::function<bool()> runs_coordinator = [] { return false; };
  };
  GroupMachine(Rules rules, int local_world_size);

  /// The only way to another state. Fails with `invalid_argument`, and changes no state, if the table has no row for
  /// the event in this state, or the row does not have what the machine decided: a defect of ddrun. The message names
  /// state and event.
  [[nodiscard]] Result<std::vector<Action>> step(const Event& event);

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] int attempt() const { return attempt_; }
  /// True from the moment that the group is being taken down: who ends now was stopped by ddrun.
  [[nodiscard]] bool taking_down() const { return state_ == State::stopping || state_ == State::killing; }
  /// While spawning: stop, the attempt is lost already.
  [[nodiscard]] bool is_stop_pending() const { return state_ == State::starting && stop_pending_; }
  /// Local rank of the attempt's first failure.
  [[nodiscard]] std::optional<int> first_failure() const { return first_failure_; }

  // What has ended the job here, valid in `finished`; what the coordinator says goes before it.
  [[nodiscard]] Verdict verdict() const { return verdict_; }
  [[nodiscard]] int ending_signal() const { return ending_signal_; }
  [[nodiscard]] const std::string& signal_sender() const { return signal_sender_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] int launcher_code() const { return launcher_code_; }

 private:
  using Actions = std::vector<Action>;
  struct Decision {
    State next;
    Actions actions;
  };
  Decision handle(const event::Start&);
  Decision handle(const event::Spawned&);
  Decision handle(const event::SpawnFailed&);
  Decision handle(const event::WorkerEnded&);
  Decision handle(const event::GroupGone&);
  Decision handle(const event::GraceExpired&);
  Decision handle(const event::KillExpired&);
  Decision handle(const event::OutputClosed&);
  Decision handle(const event::JobTimeout&);
  Decision handle(const event::EndingSignal&);
  Decision handle(const event::ParentLost&);
  Decision handle(const event::SkewExpired&);
  Decision handle(const event::RoundBegins&);
  Decision handle(const event::StopOrdered&);
  Decision handle(const event::VerdictReceived&);
  Decision handle(const event::CoordinatorLost&);

  [[nodiscard]] Decision stay(Actions actions = {}) const { return {state_, std::move(actions)}; }
  /// `rest` with other actions before its own.
  [[nodiscard]] static Decision after(Actions first, Decision rest);

  /// All workers of the job have ended well, and only what they left behind is being cleared up.
  [[nodiscard]] bool job_succeeded() const;
  Decision handle_first_signal(const event::EndingSignal& ending);
  Decision handle_repeated_signal(const event::EndingSignal& ending);
  Decision start_attempt();
  Actions start_skew();
  Decision all_succeeded();
  [[nodiscard]] static Decision finish();
  /// Where that was put off until no worker is left.
  Actions pending_abandon();
  Decision end_job(Verdict verdict, int signal_for_workers);
  /// Now, or while spawning once that is over.
  Decision take_down(int signal);
  [[nodiscard]] Decision stop_group(int signal) const;
  [[nodiscard]] static Decision kill();

  Rules rules_;
  int local_world_size_;

  State state_ = State::idle;
  int attempt_ = 0;
  std::set<int> running_;  ///< local ranks that have not ended
  std::optional<int> first_failure_;
  bool succeeded_ = false;      ///< all workers of this machine have
  bool only_node_ = false;      ///< of the round: there are no other workers
  bool skipped_round_ = false;  ///< one began while the job was ending here: no worker of it was started
  bool stop_pending_ = false;   ///< the attempt is to be taken down once spawning is over
  int stop_signal_ = 0;
  Verdict verdict_ = Verdict::success;
  bool job_is_ending_ = false;  ///< by signal, timeout or failure of ddrun itself, or the verdict is known
  int ending_signal_ = 0;
  std::string signal_sender_;
  std::string message_;
  int launcher_code_ = exit_codes::launcher_failed;
  bool awaits_verdict_ = true;    ///< false once this agent has left, lost the coordinator or has the verdict
  bool abandon_pending_ = false;  ///< the job, as soon as no worker is left here
  bool skew_running_ = false;
};

}  // namespace ddrun::agent
