#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// What a member of a job hears. All are called on the executor; on one machine also from within a call that says
/// something, on several machines never.
struct RendezvousListener {
  std::function<void(Round, const RankAssignment&)> round_begins;  ///< the workers of this round may start
  std::function<void(const Stop&)> stop;                           ///< the present round is over
  std::function<void(const VerdictMessage&)> verdict;              ///< the job is over; nothing follows
  std::function<void(const std::string&)> coordinator_lost;        ///< one sentence; nothing follows
  std::function<void(const NodeReport&)> node_report;
  std::function<void(const std::string&)> event;   ///< a line of JSON
  std::function<void(const std::string&)> notice;  ///< for people, while they wait
  std::function<void(int)> signal;                 ///< for the workers of the present round: pass_signal()
};

struct RendezvousOptions {
  const LaunchSpec* spec = nullptr;  ///< borrowed
  int local_world_size = 1;
  std::string host;       ///< label of this machine, until the coordinator gives another
  std::string full_host;  ///< as the kernel has it
  std::string version;
  /// Several machines; nothing: --insecure.
  std::optional<Secret> secret;
  std::string secret_file;  ///< where it is from; empty: from no file
  /// Without it (TORCH_DISABLE_SHARE_RDZV_TCP_STORE) a worker will listen where the store would, and only a free port
  /// is looked for.
  bool with_store = true;
  /// Called in open() if a coordinator that others reach runs here: the port it listens on.
  std::function<void(std::uint16_t)> on_listening;
  /// The process of the program that knows who leads: it is to outlive this one for a moment, if this one is killed. On
  /// another thread; may be empty.
  std::function<void(pid_t)> on_lease_program;
  /// Kills this node's workers, once; true if there was one. For an agent whose main thread waits for a disk while the
  /// job goes on without it. On another thread, must not block; may be empty.
  std::function<bool()> kill_workers;
};

/// A job as the agent of one machine takes part in it: joins, hears of rounds, says how its own part of each went, and
/// owns the worker store while this node's rank is 0. Everything but open() returns at once. One thread: the
/// executor's.
class Rendezvous {
 public:
  Rendezvous() = default;
  virtual ~Rendezvous() = default;
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Finds out where the coordinator is, and starts it if it belongs here; on one machine opens the worker store. May
  /// block while a name is looked up. Fails with `invalid_argument` if nothing says where, or for an endpoint that
  /// cannot be meant, with `unavailable` if the port is taken.
  virtual Result<void> open() = 0;

  /// Also tells by it that the agent must not end before the job.
  [[nodiscard]] virtual bool runs_coordinator() const = 0;
  /// The name of the job, as all agents know it.
  [[nodiscard]] virtual const std::string& run_id() const = 0;

  /// Asks to be a member; tries for as long as the join timeout. From here on the listener is called.
  virtual void join() = 0;

  // What happened here. Ignored once the coordinator is lost or has spoken its verdict. With no round begun yet,
  // leaving and aborting end the wait at once.
  virtual void failed(const Failed& failure) = 0;
  virtual void succeeded() = 0;
  virtual void stopped(const Stopped& stopped) = 0;
  virtual void leave(const Leave& why) = 0;
  virtual void abort(const Abort& why) = 0;

  /// SIGUSR1 or SIGUSR2 for the workers of all machines, those here among them: each agent's listener hears of it.
  virtual void pass_signal(int signal) = 0;

  /// The agent cannot go on and says no more: on several machines this breaks the connection, and for the others this
  /// node is lost.
  virtual void abandon(const std::string& why) = 0;

  /// Ctrl-Z: while it stands still no time passes for a coordinator that only this machine has.
  virtual void stand_still(bool still) = 0;

  /// When everything here is over: what is still on its way is delivered, and a coordinator that runs here waits until
  /// all agents know the verdict; a few seconds at the most. Then calls `done`.
  virtual void async_close(std::function<void()> done) = 0;
};

/// The one that suits `options.spec`: of one machine, or of several. Another way to meet is a class and a row in
/// rendezvous.cpp.
[[nodiscard]] std::shared_ptr<Rendezvous> make_rendezvous(boost::asio::any_io_executor executor,
                                                          RendezvousOptions options, RendezvousListener listener);

}  // namespace ddrun::rendezvous
