#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

struct AgentLinkOptions {
  /// Where the coordinator may be, tried in turn, again and again. Names are looked up each time.
  std::vector<Endpoint> coordinators;
  /// The job's secret; none: without (--insecure). Copied, in a form that cannot be turned back.
  std::optional<std::string_view> secret;
  /// What is said first.
  Join join;
  /// Until when the coordinator must have answered it.
  Deadline connect_by = Deadline::max();
  /// An IP address of this machine to come from; empty: the system chooses.
  std::string local_address;
};

struct AgentLinkCallbacks {
  /// What the coordinator says, in order, but for PING, which is answered here.
  std::function<void(const FromCoordinator&)> on_message;
  /// Once, and nothing after it: the coordinator could not be reached in time, does not let this agent in, is gone or
  /// silent. A sentence for the user that names it and says what to do.
  std::function<void(const Error&)> on_lost;
  /// Why an attempt has come to nothing; there will be another. May be empty.
  std::function<void(const std::string&)> on_retry;
};

/// An agent's connection to its coordinator (lib/rendezvous/PROTOCOL.md): finds it, greets it, says JOIN, carries
/// messages, answers PING, and notices when nothing is heard any more. All callbacks come on the executor, never from
/// within a call; a callback may destroy the link. Not for several threads. Nothing here blocks; names are looked up by
/// a child process.
class AgentLink {
 public:
  /// Does nothing before `start`.
  AgentLink(boost::asio::any_io_executor executor, AgentLinkOptions options, AgentLinkCallbacks callbacks);
  /// Hangs up at once. No callback comes any more.
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  void start();

  /// Queues a message, which waits until the coordinator has answered JOIN. After the end of the link it is dropped.
  void send(FromAgent message);

  /// Hangs up in order: what is queued is delivered first. `on_closed` comes when the coordinator has taken it and hung
  /// up as well, or when `patience` is over; no other callback comes any more.
  void close(std::function<void()> on_closed, Milliseconds patience = Milliseconds(1'000));

  /// While there is a connection: which addresses it goes between ("10.0.0.7"), and the coordinator as the user named
  /// it
  /// ("node0:29400"); otherwise empty.
  [[nodiscard]] std::string local_address() const;
  [[nodiscard]] std::string peer_address() const;
  [[nodiscard]] std::string coordinator() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddrun::rendezvous
