#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/legal_order.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/lease/program_lines.hpp"

namespace ddrun::lease {

/// CLOCK_BOOTTIME: includes suspend, as the engine's clock does, and cannot be set.
struct FenceClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<FenceClock>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept;
};

/// A leader steps down this long before its lease expires, to allow for clock drift.
[[nodiscard]] constexpr Milliseconds fence_margin(Milliseconds ttl) { return ttl / 10; }

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
  StepHook on_step = {};
};

enum class CandidateState {
  idle,       ///< not a candidate, no leader known
  asking,     ///< a candidate, no leader known
  leading,    ///< and a candidate
  following,  ///< another machine leads; a candidate or not
  unusable,   ///< the program ended before it worked; final
};

[[nodiscard]] constexpr std::string_view name(CandidateState state) {
  constexpr std::string_view names[] = {"idle", "asking", "leading", "following", "unusable"};
  return names[static_cast<int>(state)];
}

struct CandidateOrder {
  using enum CandidateState;
  enum class Step { campaign, lead, follow, lose, resign, fail };
  static constexpr std::uint32_t any = any_of(idle, asking, leading, following);
  static constexpr LegalStep<CandidateState> steps[] = {
      {"a campaign", any_of(idle), asking},
      {"the lead", any_of(asking, leading, following), leading},
      {"another leader", any_of(idle, asking, following), following},
      {"the loss of the leader", any_of(asking, leading, following), asking},
      {"the return of the lease", any, idle},
      {"the end of the program", any_of(idle, asking, following), unusable},
  };
  static constexpr LegalStep<CandidateState> deadlines[] = {
      {"the fence", any_of(leading)},
      {"the deadline of the record", any_of(leading)},
      {"the deadline of a resignation", any},
      {"a later resignation", any | any_of(unusable)},
      {"the deadline of a tick", any},
      {"the start of the program", any_of(idle, asking)},
      {"a tick", any},
  };
};

/// The leader, or its address, is known or has changed.
struct Leader {
  std::uint64_t term;   ///< rises with each leader of the job; constant while one leads
  std::string address;  ///< as announced; empty: not announced yet
  bool is_self;
  bool operator==(const Leader&) const = default;
};

// What a lease reports to its owner, once for each change.
namespace tell {
/// The other machine that led leads no longer. Candidates try by themselves.
struct NoLeader {};
/// This machine led, and must not act as leader from now on: the lease could not be renewed in time, is gone, or
/// another machine has it. Told before the engine may give it to another, unless it was revoked by hand. A candidate
/// remains one, and may lead again with a new term. Not told for a resign.
struct Lost {
  std::string why;
};
/// The job has a recorded verdict. No candidate becomes leader until the record is deleted; a leader continues.
struct Verdict {
  std::string text;
};
/// For the user: the engine is unreachable, or works again.
struct Status {
  std::string text;
};
/// The configuration is unusable, and never worked: wrong password, no etcd, program not found. Nothing follows.
struct Unusable {
  Error error;
};
}  // namespace tell

using Tell = std::variant<Leader, tell::NoLeader, tell::Lost, tell::Verdict, tell::Status, tell::Unusable>;

// Events. `id`: of the call that an action::Complete answers, above 0; 0: no answer.
namespace event {
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
struct TimeIsUp {};  ///< next_deadline() is reached; ignored before. The first one starts the program
}  // namespace event

using Event = std::variant<event::WantLead, event::WantResign, event::Depose, event::Record, from_program::Line,
                           event::Unparsable, event::ProgramEnded, event::TimeIsUp>;

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
  ~Candidate();
  Candidate(const Candidate&) = delete;
  Candidate& operator=(const Candidate&) = delete;

  [[nodiscard]] std::vector<Action> step(const Event& event, FenceClock::time_point now);

  [[nodiscard]] CandidateState state() const;
  /// When to pass TimeIsUp; empty if nothing is pending.
  [[nodiscard]] std::optional<FenceClock::time_point> next_deadline() const;
  /// This machine leads before this time; the epoch if it does not lead.
  [[nodiscard]] FenceClock::time_point held_until() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace ddrun::lease
