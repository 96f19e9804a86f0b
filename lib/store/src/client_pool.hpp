#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client_connection.hpp"
#include "ddrun/store/tcp_client.hpp"

namespace ddrun::store {

/// The connections, and which thread has which.
///
/// There is one until a second thread comes while the first one is blocked in a wait. At most one connection has
/// requests that the server may not have seen yet, and it is handed out first; so whatever is called later comes later
/// at the server too.
class TcpClient::Pool {
 public:
  Pool(std::unique_ptr<ClientConnection> first, UniqueFd cancel_event, const TcpClientOptions& options)
      : server_(first->server()), name_(first->name()), options_(options), cancel_event_(std::move(cancel_event)) {
    idle_.push_back(std::move(first));
    open_ = 1;
  }

  /// A connection for one thread; goes back when it ends.
  class Lease {
   public:
    Lease(Pool& pool, std::unique_ptr<ClientConnection> connection)
        : pool_(&pool), connection_(std::move(connection)) {}
    Lease(Lease&& other) noexcept
        : pool_(other.pool_),
          connection_(std::move(other.connection_)),
          blocked_(std::exchange(other.blocked_, false)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (connection_) pool_->give_back(std::move(connection_), blocked_);
    }
    ClientConnection* operator->() const { return connection_.get(); }

    /// Before a request whose answer may take long: others need not wait for this connection.
    Result<void> block(Deadline deadline) {
      if (pool_->shared() && connection_->unconfirmed()) {
        if (auto ok = connection_->confirm(deadline); !ok) return ok;
      }
      blocked_ = true;
      pool_->set_blocked(1);
      return {};
    }
    void unblock() {
      if (std::exchange(blocked_, false)) pool_->set_blocked(-1);
    }

   private:
    Pool* pool_;
    std::unique_ptr<ClientConnection> connection_;
    bool blocked_ = false;
  };
  Result<Lease> take(Deadline deadline);

  template <class Call>
  auto once(Deadline deadline, Call& call) -> decltype(call(std::declval<Lease&>())) {
    auto lease = take(deadline);
    if (!lease) return tl::unexpected(std::move(lease.error()));
    return call(*lease);
  }

  /// Runs `call` with a Lease until it succeeds or fails for good.
  template <class Call>
  auto run(Deadline deadline, bool repeatable, Call call) -> decltype(call(std::declval<Lease&>())) {
    // A server that hangs up each time, because of this very request perhaps, is not besieged.
    std::chrono::milliseconds pause{1};
    for (;; pause = std::min(2 * pause, std::chrono::milliseconds(500))) {
      auto result = once(deadline, call);
      const bool again = !result && result.error().code == Errc::connection_lost && repeatable &&
                         options_.reconnect == Reconnect::on_next_call && Clock::now() + pause < deadline;
      if (!again || !sleep(Clock::now() + pause)) return result;
    }
  }

  /// For requests without an answer.
  Result<void> send(Lease& lease, Deadline deadline) const {
    return options_.reconnect == Reconnect::never ? lease->send(deadline) : lease->send_confirmed(deadline);
  }

  void cancel() noexcept {
    cancelled_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    // Never read again: whoever looks at it from now on finds it readable.
    while (::write(cancel_event_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  /// False if cancelled meanwhile.
  [[nodiscard]] bool sleep(Deadline until) const { return sleep_until(until, cancel_event_.get()); }

  [[nodiscard]] const SocketAddress& server() const { return server_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const TcpClientOptions& options() const { return options_; }

 private:
  void give_back(std::unique_ptr<ClientConnection> connection, bool blocked);
  void set_blocked(int change);
  [[nodiscard]] bool shared() {
    const std::lock_guard lock(mutex_);
    return shared_;
  }
  std::unique_ptr<ClientConnection> next_idle();

  const SocketAddress server_;
  const std::string name_;
  const TcpClientOptions options_;
  const UniqueFd cancel_event_;
  std::atomic<bool> cancelled_{false};

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::unique_ptr<ClientConnection>> idle_;
  int open_ = 0;     // connections, idle or taken or being opened
  int blocked_ = 0;  // of those taken
  std::optional<Error> lost_;
  std::thread::id user_;  // the first
  bool shared_ = false;   // there was another
};

}  // namespace ddrun::store
