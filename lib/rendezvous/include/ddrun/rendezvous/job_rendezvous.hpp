#pragma once

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

/// What a member of a job hears. All are called on the executor, never from within a call of JobRendezvous.
struct JobListener {
  std::function<void(Round, const RankAssignment&)> round_begins;  ///< the workers of this round may start
  std::function<void(const Stop&)> stop;                           ///< the present round is over
  std::function<void(const VerdictMessage&)> verdict;              ///< the job is over; nothing follows
  std::function<void(const std::string&)> coordinator_lost;        ///< one sentence; nothing follows
  std::function<void(const NodeReport&)> node_report;
  std::function<void(const std::string&)> event;   ///< a line of JSON
  std::function<void(const std::string&)> notice;  ///< for people, while they wait
};

struct JobRendezvousOptions {
  const LaunchSpec* spec = nullptr;  ///< borrowed
  int local_world_size = 1;
  std::string host;
  std::string version;
  /// Nothing: --insecure.
  std::optional<Secret> secret;
  /// Without it (TORCH_DISABLE_SHARE_RDZV_TCP_STORE) a worker will listen where the store would, and only a free port
  /// is looked for.
  bool with_store = true;
  /// Called in open() if the coordinator runs here: the port it listens on.
  std::function<void(std::uint16_t)> on_listening;
};

/// A job on several machines as the agent of one of them takes part in it: finds the coordinator or runs it, joins,
/// hears of rounds, says how its own part of each went, and owns the worker store while this node's rank is 0.
/// PROTOCOL.md is what it speaks. Everything but open() returns at once. One thread: the executor's.
class JobRendezvous {
 public:
  JobRendezvous(boost::asio::any_io_executor executor, JobRendezvousOptions options, JobListener listener);
  ~JobRendezvous();

  /// Finds out where the coordinator is, and starts it if it belongs here. May block while a name is looked up.
  /// Fails with `invalid_argument` if nothing says where it is, with `unavailable` if its port is taken.
  Result<void> open();

  /// Also tells by it that the agent must not end before the job.
  [[nodiscard]] bool runs_coordinator() const;
  /// The name of the job, as all agents know it.
  [[nodiscard]] const std::string& run_id() const;

  /// Asks to be a member; tries for as long as the join timeout. From here on the listener is called.
  void join();

  // What happened here. Ignored once the coordinator is lost or has spoken its verdict. With no round begun yet,
  // leaving and aborting end the wait at once.
  void failed(const Failed& failure);
  void succeeded();
  void stopped(const Stopped& stopped);
  void leave(int signal, const std::string& sender);
  void abort(const Abort& why);

  /// Breaks the connection without a word: for the others this node is lost.
  void abandon();

  /// When everything here is over: what is still on its way is delivered, and a coordinator that runs here waits until
  /// all agents know the verdict; a few seconds at the most. Then calls `done`.
  void async_close(std::function<void()> done);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddrun::rendezvous
