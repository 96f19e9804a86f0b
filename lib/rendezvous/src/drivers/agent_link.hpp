#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "dialer.hpp"

namespace ddrun::rendezvous {

struct AgentLinkOptions : DialerOptions {
  /// The job's secret; none: no authentication (--insecure).
  std::optional<HmacKey> secret;

  // Called on the link's thread, even while the owner's is blocked; must not block.
  /// This node's workers have to end: the other members do not wait longer than the grace time from `since`.
  std::function<void(Grace, Clock::time_point since)> on_stop_order = [](Grace, Clock::time_point) {};
  /// Called each time one of them changes: workers run, and see Dialer::loses_sight_at().
  std::function<void(bool run, std::optional<Clock::time_point> loses_sight_at, Milliseconds heartbeat)> on_workers =
      [](bool, std::optional<Clock::time_point>, Milliseconds) {};
  /// The owner has sent STOPPED.
  std::function<void()> on_workers_stopped = [] {};
  /// For how long the owner's thread has been blocked, for PONG.
  std::function<Milliseconds()> stalled = [] { return Milliseconds{0}; };
};

struct AgentLinkCallbacks {
  /// Messages of the coordinator in order, without those that concern the connection.
  std::function<void(const FromCoordinator&)> on_message;
  /// Called once, as the last callback: the coordinator was not reached in time, refused this agent, ended or fell
  /// silent. In the last case the connection stays open until the link is destroyed: closing it would tell the
  /// coordinator that this agent's workers have ended.
  std::function<void(const LinkLoss&)> on_lost;
  /// Why an attempt failed; another one follows. May be empty.
  std::function<void(const std::string&)> on_retry;
  /// Connections have been refused at all candidates for half a second. Repeated with each pass; may be empty.
  std::function<void()> on_not_listening;
  /// Addresses found for a candidate's name, tried next. May be empty.
  std::function<void(const std::vector<std::string>&)> on_resolved;
  /// Given to close().
  std::function<void()> on_closed;
};

/// An agent's connection to its coordinator (lib/rendezvous/PROTOCOL.md): locates it, authenticates, sends JOIN,
/// carries messages, answers PING, resumes a broken connection and detects silence. All this runs on the thread
/// "ddrun-link", which never blocks, so an agent whose main thread waits for a disk stays a member.
///
/// To be used from the executor's thread. Callbacks come there, never from within a call, and may destroy the link.
/// Nothing blocks; a child process resolves names.
class AgentLink {
 public:
  /// Idle before `start`. The executor's context must outlive the link. `context`: a new one, for the link's thread.
  AgentLink(boost::asio::any_io_executor executor, std::unique_ptr<boost::asio::io_context> context,
            AgentLinkOptions options, AgentLinkCallbacks callbacks);
  /// Closes the connection at once; no callback follows.
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  /// Once. Errors: `unavailable` if no thread can be created.
  Result<void> start();

  /// Queues a message; it is sent once the coordinator has accepted JOIN, and dropped after the link's end.
  void send(FromAgent message);

  /// The workers have to end after their whole grace, as if the coordinator had ordered that.
  void order_stop();

  /// Closes after delivering what is queued. `on_closed` comes when the coordinator has closed too, or after `timeout`;
  /// no other callback follows.
  void close(std::function<void()> on_closed, Milliseconds timeout = Milliseconds(1'000));

 private:
  class Connection;
  std::shared_ptr<AgentLinkCallbacks> callbacks_;  ///< used on the owner's thread only
  std::unique_ptr<boost::asio::io_context> context_;
  std::shared_ptr<Connection> connection_;
  std::thread thread_;
};

/// Sets `link.stalled`, by how long the thread of `executor` has not run a probe, and kills this node's workers if that
/// thread, which was ordered to stop them, has not done so in time. For a link on `context`; `kill_workers` as in
/// RendezvousOptions.
void serve_blocked_owner(AgentLinkOptions& link, boost::asio::io_context& context,
                         const boost::asio::any_io_executor& executor, std::function<bool()> kill_workers,
                         Milliseconds grace, Milliseconds lost_sight_grace);

}  // namespace ddrun::rendezvous
