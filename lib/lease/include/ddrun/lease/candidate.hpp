#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ddrun/base/deadlines.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/lease/fence.hpp"
#include "ddrun/lease/program_lines.hpp"

namespace ddrun::lease {

inline constexpr Milliseconds min_ttl{2000};
/// Of a recorded verdict: engines limit the size of a value.
inline constexpr std::size_t max_verdict_bytes = 16 * 1024;

struct LeaseOptions {
  std::string job;  ///< unique per job and equal on its machines; any text
  /// Another machine may lead after this time without renewal; whole seconds, min_ttl at least. Below 4 s the lease is
  /// lost, for a short time, whenever etcd elects a leader among its members, which takes 1 to 2 s.
  Milliseconds ttl{5000};
  /// Machines of the job: their requests for a lease that becomes free are spread over 1 ms for each, 500 ms at most.
  int candidates = 8;
};

struct Leader {
  std::uint64_t term;   ///< rises with each leader of the job; constant while one leads
  std::string address;  ///< as announced; empty: not announced yet
  bool is_self;
  bool operator==(const Leader&) const = default;
};

enum class CandidateState {
  idle,       ///< not a candidate, no leader known
  asking,     ///< a candidate, no leader known
  leading,    ///< and a candidate
  following,  ///< another machine leads; a candidate or not
  unusable,   ///< the program ended before it worked; final
};

// What a lease reports to its owner.
namespace tell {
struct NoLeader {};
struct Lost {
  std::string why;
};
struct Verdict {
  std::string text;
};
struct Status {
  std::string text;
};
struct Unusable {
  Error error;
};
}  // namespace tell

using Tell = std::variant<Leader, tell::NoLeader, tell::Lost, tell::Verdict, tell::Status, tell::Unusable>;

// Events. `id`: of the call that an action::Complete answers, above 0; 0: no answer.
namespace event {
struct Begin {};  ///< once, first
struct WantLead {
  std::string address;
};
struct WantResign {
  std::uint64_t id = 0;
  Milliseconds after{0};  ///< above 0: then, unless WantLead or WantResign comes before
};
struct Depose {
  std::uint64_t term = 0;
};
struct Record {
  std::string text;
  std::uint64_t id = 0;
};
struct Unparsable {  ///< a line of the program that is not in the protocol
  std::string text;
};
struct ProgramEnded {  ///< or could not be started
  std::string why;
};
struct TimeIsUp {};  ///< next_deadline() is reached; ignored before
}  // namespace event

using Event = std::variant<event::Begin, event::WantLead, event::WantResign, event::Depose, event::Record,
                           from_program::Line, event::Unparsable, event::ProgramEnded, event::TimeIsUp>;

// Actions, to be run in the order given.
namespace action {
struct Start {};  ///< the program
struct Kill {     ///< the program, which has not ended; no ProgramEnded follows
  std::string why;
};
struct Write {
  to_program::Line line;
};
struct Complete {
  std::uint64_t id = 0;
  Result<void> result;
};
}  // namespace action

using Action = std::variant<action::Start, action::Kill, action::Write, Tell, action::Complete>;

/// Decides for one machine when its lease program is started and killed, which lines it gets, and until when this
/// machine leads (PROTOCOL.md). Knows no process, socket, thread or clock: the owner passes the time in, by FenceClock.
///
/// Only the local clock counts: what the program does by a tick happens after that was sent.
class Candidate {
 public:
  /// `program`: its name, for messages. `seed`: of the random pauses.
  Candidate(LeaseOptions options, std::string program, std::uint32_t seed);

  [[nodiscard]] std::vector<Action> step(const Event& event, FenceClock::time_point now);

  [[nodiscard]] CandidateState state() const { return state_; }
  /// When to pass TimeIsUp; empty if nothing is pending.
  [[nodiscard]] std::optional<FenceClock::time_point> next_deadline() const { return deadlines_.next(); }
  /// This machine leads before this time; the epoch if it does not lead.
  [[nodiscard]] FenceClock::time_point held_until() const {
    return deadlines_.at(Due::fence).value_or(FenceClock::time_point{});
  }

 private:
  enum class Due { fence, record, resign, resign_later, done, restart, tick };

  void on(const event::Begin& begin);
  void on(const event::WantLead& want);
  void on(const event::WantResign& want);
  void on(const event::Depose& depose);
  void on(const event::Record& record);
  void on(const from_program::Line& line);
  void on(const event::Unparsable& line);
  void on(const event::ProgramEnded& ended);
  void on(const event::TimeIsUp& due);

  void on(const from_program::Mine& mine);
  void on(const from_program::Other& other);
  void on(const from_program::None& none);
  void on(const from_program::Verdict& verdict);
  void on(const from_program::Resigned& resigned);
  void on(const from_program::Recorded& recorded);
  void on(const from_program::Refused& refused);
  void on(const from_program::Trouble& trouble);
  void on(const from_program::Done& done);

  void on_due(Due due);
  void start_program();
  void fail_program(const std::string& what);
  void write(to_program::Line line) { actions_.emplace_back(action::Write{std::move(line)}); }
  void tell(Tell what) { actions_.emplace_back(std::move(what)); }
  void complete(std::uint64_t id, Result<void> result);
  [[nodiscard]] FenceClock::duration random_below(Milliseconds bound);

  void tick();
  void tick_after_resign();
  void tick_early();
  void write_campaign();
  void write_resign(std::uint64_t id);
  void resign(std::uint64_t id);
  void complete_resigns(const Result<void>& result);
  void finish_record(const Result<void>& result);
  void fail_record(const std::string& why, Errc code = Errc::unavailable);

  [[nodiscard]] bool is_leading() const { return state_ == CandidateState::leading; }
  void lead_or_follow(Leader leader);
  void no_leader();
  void status(std::string text);
  void lost(const std::string& why);
  void lost_by_clock();
  void step_down();
  void forget_leader();

  struct Tick {
    std::uint64_t number;
    FenceClock::time_point sent;
  };
  struct Recording {
    std::string text;
    std::uint64_t id;
  };

  LeaseOptions options_;
  std::string program_;
  Milliseconds tick_interval_;
  std::minstd_rand random_;
  FenceClock::time_point now_;
  std::vector<Action> actions_;
  Deadlines<Due, FenceClock::time_point> deadlines_;

  CandidateState state_ = CandidateState::idle;
  bool is_candidate_ = false;
  bool running_ = false;    ///< the program
  bool ever_done_ = false;  ///< the program has worked
  std::string address_;
  std::optional<Leader> leader_;  ///< as reported
  std::string last_status_;
  std::uint64_t highest_term_ = 0;
  std::uint64_t own_term_ = 0;    ///< of this machine's last leadership
  bool leader_line_ = false;      ///< the program's last report of the lease: another machine has it
  bool tick_after_done_ = false;  ///< early
  std::deque<Tick> ticks_;        ///< the last ones
  std::uint64_t last_tick_ = 0;
  std::uint64_t resigned_at_tick_ = 0;     ///< last tick before `resign`
  std::deque<std::uint64_t> resigns_;      ///< sent, unanswered
  std::deque<std::string> sent_verdicts_;  ///< unanswered
  std::optional<std::string> verdict_;     ///< of the job
  std::optional<Recording> recording_;
};

}  // namespace ddrun::lease
