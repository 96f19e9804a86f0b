#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ddrun/base/deadlines.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/messages.hpp"

namespace ddrun::remote {

/// States of one host, in order. A host that is tried again goes from `opening` back to `queued`.
enum class HostState {
  queued,
  opening,   ///< its ssh was started, ddrun does not run there yet
  ready,     ///< ddrun waits there for its part of the job
  started,   ///< it has its part
  in_round,  ///< and its workers have been in a round
  ended,     ///< its ddrun has ended, with a status
  lost,      ///< any other end: it was not reached, not started, or the connection is gone
};

[[nodiscard]] constexpr std::string_view name(HostState state) {
  constexpr std::string_view names[] = {"queued", "opening", "ready", "started", "in_round", "ended", "lost"};
  return names[static_cast<int>(state)];
}

struct HostOrder {
  using enum HostState;
  enum class Step { open, queue, ready, start, round, end, lose };
  static constexpr LegalStep<HostState> steps[] = {
      {"a connection", any_of(queued), opening},
      {"another try", any_of(opening), queued},
      {"an answer", any_of(opening), ready},
      {"its part of the job", any_of(ready), started},
      {"a round", any_of(started), in_round},
      {"a status", any_of(started, in_round), ended},
      {"a loss", any_of(queued, opening, ready, started, in_round), lost},
  };
};

/// States of the whole job.
enum class HostsState {
  reaching,  ///< hosts are being reached
  starting,  ///< one of them is to run the coordinator
  joining,   ///< it listens; the others get their parts
  running,   ///< a host has been in a round
  ending,    ///< the job was stopped on all hosts
  over,      ///< all hosts have ended or are lost; connections may be left
};

[[nodiscard]] constexpr std::string_view name(HostsState state) {
  constexpr std::string_view names[] = {"reaching", "starting", "joining", "running", "ending", "over"};
  return names[static_cast<int>(state)];
}

struct HostsOrder {
  using enum HostsState;
  enum class Step { begin, listen, round, stop, finish };
  enum class Due {
    retry,      ///< of a host whose proxy closed the connection
    last_call,  ///< for hosts that have not answered
    notice,     ///< explains the wait for them
    cut,        ///< of the connections that are left
    answer,     ///< of a host that was asked
  };
  static constexpr std::uint32_t before_stop = any_of(reaching, starting, joining, running);
  static constexpr LegalStep<HostsState> steps[] = {
      {"a coordinator's host", any_of(reaching), starting},
      {"the coordinator's address", any_of(starting), joining},
      {"a round", any_of(starting, joining), running},  // a coordinator for one host has no address
      {"a stop", before_stop, ending},
      {"the last host's end", any_of(starting, joining, running, ending), over},
  };
  static constexpr LegalStep<HostsState> deadlines[] = {
      {"retry", before_stop},
      {"last_call", any_of(reaching)},
      {"notice", any_of(reaching)},
      {"cut", any_of(ending, over)},
      {"answer", any_of(starting, joining, running, ending)},
  };
};

// Events. `host`: the index of a host.
namespace host_event {
struct Begin {};
struct Ready {  ///< ddrun runs there
  std::uint32_t host = 0;
};
struct LinkEnded {
  std::uint32_t host = 0;
  std::string why{};             ///< names the host
  bool closed_by_proxy = false;  ///< before the login, and nothing else was wrong: it may be tried again
};
struct Listening {  ///< the coordinator there
  std::uint32_t host = 0;
};
struct InRound {
  std::uint32_t host = 0;
};
struct Ended {
  std::uint32_t host = 0;
  int code = 0;
};
struct Signal {
  int signal = 0;        ///< also SIGSTOP and SIGCONT, for Ctrl-Z and its end
  bool at_once = false;  ///< it repeats an earlier one
};
struct ParentLost {  ///< this ddrun's guard or sweeper was killed
  std::string who{};
};
struct Asked {  ///< `ddrun stacks`; the number of the question is new
  std::uint32_t question = 0;
};
struct Answered {  ///< the first part of a reply that was not refused has come, or all
  std::uint32_t question = 0;
  bool is_complete = false;
};
struct Tick {};  ///< the time of next_deadline()
}  // namespace host_event

using HostEvent = std::variant<host_event::Begin, host_event::Ready, host_event::LinkEnded, host_event::Listening,
                               host_event::InRound, host_event::Ended, host_event::Signal, host_event::ParentLost,
                               host_event::Asked, host_event::Answered, host_event::Tick>;

// Actions, to be run in the order given.
namespace host_action {
struct OpenLink {  ///< LinkEnded follows once
  std::uint32_t host = 0;
  Clock::time_point deadline{};  ///< for ddrun's answer
};
struct SendPart {
  std::uint32_t host = 0;
  int first_round_nodes = 0;  ///< so many hosts begin, others join later; 0: all
};
struct SendSignal {
  std::uint32_t host = 0;
  int signal = 0;
  bool at_once = false;
};
struct SendOver {  ///< the job has ended: it ends if it is in no round
  std::uint32_t host = 0;
};
struct KillLink {
  std::uint32_t host = 0;
};
struct KillLinks {};
struct CloseLinks {};  ///< as soon as all is sent
struct Suspend {       ///< this ddrun stands still, or goes on
  bool still = false;
};
struct StartTimeLimit {};
struct ReadInput {};  ///< for the hosts that have their parts
struct StopInput {};
struct ForgetSecret {};  ///< all hosts have it
struct BoundConsole {};  ///< from now on wait for it only while it takes output
struct SendQuestion {
  std::uint32_t host = 0;
  std::uint32_t question = 0;
};
struct RefuseQuestion {  ///< also after a part of its reply; it gets no further one
  std::uint32_t question = 0;
  std::string why{};
};
struct Say {
  Level level = Level::notice;
  std::string text{};
};
struct Finish {  ///< no connection is left
  bool at_once = false;
};
}  // namespace host_action

using HostAction =
    std::variant<host_action::OpenLink, host_action::SendPart, host_action::SendSignal, host_action::SendOver,
                 host_action::KillLink, host_action::KillLinks, host_action::CloseLinks, host_action::Suspend,
                 host_action::StartTimeLimit, host_action::ReadInput, host_action::StopInput, host_action::ForgetSecret,
                 host_action::BoundConsole, host_action::SendQuestion, host_action::RefuseQuestion, host_action::Say,
                 host_action::Finish>;

struct HostsOptions {
  std::vector<std::string> names;  ///< in order of preference for the coordinator
  int min_nodes = 1;
  int max_nodes = 1;
  Milliseconds last_call{30'000};     ///< limit for the wait for further hosts, once `min_nodes` are there
  Milliseconds start_limit{120'000};  ///< for the answer of a host, from the start of its ssh
  Milliseconds grace{30'000};
  std::set<int> ending_signals;
  int ending_signal = 15;      ///< for a stop without a signal
  bool input_for_all = false;  ///< standard input is for the workers of each host
  StepHook on_step{};
};

/// Decides what a job on other machines does with its hosts: which are reached now, which one runs the coordinator, who
/// gets a part when, and how a host's loss, a signal or the coordinator's end stops the others. A decider: no
/// connections, no clock.
///
/// 32 hosts at most are reached at a time; fewer after a proxy has closed a connection. The coordinator runs on the
/// first host, in the order given, that can be reached. If all hosts are needed, that one gets its part once it answers
/// and all others are being reached, as --join-timeout runs from then. Else the job waits for the first host, and until
/// `max_nodes` have answered or all others have failed; from `min_nodes` answers on, for `last_call` at most.
/// A question about the whole job goes to the coordinator's host, or else to the first that has its part.
class HostsMachine {
 public:
  explicit HostsMachine(HostsOptions options);

  [[nodiscard]] std::vector<HostAction> step(const HostEvent& event, Clock::time_point now);
  /// When Tick is due; empty: never.
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const { return deadlines_.next(); }

  [[nodiscard]] HostsState state() const { return state_; }
  [[nodiscard]] HostState host(std::size_t host) const { return hosts_[host].state; }
  [[nodiscard]] bool is_over(std::size_t host) const { return this->host(host) >= HostState::ended; }
  /// Whether it has its part, and runs.
  [[nodiscard]] bool has_part(std::size_t host) const {
    return this->host(host) == HostState::started || this->host(host) == HostState::in_round;
  }
  /// Empty while hosts are reached.
  [[nodiscard]] std::optional<std::uint32_t> coordinator() const { return coordinator_; }
  /// Of the whole job, once it is over.
  [[nodiscard]] int exit_code() const;

 private:
  using Step = HostsOrder::Step;
  using Due = HostsOrder::Due;
  struct Host {
    LegalState<HostState, HostOrder> state;
    Clock::time_point deadline{};  ///< for its answer
    Deadline retry_at{};
    unsigned retries = 0;
    std::string retried_why{};
  };

  void on(const host_event::Begin& event);
  void on(const host_event::Ready& event);
  void on(const host_event::LinkEnded& event);
  void on(const host_event::Listening& event);
  void on(const host_event::InRound& event);
  void on(const host_event::Ended& event);
  void on(const host_event::Signal& event);
  void on(const host_event::ParentLost& event);
  void on(const host_event::Asked& event);
  void on(const host_event::Answered& event);
  void on(const host_event::Tick& event);

  /// Starts the next hosts: those that are tried again, then the others in order.
  void open_links();
  bool try_again(const host_event::LinkEnded& event);
  void retry_due_hosts();
  void decide(bool last_call_is_over = false);
  void start_hosts();
  void feed_input();
  void lose(std::uint32_t host, const std::string& why);
  void leave_out(const std::string& why);
  void give_up_unreached_hosts();
  /// Stops the job on all hosts; the second call kills it.
  void stop(int signal);
  void suspend(bool still);
  void cut();
  void finish_if_over();
  /// Refuses those whose host is lost or late.
  void check_questions();

  void act(HostAction action) { actions_.push_back(std::move(action)); }
  void say(Level level, std::string text) { act(host_action::Say{level, std::move(text)}); }
  bool enter(std::uint32_t host, HostOrder::Step step);
  bool enter(Step step);
  void fail_for(const std::optional<std::string>& wrong);
  [[nodiscard]] long count(HostState first, HostState last) const;
  [[nodiscard]] int running() const { return static_cast<int>(count(HostState::queued, HostState::in_round)); }
  [[nodiscard]] bool is_stopped() const { return state_ == HostsState::ending || state_ == HostsState::over; }
  [[nodiscard]] bool all_needed() const { return options_.min_nodes == static_cast<int>(hosts_.size()); }
  /// The loss of the coordinator's host ends the job.
  [[nodiscard]] bool continues_without(std::uint32_t host) const;
  /// "waiting for host h1 and 2 more to answer"; empty: all have.
  [[nodiscard]] std::string describe_wait() const;
  /// The coordinator has ended before this host was in a round: it does not matter any more.
  [[nodiscard]] bool is_left_out(std::uint32_t host, HostState state) const;

  const HostsOptions options_;
  std::vector<Host> hosts_;
  LegalState<HostsState, HostsOrder> state_;
  Deadlines<Due, Clock::time_point> deadlines_;
  std::uint32_t next_host_ = 0;  ///< the first one whose link has not been opened
  std::deque<std::uint32_t> retried_;
  long opening_ = 0;
  long max_opening_;
  Clock::time_point slowed_at_{};
  std::size_t links_ = 0;  ///< those that have not ended
  std::optional<std::uint32_t> coordinator_;
  int first_round_nodes_ = 0;
  bool is_suspended_ = false;
  std::optional<Clock::duration> time_to_cut_;  ///< while suspended
  int signal_ = 0;                              ///< by which the user stopped the job
  bool has_failed_ = false;                     ///< ddrun itself has, not the job
  int first_code_ = 0;                          ///< the first nonzero status
  struct Question {
    std::uint32_t host = 0;
    Clock::time_point by{};
  };
  std::map<std::uint32_t, Question> questions_;  ///< by number
  Clock::time_point now_{};
  std::vector<HostAction> actions_;
};

}  // namespace ddrun::remote
