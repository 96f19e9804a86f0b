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
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

struct AgentLinkOptions {
  /// Where the coordinator may be, tried in turn, again and again. Names are looked up each time.
  std::vector<Endpoint> coordinators;
  /// Of the job's secret; none: without (--insecure).
  std::optional<HmacKey> secret;
  /// As in RendezvousOptions, for the sentence about a coordinator with another one.
  std::string secret_file;
  /// What is said first.
  Join join;
  /// Until when the coordinator must have answered it.
  Deadline connect_by = Deadline::max();
  /// How long one that has greeted may take to answer it; then the next address is tried.
  Milliseconds join_reply_timeout{10'000};
  /// How long it is tried again after RefusalKind::taken.
  Milliseconds conflict_timeout{6'000};
  /// It runs in this very process: while that stands still nothing is heard from it, and it is not lost for that.
  bool is_local = false;
  /// It has been there a moment ago: where nobody listens any more, it is gone and not late.
  bool was_reachable = false;
  /// As in RendezvousOptions, where the owner's thread has not stopped the workers `grace` after it had to; by the
  /// link's thread.
  std::function<bool()> kill_workers;
  Milliseconds grace{0};
  /// An IP address of this machine to come from; empty: the system chooses.
  std::string local_address;
};

/// Why a link is at its end.
struct LinkLoss {
  Error error;               ///< a sentence for the user that names the coordinator and says what to do
  bool unreachable = false;  ///< a connection that was there is gone, and the coordinator may well live
};

struct AgentLinkCallbacks {
  /// What the coordinator says, in order, but for what is about the connection, which is answered here.
  std::function<void(const FromCoordinator&)> on_message;
  /// Once, and nothing after it: the coordinator could not be reached in time, does not let this agent in, is gone or
  /// silent. A connection to one that is silent stays until the link is destroyed: its end would tell the coordinator
  /// that this agent's workers are gone.
  std::function<void(const LinkLoss&)> on_lost;
  /// Why an attempt has come to nothing; there will be another. May be empty.
  std::function<void(const std::string&)> on_retry;
  /// While it is looked for: no process listens where it may be, and has not for half a second. Again and again; may be
  /// empty.
  std::function<void()> on_not_listening;
  /// The name of a candidate has these addresses now, and will be tried there. May be empty.
  std::function<void(const std::vector<std::string>&)> on_resolved;
};

/// An agent's connection to its coordinator (lib/rendezvous/PROTOCOL.md): finds it, greets it, says JOIN, carries
/// messages, answers PING, makes a connection that broke again, and notices when nothing is heard any more. All this
/// happens on a thread of its own, "ddrun-link", which does nothing that can block: an agent whose main thread waits
/// for a disk is not taken for a lost one. The coordinator is told how long that thread has not come round.
///
/// Used from one thread, that of the executor: all callbacks come there, never from within a call; a callback may
/// destroy the link. Nothing here blocks; names are looked up by a child process.
class AgentLink {
 public:
  /// Does nothing before `start`. The executor's context must outlive the link.
  AgentLink(boost::asio::any_io_executor executor, AgentLinkOptions options, AgentLinkCallbacks callbacks);
  /// Hangs up at once. No callback comes any more.
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  /// Once. Fails with `unavailable` if the system has no thread to give.
  Result<void> start();

  /// Queues a message, which waits until the coordinator has answered JOIN. After the end of the link it is dropped.
  void send(FromAgent message);

  /// Hangs up in order: what is queued is delivered first. `on_closed` comes when the coordinator has taken it and hung
  /// up as well, or when `patience` is over; no other callback comes any more.
  void close(std::function<void()> on_closed, Milliseconds timeout = Milliseconds(1'000));

 private:
  class Connection;
  struct Owner;
  std::shared_ptr<Owner> owner_;
  std::unique_ptr<boost::asio::io_context> context_;
  std::shared_ptr<Connection> connection_;
  std::thread thread_;
};

}  // namespace ddrun::rendezvous
