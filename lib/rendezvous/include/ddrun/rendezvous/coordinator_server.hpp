#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/coordinator_options.hpp"
#include "ddrun/rendezvous/hmac.hpp"

namespace ddrun::rendezvous {

struct CoordinatorServerOptions {
  /// IP addresses to listen on, all with the same port; empty: all addresses of both families. A family that this
  /// machine lacks is skipped as long as one address remains.
  std::vector<std::string> addresses;
  /// Candidates: the first one free on all addresses is used; 0: any.
  std::vector<std::uint16_t> ports{0};
  /// The job's secret; none: no authentication (--insecure).
  std::optional<HmacKey> secret;
  /// As in RendezvousOptions; named in the notice about a mismatching secret.
  std::string secret_file;
  /// For each job. Empty `own_addresses` are filled in.
  CoordinatorOptions coordinator;
  /// One coordinator per job id, removed with its last agent; `coordinator.job_id` is ignored. Otherwise one job.
  bool many_jobs = false;
  /// A sentence for the user: a peer was rejected. Rate-limited per kind. On the server's thread; must not block.
  std::function<void(const std::string&)> on_notice;
  /// The only job has ended, or its coordinator stepped down, and every agent was notified. On the server's thread;
  /// must not block.
  std::function<void()> on_done;

  // With `coordinator.has_lease`; all on the server's thread, must not block.
  /// Whether the lease is held now. Asked in each loop iteration, since the process may have been suspended.
  std::function<bool()> holds_lease;
  /// PINGs have been sent; may be empty.
  std::function<void()> on_pings;
  /// The verdict to record with the lease. Completion: recorded() is called, or is_recorded() returns true, for a
  /// caller whose thread may be blocked by a disk.
  std::function<void(const VerdictMessage&)> on_verdict;
  std::function<bool()> is_recorded;
  /// The agent in this process has left; give the lease back.
  std::function<void()> on_stepped_down;
};

/// Counters since the start; "now" marks current values.
struct CoordinatorServerStats {
  std::uint64_t jobs = 0;              ///< now
  std::uint64_t agents = 0;            ///< joined, now
  std::uint64_t peak_agents = 0;       ///< maximum at one time
  std::uint64_t newcomers = 0;         ///< connections that have not joined, now
  std::uint64_t accepted = 0;          ///< connections
  std::uint64_t joined = 0;            ///< connections that sent JOIN
  std::uint64_t resumed = 0;           ///< connections that replaced a broken one
  std::uint64_t foreign_protocol = 0;  ///< did not speak the protocol
  std::uint64_t other_versions = 0;    ///< another version of the protocol
  std::uint64_t wrong_secrets = 0;     ///< another secret, or one side without
  std::uint64_t timed_out = 0;         ///< did not join in time, or closed before
  std::uint64_t rejected = 0;          ///< over the connection limit
  std::uint64_t warnings = 0;          ///< of the coordinators, such as agents refused for another reason
  std::uint64_t cut_off = 0;           ///< agents dropped for invalid input or unread output
  std::uint64_t messages_in = 0;
  std::uint64_t messages_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
};

/// Server side of the control protocol (lib/rendezvous/PROTOCOL.md): listens, authenticates, and carries messages
/// between agents and one or many Coordinators. Runs one thread, "ddrun-coord", which blocks all signals and never
/// resolves names. All descriptors are close-on-exec. The cost of unauthenticated connections is bounded (PROTOCOL.md,
/// section 1), and they never disturb agents.
///
/// Time during which the process was suspended does not count for its jobs: no agent is lost because this side did not
/// read.
class CoordinatorServer {
 public:
  /// Binds and starts to serve; does not block. Errors: `unavailable` for ports in use, and when descriptors or threads
  /// run out; `invalid_argument` for an invalid address.
  static Result<std::unique_ptr<CoordinatorServer>> start(const CoordinatorServerOptions& options);

  /// Stops listening, delivers queued messages, closes and joins the thread. Blocks until all peers have closed as
  /// well, at most 1 s.
  ~CoordinatorServer();

  [[nodiscard]] std::uint16_t port() const;
  /// Listening addresses: "0.0.0.0:29400", "[::]:29400".
  [[nodiscard]] std::vector<std::string> addresses() const;
  /// Blocks until the server's thread has answered. Any thread but that one.
  [[nodiscard]] CoordinatorServerStats stats() const;

  // As in Coordinator. Each blocks until the server's thread has done it; any thread but that one.
  void suspend() const;
  void lead(Term term) const;
  void step_down(const std::string& why) const;
  void recorded() const;

 private:
  class Loop;
  explicit CoordinatorServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace ddrun::rendezvous
