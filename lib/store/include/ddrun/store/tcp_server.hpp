#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::store {

struct TcpServerOptions {
  /// IP addresses to listen on, all with the same port. An address family that this machine lacks is skipped as long as
  /// one address remains.
  std::vector<std::string> addresses{"127.0.0.1", "::1"};
  /// 0: a port that is free on all addresses.
  std::uint16_t port = 0;
  /// Limit for keys, values, queues, waits and the buffers of all clients together, bytes; 0: none. A client whose
  /// request exceeds it is disconnected; the others are served on.
  std::size_t max_memory = 0;
  /// Called with a message for the server's log when a client is disconnected because of a request (a limit exceeded, a
  /// sum with a text) or of its address. On the server's thread: must not block. Not called for peers that never spoke
  /// the protocol.
  std::function<void(const std::string&)> on_refusal;
  /// IP addresses of permitted clients; empty: all. The loopback, and this machine's addresses at the time of the call,
  /// are always permitted. Others are disconnected before any byte is read.
  std::vector<std::string> allowed_peers;
};

/// Counters of a server since its start.
struct TcpServerStats {
  std::uint64_t keys = 0;              ///< now
  std::uint64_t memory = 0;            ///< as counted for max_memory, now, bytes
  std::uint64_t peak_memory = 0;       ///< bytes; measured after each batch of events
  std::uint64_t connections = 0;       ///< now
  std::uint64_t peak_connections = 0;  ///< at the same time
  std::uint64_t accepted = 0;          ///< connections
  std::uint64_t refused = 0;           ///< connections closed because of an invalid request
  std::uint64_t rejected_peers = 0;    ///< connections closed because of their address; not in `accepted`
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  /// Executed requests, by the names of docs/store.md; without those that are 0.
  std::vector<std::pair<std::string, std::uint64_t>> requests;
};

/// Clients that wait for the same keys, queues or barriers.
struct TcpServerWait {
  std::vector<std::string> keys;     ///< the first that are missing; of long ones the beginning
  std::size_t keys_left_out = 0;     ///< further ones
  std::vector<std::string> clients;  ///< addresses: "10.0.0.2:41234"
  Clock::time_point since;           ///< of the one that has waited longest
};

/// The worker store: serves PyTorch's TCPStore protocol in both dialects (docs/store.md), on a separate
/// thread. It never looks up a name.
///
/// The thread blocks all signals, wakes up only for its clients, and is called "ddrun-store". Memory per client is
/// bounded: one request and one batch of replies. All descriptors are close-on-exec. May be used from any thread once
/// its own runs, before that from one.
class TcpServer {
 public:
  /// Binds; clients wait for serve(). Does not block. Errors: `unavailable` for a port in use, or when descriptors run
  /// out, `invalid_argument` for a text that is no address.
  static Result<std::unique_ptr<TcpServer>> listen(const TcpServerOptions& options = {});
  /// Starts the thread, once. Fails with `unavailable` when threads run out.
  Result<void> serve();
  /// Before serve(): becomes readable when a client waits; borrowed.
  [[nodiscard]] int descriptor() const;
  /// listen() and serve().
  static Result<std::unique_ptr<TcpServer>> start(const TcpServerOptions& options = {});

  /// Disconnects all clients, stops and joins the thread.
  ~TcpServer();

  [[nodiscard]] std::uint16_t port() const;

  /// The addresses it listens on: "127.0.0.1:29500", "[::1]:29500".
  [[nodiscard]] std::vector<std::string> addresses() const;

  /// Disconnects every client, also those not accepted yet, and deletes all keys; the port stays. Blocks until that is
  /// done: a client that connects afterwards finds an empty store. Fails with `unavailable` if an address can no longer
  /// be listened on; the clients are disconnected all the same.
  Result<void> new_round();
  /// The same, with another TcpServerOptions::allowed_peers; fails with `invalid_argument`, and changes nothing, if one
  /// of them is not an IP address.
  Result<void> new_round(const std::vector<std::string>& allowed_peers);

  /// Blocks until the server's thread has replied.
  [[nodiscard]] TcpServerStats stats() const;
  /// Of at most 4,096 clients. Blocks as stats() does.
  [[nodiscard]] std::vector<TcpServerWait> waits() const;

 private:
  class Loop;
  explicit TcpServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace ddrun::store
