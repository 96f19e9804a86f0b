#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/lease/candidate.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/store/tcp_server.hpp"

namespace ddrun::rendezvous {

/// When workers of this machine have ended, whatever becomes of this process.
struct WorkersUntil {
  enum class Kind {
    unbounded,  ///< none run, or no other machine begins a round without them
    time,       ///< `at`
    lead,       ///< the last RendezvousOptions::on_leads_until
  };
  Kind kind = Kind::unbounded;
  Clock::time_point at{};
  Milliseconds heartbeat{0};  ///< interval
};

struct RendezvousOptions {
  const LaunchSpec* spec = nullptr;  ///< borrowed
  int local_world_size = 1;
  std::string mpi;        ///< what is served to MPI programs, "pmi", "pmix" or "pmi+pmix"; the same on all machines
  std::string host;       ///< label of this machine until the coordinator assigns one
  std::string full_host;  ///< from the kernel
  std::string version;
  /// For several machines; none: --insecure.
  std::optional<Secret> secret;
  std::string secret_file;  ///< source of the secret; empty: not from a file
  /// For each world of workers; one on several machines. False (TORCH_DISABLE_SHARE_RDZV_TCP_STORE): a worker listens
  /// instead; only a free port is chosen.
  std::vector<bool> with_store{true};
  /// Called in open() with the port of a coordinator that runs here and is reachable by others.
  std::function<void(std::uint16_t)> on_listening;
  /// Pid of the lease program, which must outlive this process for a moment if that is killed. On another thread; may
  /// be empty.
  std::function<void(pid_t)> on_lease_program;
  /// Kills this node's workers once; true if there were any. For an agent whose main thread is blocked while the job
  /// goes on without it. On another thread, must not block; may be empty.
  std::function<bool()> kill_workers;
  /// Until when this node's workers have ended by kill_workers, unless it is called again; on another thread, must not
  /// block; may be empty.
  std::function<void(const WorkersUntil&)> on_workers_until;
  /// With a lease: until when a coordinator here keeps other machines from the next round, by CLOCK_BOOTTIME.
  std::function<void(lease::FenceClock::time_point)> on_leads_until;
};

/// Membership of one agent in a job: joins, receives rounds, reports its own results, and owns the worker store while
/// its node rank is 0. Only open() may block. Use from the executor's thread only.
class Rendezvous {
 public:
  Rendezvous() = default;
  virtual ~Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Locates the coordinator and starts it if it is local; on one machine opens the worker store. May block while a
  /// name is resolved. Errors: `invalid_argument` for a missing or invalid endpoint, `unavailable` if the port is in
  /// use.
  virtual Result<void> open() = 0;

  /// If true, the agent must not end before the job.
  [[nodiscard]] virtual bool runs_coordinator() const = 0;
  /// The job's id, the same on all agents.
  [[nodiscard]] virtual const std::string& run_id() const = 0;

  /// What a member without a round waits for: "waiting for 1 more node; 1 of 2 is there"; empty: not known.
  [[nodiscard]] virtual std::string describe_wait() const = 0;

  /// One machine, after open(): the port of each world's store; the first is RankAssignment::master_port.
  [[nodiscard]] virtual std::vector<int> store_ports() const { return {}; }

  /// What clients of the worker stores of this machine wait for. Blocks until their threads have replied.
  [[nodiscard]] virtual std::vector<store::TcpServerWait> store_waits() const { return {}; }

  /// One machine: the workers have stores, and none has ever connected to one.
  [[nodiscard]] virtual bool are_stores_unused() const { return false; }

  /// Starts to join, for at most the join timeout. The listener's calls begin here.
  virtual void join() = 0;

  /// A result of this node, for its current round. Ignored after CoordinatorLost or the verdict. Before the first
  /// round, Leave ends the wait at once. PassSignal: SIGUSR1 or SIGUSR2 for the workers of all machines,
  /// including this one.
  virtual void send(const FromAgent& message) = 0;

  /// The agent cannot continue and sends nothing more: on several machines the connection is closed, and this node
  /// counts as lost.
  virtual void abandon(const std::string& why) = 0;

  /// Ctrl-Z: a coordinator of this machine alone does not count the time while paused.
  virtual void set_paused(bool paused) = 0;

  /// Delivers what is queued; a coordinator here waits until all agents have the verdict; a few seconds at most. Then
  /// calls `done`.
  virtual void async_close(std::function<void()> done) = 0;
};

/// Called on the executor, never from within a call of Rendezvous.
using RendezvousListener = std::function<void(const ToAgent&)>;

/// The implementation for `options.spec`: one machine, or several.
[[nodiscard]] std::shared_ptr<Rendezvous> make_rendezvous(boost::asio::any_io_executor executor,
                                                          RendezvousOptions options, RendezvousListener listener);

}  // namespace ddrun::rendezvous
