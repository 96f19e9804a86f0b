#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/helper/coprocess.hpp"
#include "ddrun/lease/candidate.hpp"

// Leader election of a job on several machines by a lease in an external engine, reached through a program (etcd,
// Kubernetes, Consul). A leader keeps the lease by renewing it; after it expires another machine may lead.
//
// There are never two leaders at one time: a leader counts its time to live from before it sent the renewing request,
// by a clock that includes suspend, and steps down a margin before it is over. A process that may have been suspended
// must check is_leader() before each step reserved for the leader.

namespace ddrun::lease {

/// A lease program (PROTOCOL.md). argv[0] is searched in PATH.
struct ProgramOptions {
  std::vector<std::string> argv;
  std::string name{};         ///< for messages; empty: argv[0]
  std::string environment{};  ///< one NAME=VALUE in addition to this process's environment; empty: none
  /// Called with the pid each time the program is started. On the lease's thread; may be empty.
  std::function<void(pid_t)> on_start{};
};

enum class RunOn {
  own_thread,  ///< "ddrun-lease", which never blocks: a leader whose main thread waits for a disk keeps the lease
  executor,    ///< the owner's: the lease expires while that does not run
};

/// Meaning: see Tell.
using Listener = std::function<void(const Tell&)>;

/// A machine's candidacy: runs the program of a Candidate and carries out its actions.
///
/// To be used from the executor's thread, which must be one at a time; never blocks. The listener's calls and
/// completions come there, in order, never from within a call, and none after destruction. A held lease is then not
/// given back: it expires.
class Lease {
 public:
  /// Starts nothing yet. Errors: `invalid_argument`, with a sentence for the user; `unavailable` without descriptors.
  [[nodiscard]] static Result<std::unique_ptr<Lease>> make(boost::asio::any_io_executor executor,
                                                           const LeaseOptions& options, ProgramOptions program,
                                                           Listener listener, RunOn run_on = RunOn::own_thread);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// Once. Errors: `unavailable` if no thread can be created.
  [[nodiscard]] Result<void> start();

  /// Becomes a candidate; `address` is where others reach it: opaque, at most 1 KiB, without control characters, may be
  /// empty. Again with another address: updates it.
  void campaign(std::string address);

  /// The caller knows that the leader of `term` has ended: revokes its lease now, if it still holds it, so that no
  /// machine has to wait for the expiry. Engines without this let it expire.
  void depose(std::uint64_t term);

  using Done = std::function<void(Result<void>)>;

  /// Stops leading and being a candidate. `done`, which may be empty: the lease is given back, and another machine may
  /// have it at once; or an error: it expires by itself. Within the time to live.
  void resign(Done done);

  // Thread-safe:

  /// Whether this machine leads now, by the clock.
  [[nodiscard]] bool is_leader() const { return FenceClock::now() < held_until(); }
  [[nodiscard]] FenceClock::time_point held_until() const { return held_until_.load(); }

  /// Records the job's verdict for later agents; for 24 hours in etcd. Leader only, and only once, but repeating the
  /// same text succeeds, since a response may have been lost. `done` comes no later than tell::Lost. Errors:
  /// `invalid_argument` (too long, or another verdict is recorded: do not retry), `cancelled` (not the leader),
  /// `unavailable` and, after the time to live, `timeout`: the outcome is unknown; retry.
  void record_verdict(std::string text, Done done);
  [[nodiscard]] bool has_recorded() const { return has_recorded_; }

  /// For a coordinator that has stepped down while the owner's thread may be blocked: gives the lease back after this
  /// time, unless campaign() or resign() comes first.
  void resign_after(Milliseconds time);

 private:
  struct Call {
    Done done;
    bool records;
  };
  Lease(boost::asio::any_io_executor owner, std::unique_ptr<boost::asio::io_context> context,
        const LeaseOptions& options, ProgramOptions program, Listener listener);
  void post_to_owner(std::function<void(const Listener&)> what);
  void call(Event event, std::uint64_t id = 0, Call call = {});
  void step(const Event& event);
  void await_timer();
  void arm_timer();
  [[nodiscard]] std::optional<std::string> start_program();

  // Of the owner.
  boost::asio::any_io_executor owner_;
  std::shared_ptr<const Listener> listener_;  ///< reset in the destructor

  const std::weak_ptr<const Listener> alive_ = listener_;
  std::atomic<FenceClock::time_point> held_until_{FenceClock::time_point{}};
  std::atomic<bool> has_recorded_ = false;
  std::atomic<std::uint64_t> last_id_ = 0;

  // Of the lease's thread.
  std::unique_ptr<boost::asio::io_context> context_;  ///< none: it runs on the owner's
  boost::asio::any_io_executor executor_;
  ProgramOptions program_;
  Candidate candidate_;
  boost::asio::posix::stream_descriptor timer_;
  std::unique_ptr<helper::Coprocess> coprocess_;
  std::map<std::uint64_t, Call> calls_;  ///< by id

  std::thread thread_;
};

}  // namespace ddrun::lease
