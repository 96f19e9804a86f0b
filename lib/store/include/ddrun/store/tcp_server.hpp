#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::store {

struct TcpServerOptions {
  /// IP addresses to listen on, all with the same port. A family that this machine lacks is left out as long as
  /// one address remains.
  std::vector<std::string> addresses{"127.0.0.1", "::1"};
  /// 0 takes any that is free on all addresses.
  std::uint16_t port = 0;
};

/// The worker store: serves PyTorch's TCPStore protocol (PROTOCOL.md) on one thread of its own.
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

  /// Cuts off every client, also those not accepted yet, and forgets all keys; the port stays. Returns when that is
  /// done: whoever connects afterwards meets an empty store. May be called from any thread.
  /// Fails with `unavailable` if an address can no longer be listened on; the clients are gone all the same.
  Result<void> new_round();

 private:
  class Loop;
  explicit TcpServer(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace ddrun::store
