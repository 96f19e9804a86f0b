#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

// Leader election of a job on several machines by a lease in an external engine: through a program (program_lease.hpp;
// etcd, Kubernetes, Consul). A leader keeps the lease by renewing it; after it expires
// another machine may lead.
//
// There are never two leaders at one time: a leader counts its time to live from before it sent the renewing request,
// by a clock that includes suspend, and steps down a margin before it is over. A process that may have been suspended
// must check is_leader() before each step reserved for the leader.

namespace ddrun::lease {

struct Leader {
  std::uint64_t term;   ///< rises with each leader of the job; constant while one leads
  std::string address;  ///< as announced; empty: not announced yet
  bool is_self;
  bool operator==(const Leader&) const = default;
};

/// All are called on the executor, never from within a call of Lease. Each may be empty.
struct Callbacks {
  /// The leader, or its address, is known or has changed.
  std::function<void(const Leader&)> on_leader;
  /// The other machine reported by on_leader no longer leads. Candidates try by themselves.
  std::function<void()> on_no_leader;
  /// This machine led, and must not act as leader from now on: the lease could not be renewed in time, is gone, or
  /// another machine has it. Called before the engine may give it to another, unless it was revoked by hand. A
  /// candidate remains one, and may lead again with a new term. Not called for resign().
  std::function<void(std::string_view why)> on_lost;
  /// The job has a recorded verdict. No candidate becomes leader until the record is deleted; a current leader
  /// continues.
  std::function<void(std::string_view text)> on_verdict;
  /// For the user: the engine is unreachable, or works again. Once per change.
  std::function<void(std::string_view text)> on_status;
  /// The configuration is unusable, and never worked: wrong password, no etcd, program not found. No callback follows.
  std::function<void(const Error& error)> on_unusable;
};

inline constexpr Milliseconds min_ttl{2000};
/// Of a recorded verdict: engines limit the size of a value.
inline constexpr std::size_t max_verdict_bytes = 16 * 1024;

struct LeaseOptions {
  std::string job;  ///< unique per job and equal on its machines; any text
  /// Another machine may lead after this time without renewal; whole seconds, min_ttl at least. Below 4 s the lease is
  /// lost, for a short time, whenever etcd elects a leader among its members, which takes 1 to 2 s.
  Milliseconds ttl{5000};
};

/// Checks common to all engines. Errors: `invalid_argument`, with a sentence for the user.
[[nodiscard]] Result<void> check_options(const LeaseOptions& options);

/// A machine's candidacy. Use on the executor only, which must run one thread at a time; never blocks. Destruction
/// stops all callbacks, and a held lease expires.
class Lease {
 public:
  virtual ~Lease() = default;

  /// Starts the callbacks. Once.
  virtual void start() = 0;

  /// Becomes a candidate; `address` is where others reach it: opaque, at most 1 KiB, without control characters, may be
  /// empty. Again with another address: updates it.
  virtual void campaign(std::string address) = 0;

  /// Whether this machine leads now, by the clock. Thread-safe.
  [[nodiscard]] virtual bool is_leader() const = 0;

  /// The caller knows that the leader of `term` has ended: revokes its lease now, if it still holds it, so that no
  /// machine has to wait for the expiry. Engines without this let it expire.
  virtual void depose(std::uint64_t term) = 0;

  using Done = std::function<void(Result<void>)>;

  /// Stops leading and being a candidate. `done`: the lease is given back, and another machine may have it at once; or
  /// an error: it expires by itself. Within the time to live.
  virtual void resign(Done done) = 0;

  /// Records the job's verdict for later agents; for 24 hours in etcd. Leader only, and only once, but repeating the
  /// same text succeeds, since a response may have been lost. `done` comes no later than on_lost. Errors:
  /// `invalid_argument` (too long, or another verdict is recorded: do not retry), `cancelled` (not the leader),
  /// `unavailable` and, after the time to live, `timeout`: the outcome is unknown; retry.
  virtual void record_verdict(std::string text, Done done) = 0;
};

/// Any bytes as one word: letters, digits and `-._` unchanged, others as %XX; "%" for no bytes. Safe as part of an etcd
/// key, as a word of a line, and in JSON. A bijection: decoding rejects other encodings.
[[nodiscard]] std::string percent_encode(std::string_view text);
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view word);

}  // namespace ddrun::lease
