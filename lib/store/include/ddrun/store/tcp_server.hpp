#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::store {

struct TcpServerOptions {
  /// IP addresses to listen on, all with the same port. A family that this machine lacks is left out as long as
  /// one address remains.
  std::vector<std::string> addresses{"127.0.0.1", "::1"};
  /// 0 takes any that is free on all addresses.
  std::uint16_t port = 0;
  /// What keys, values, queues, waits and the buffers of all clients may take together, bytes; 0 for no limit. A client
  /// whose request does not fit is cut off; the others are served on.
  std::size_t max_memory = 0;
  /// Called with a sentence for the user who runs the server when a client is cut off for what it asked: limits
  /// exceeded, a sum with a text. On the server's thread: must not block. Not called for those who never spoke the
  /// protocol.
  std::function<void(const std::string&)> on_refusal;
  /// IP addresses that clients may come from; empty: any. The loopback and this machine's own addresses, as they are
  /// when the list is given, always may. Others are cut off before anything is read from them.
  std::vector<std::string> allowed_peers;
};

/// What a server has done since it was started.
struct TcpServerStats {
  std::uint64_t keys = 0;              ///< now
  std::uint64_t memory = 0;            ///< as counted for max_memory, now, bytes
  std::uint64_t peak_memory = 0;       ///< bytes; looked at after each batch of events
  std::uint64_t connections = 0;       ///< now
  std::uint64_t peak_connections = 0;  ///< at the same time
  std::uint64_t accepted = 0;          ///< connections
  std::uint64_t refused = 0;           ///< connections ended because of what they sent
  std::uint64_t rejected_peers = 0;    ///< connections ended because of where they came from; not in `accepted`
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  /// Requests carried out, by the names of docs/store.md; without those that are 0.
  std::vector<std::pair<std::string, std::uint64_t>> requests;
};

/// The worker store: serves PyTorch's TCPStore protocol, both of its dialects (docs/store.md), on one thread
/// of its own. It never looks up a name.
///
/// The thread blocks all signals, wakes up only for its clients, and is called "ddrun-store". Memory per client is
/// bounded: one request under way and one batch of replies. All descriptors are close-on-exec.
class TcpServer {
 public:
  /// Binds here, so that a port in use is this call's error (`unavailable`), then serves. Does not block.
  /// Other errors: `invalid_argument` for an address that is none, `unavailable` when descriptors or threads run out.
  static Result<std::unique_ptr<TcpServer>> start(const TcpServerOptions& options = {});

  /// Stops and joins the thread; clients are cut off.
  ~TcpServer();

  [[nodiscard]] std::uint16_t port() const;

  /// Where it listens: "127.0.0.1:29500", "[::1]:29500".
  [[nodiscard]] std::vector<std::string> addresses() const;

  /// Cuts off every client, also those not accepted yet, and forgets all keys; the port stays. Returns when that is
  /// done: a client that connects afterwards finds an empty store. May be called from any thread.
  /// Fails with `unavailable` if an address can no longer be listened on; the clients are gone all the same.
  Result<void> new_round();
  /// The same, with another list of those who may connect, as in the options; fails with `invalid_argument`, and
  /// changes nothing, if one of them is not an IP address.
  Result<void> new_round(const std::vector<std::string>& allowed_peers);

  /// Asks the server's thread: returns when it has answered. May be called from any thread.
  [[nodiscard]] TcpServerStats stats() const;

 private:
  class Loop;
  explicit TcpServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace ddrun::store
