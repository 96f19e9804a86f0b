#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "wire.hpp"

namespace ddrun::store {

/// A connected socket whose reads and writes end at a deadline, or when the descriptor `cancel` (-1 for none) becomes
/// readable. Its errors: `timeout`, `cancelled`, `connection_lost`.
class ClientSocket {
 public:
  /// One attempt on one endpoint, until the deadline. In the error, `cause` tells refused from hopeless.
  static Result<ClientSocket> connect(const SocketAddress& server, Deadline deadline, int cancel);

  /// All of `bytes`; whatever the server sends meanwhile stays to be read.
  Result<void> send(std::string_view bytes, Deadline deadline);

  /// Exactly `size` bytes into `to`.
  Result<void> receive(char* to, std::size_t size, Deadline deadline);

  /// `size` bytes behind those in `to`, whose memory grows with what really arrives.
  Result<void> receive(std::string& to, std::size_t size, Deadline deadline);

 private:
  ClientSocket(UniqueFd fd, int cancel) : fd_(std::move(fd)), cancel_(cancel) {}
  Result<void> wait_for(short events, Deadline deadline);

  UniqueFd fd_;
  int cancel_;
  // Read ahead of what was asked for, so that a length and its bytes cost one system call.
  std::vector<char> ahead_;
  std::size_t ahead_begin_ = 0;
  std::size_t ahead_end_ = 0;
};

/// What every call of a client that was cancelled fails with.
[[nodiscard]] tl::unexpected<Error> cancelled();

/// False if `cancel` became readable before then.
[[nodiscard]] bool sleep_until(Deadline when, int cancel);

/// Whether a failed attempt to connect may go better in a moment: nobody listening yet, or cut off by a restart.
[[nodiscard]] bool worth_retrying(const std::error_code& cause);

/// A key as PyTorch's clients send it: with "/" in front.
void put_key(std::string& to, std::string_view key);

/// One greeted connection to a server, for one thread at a time. Keys are those of the user, without "/".
///
/// After `connection_lost`, `protocol` and `cancelled` it is out of step and of no more use: broken().
class ClientConnection {
 public:
  /// Tries the endpoints in turn, again and again, until one answers the greeting. `cancel` as in ClientSocket.
  static Result<std::unique_ptr<ClientConnection>> open(std::span<const SocketAddress> servers, Deadline deadline,
                                                        int cancel);

  [[nodiscard]] const SocketAddress& server() const { return server_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool broken() const { return broken_; }

  /// Whether the server may not have seen yet what was sent last.
  [[nodiscard]] bool unconfirmed() const { return unconfirmed_; }

  /// An empty request that begins with `op`.
  std::string& begin(wire::Opcode op);
  /// A request with one key.
  std::string& begin(wire::Opcode op, std::string_view key);
  std::string& begin(wire::Opcode op, std::span<const std::string> keys);

  Result<void> send(Deadline deadline);
  /// For a request without an answer: returns when the server has it.
  Result<void> send_confirmed(Deadline deadline);
  /// Returns when the server has all that was sent so far.
  Result<void> confirm(Deadline deadline);

  template <class Integer>
  Result<Integer> receive(Deadline deadline) {
    Integer number{};
    if (auto ok = receive_raw(reinterpret_cast<char*>(&number), sizeof number, deadline); !ok) {
      return tl::unexpected(std::move(ok.error()));
    }
    return number;
  }
  Result<std::string> receive_bytes(Deadline deadline);

  /// Sends what begin() made, a WAIT or a BARRIER, and sees it through. `timeout`, which says `what` was waited for,
  /// leaves the connection as good as before.
  Result<void> wait(Deadline deadline, const std::string& what);

  tl::unexpected<Error> nonsense(const std::string& what);

  ClientConnection(const SocketAddress& server, ClientSocket socket);

 private:
  Result<void> greet(Deadline deadline);
  Result<void> receive_raw(char* to, std::size_t size, Deadline deadline);
  Result<void> withdraw(const std::string& what);
  tl::unexpected<Error> lost(const Error& error);

  const SocketAddress server_;
  const std::string name_;
  ClientSocket socket_;
  std::string request_;
  Deadline answer_end_{};
  bool unconfirmed_ = false;
  bool broken_ = false;
};

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
