#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

// Who leads a job on several machines, decided by an engine that exists: by a program that asks one (program_lease.hpp;
// etcd, Kubernetes, Consul), or by etcd within this process (lib/etcd). A leader holds a lease for so long as it renews
// it; when it does not, another may have it.
//
// Whatever fails, there are never two leaders at one time, by this rule: a leader counts its time to live from before
// it sent the request that renewed its lease, by a clock that goes on while the machine sleeps, and steps down a margin
// before that time is over. What it did until then happened while nobody else could lead. So one that was stopped must
// ask leads() before each step that only a leader may take.

namespace ddrun::lease {

struct Leader {
  std::uint64_t term;   ///< rises with each leader of the job; the same while one leads
  std::string address;  ///< as it announced itself; empty if it has not said where it is yet
  bool is_self;
  bool operator==(const Leader&) const = default;
};

/// All are called on the executor, never from within a call of Lease. Those that are empty are not missed.
struct Callbacks {
  /// Who leads, or where it is, is known or has changed.
  std::function<void(const Leader&)> on_leader;
  /// Who was told of by on_leader, and was another, leads no more. A candidate tries by itself.
  std::function<void()> on_no_leader;
  /// I led, and may not act as the leader from now on: the lease could not be renewed in time, is gone, or another has
  /// it. Called before the engine may give it to another, unless it was taken away by hand. A candidate remains one: it
  /// may lead again, with a new term, as soon as the engine is back. Not called for what resign() brings about.
  std::function<void(std::string_view why)> on_lost;
  /// The job has a recorded verdict. No candidate of it leads again until that record is gone; one that leads goes on.
  std::function<void(std::string_view text)> on_verdict;
  /// For people: the engine cannot be reached, or is well again. Once per change.
  std::function<void(std::string_view text)> on_status;
  /// What was given cannot work, and was never seen to: a wrong password, no etcd, a program that does not start.
  /// Nothing follows.
  std::function<void(const Error& error)> on_unusable;
};

inline constexpr Milliseconds min_ttl{2000};
/// Of a verdict. It stays in the engine, where there is no room for more.
inline constexpr std::size_t max_verdict_bytes = 16 * 1024;

struct LeaseOptions {
  std::string job;  ///< any text that is the same on all machines of a job, and no other job's
  /// After so long without renewal another may lead; whole seconds, shortest_ttl at least. Below 4 s it is lost when
  /// etcd has to elect a leader among its own members, which takes 1 to 2 s there, and soon had again.
  Milliseconds ttl{5000};
};

/// What holds for each engine. Errors: `invalid_argument`, with a sentence that says what is wrong.
[[nodiscard]] Result<void> check_options(const LeaseOptions& options);

/// One machine's part in it. All calls on the executor, which must run one thread at a time. None blocks. Dropping it
/// ends all at once: nothing is called any more, and a lease that it holds runs out.
class Lease {
 public:
  virtual ~Lease() = default;

  /// From now on callbacks tell who leads. Once.
  virtual void start() = 0;

  /// I want to lead, and am to be found at `address`, an opaque text of at most 1 KiB without control characters, which
  /// may be empty. With another address: where I am has changed.
  virtual void campaign(std::string address) = 0;

  /// Whether I lead at this moment, by the clock. By any thread.
  [[nodiscard]] virtual bool is_leader() const = 0;

  /// Who leads in `term` has ended, as the caller knows: if it still has the lease, it is taken from it now, and others
  /// need not wait until it runs out. Callbacks tell what becomes of it. An engine that cannot lets it run out.
  virtual void depose(std::uint64_t term) = 0;

  using Done = std::function<void(Result<void>)>;

  /// I do not lead from now on, and do not want to. `done`: the lease is given back, and another may have it at once;
  /// or an error, then it runs out by itself. Not later than the time to live.
  virtual void resign(Done done) = 0;

  /// Says how the job has ended, for those who come later; for 24 hours in etcd. Only the leader can, and only once:
  /// the same text again is well, for it may have been recorded by a request whose answer was lost. `done` comes no
  /// later than on_lost. Errors: `invalid_argument` (too long, or the job has another verdict: to ask again cannot
  /// help), `cancelled` (I do not lead), `unavailable` and, after the time to live, `timeout`: it is not known to be
  /// recorded, and may be all the same; to be asked again.
  virtual void record_verdict(std::string text, Done done) = 0;
};

/// Any bytes as one word: letters, digits and `-._` as they are, others as %XX; "%" for no bytes. Fit for a key of
/// etcd, for a word of a line, and for JSON as it is. Each text has its own, and no other word is one.
[[nodiscard]] std::string percent_encode(std::string_view text);
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view word);

}  // namespace ddrun::lease
