#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/coordinator.hpp"
#include "ddrun/rendezvous/hmac.hpp"

namespace ddrun::rendezvous {

struct CoordinatorServerOptions {
  /// IP addresses to listen on, all with the same port; empty: all of this machine's, of both families. A family that
  /// this machine lacks is left out as long as one address remains.
  std::vector<std::string> addresses;
  /// The first that is free on all addresses; 0 takes any.
  std::vector<std::uint16_t> ports{0};
  /// Of what agents must know; none: anybody may join (--insecure).
  std::optional<HmacKey> secret;
  /// As in RendezvousOptions, for the sentence about an agent with another one.
  std::string secret_file;
  /// Of each job. `own_addresses` is looked up if it is empty.
  CoordinatorOptions coordinator;
  /// One coordinator for each job id that agents come with, gone with its last agent; `coordinator.job_id` is ignored.
  /// Otherwise there is one job.
  bool many_jobs = false;
  /// A sentence for the user who runs the job: a peer has been turned away. A few only, then fewer and fewer of the
  /// same kind. On the server's thread: must not block.
  std::function<void(const std::string&)> on_notice;
  /// Once the only job has ended, or its coordinator has stood down, and every agent has been told. On the server's
  /// thread: must not block.
  std::function<void()> on_done;

  // With `coordinator.has_lease`; all on the server's thread, must not block.
  /// Whether the lease is held at this moment. Asked at each turn, as this process may have stood still.
  std::function<bool()> holds_lease;
  /// How the job has ended, to be recorded with the lease; then recorded() is to be called, or else is_recorded() is
  /// true when it is asked at some turn: the thread that would call may wait for a disk.
  std::function<void(const VerdictMessage&)> on_verdict;
  std::function<bool()> is_recorded;
  /// The agent in this process has left, and the lease is to be given back.
  std::function<void()> on_stepped_down;
};

/// What a server has done since it was started.
struct CoordinatorServerStats {
  std::uint64_t jobs = 0;              ///< now
  std::uint64_t agents = 0;            ///< that have joined, now
  std::uint64_t peak_agents = 0;       ///< at the same time
  std::uint64_t newcomers = 0;         ///< connections that have not joined, now
  std::uint64_t accepted = 0;          ///< connections
  std::uint64_t joined = 0;            ///< connections that have said JOIN
  std::uint64_t resumed = 0;           ///< connections that took the place of one that broke
  std::uint64_t foreign_protocol = 0;  ///< that did not speak the protocol
  std::uint64_t other_versions = 0;    ///< that spoke another version of it
  std::uint64_t wrong_secrets = 0;     ///< with another secret, or with one where none is wanted, or the other way
  std::uint64_t timed_out = 0;         ///< that had not joined in time, or hung up before
  std::uint64_t rejected = 0;          ///< for which there was no room
  std::uint64_t cut_off = 0;           ///< agents cut off for what they sent or did not read
  std::uint64_t messages_in = 0;
  std::uint64_t messages_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
};

/// The coordinator's side of the connections of lib/rendezvous/PROTOCOL.md: listens, authenticates, and carries
/// messages between agents and one Coordinator or many, on one thread of its own, called "ddrun-coord", which blocks
/// all signals and never looks up a name. All descriptors are close-on-exec. What strangers can cost is bounded
/// (PROTOCOL.md, section 1), and what they do disturbs no agent.
///
/// If the whole process was stopped for a while, time stands still for its jobs: no agent is taken for lost because
/// this side was not listening.
class CoordinatorServer {
 public:
  /// Binds here, so that a port in use is this call's error, then serves. Does not block. Errors: `unavailable` for
  /// ports in use, and when descriptors or threads run out; `invalid_argument` for an address that is none.
  static Result<std::unique_ptr<CoordinatorServer>> start(const CoordinatorServerOptions& options);

  /// Stops listening, delivers what is queued for its agents, hangs up and joins the thread. Blocks until all have hung
  /// up as well, for a second at most.
  ~CoordinatorServer();

  [[nodiscard]] std::uint16_t port() const;
  /// Where it listens: "0.0.0.0:29400", "[::]:29400".
  [[nodiscard]] std::vector<std::string> addresses() const;
  /// Blocks until the only job has ended and every agent has been told; false if that is not before the deadline.
  [[nodiscard]] bool wait_done(Deadline deadline) const;
  /// Asks the server's thread: returns when it has answered. May be called from any thread but that one.
  [[nodiscard]] CoordinatorServerStats stats() const;

  // What Coordinator promises of a coordinator with a lease. Each returns when the server's thread has done it; not
  // from that thread.
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
