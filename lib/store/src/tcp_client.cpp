#include "ddrun/store/tcp_client.hpp"

#include <sys/eventfd.h>
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
#include "ddrun/base/text.hpp"
#include "limits.hpp"

namespace ddrun::store {

using wire::Opcode;

namespace {

constexpr const char* cancelled_text = "the store's client was cancelled";

template <class T>
auto error_of(Result<T>& result) {
  return tl::unexpected(std::move(result.error()));
}

std::string described(std::string_view key) {
  const std::string name(key);
  return describe_keys({&name, 1});
}

}  // namespace

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
    if (!lease) return error_of(lease);
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

  [[nodiscard]] const Endpoint& server() const { return server_; }
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

  const Endpoint server_;
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

/// The one that must go first, else any.
std::unique_ptr<ClientConnection> TcpClient::Pool::next_idle() {
  auto it = std::find_if(idle_.begin(), idle_.end(), [](const auto& idle) { return idle->unconfirmed(); });
  if (it == idle_.end()) it = idle_.end() - 1;
  auto connection = std::move(*it);
  idle_.erase(it);
  return connection;
}

Result<TcpClient::Pool::Lease> TcpClient::Pool::take(Deadline deadline) {
  // Cancelling wakes nobody here, since a signal handler may not: look again after this time.
  constexpr std::chrono::milliseconds look_again{20};
  std::unique_lock lock(mutex_);
  if (user_ == std::thread::id()) user_ = std::this_thread::get_id();
  shared_ = shared_ || user_ != std::this_thread::get_id();
  for (;;) {
    if (cancelled_.load(std::memory_order_acquire)) return fail(Errc::cancelled, cancelled_text);
    if (lost_) return tl::unexpected(*lost_);
    const bool all_free_or_blocked = static_cast<int>(idle_.size()) + blocked_ == open_;
    // One that is in use for a moment may be the one that must go first.
    if (all_free_or_blocked) {
      if (!idle_.empty()) return Lease(*this, next_idle());
      break;
    }
    const auto now = Clock::now();
    if (now >= deadline) {
      return fail(Errc::timeout,
                  concat("other threads kept the client of the store at ", name_, " busy until the deadline"));
    }
    changed_.wait_until(lock, std::min(deadline, now + look_again));
  }
  ++open_;
  lock.unlock();
  auto connection = ClientConnection::open({&server_, 1}, deadline, cancel_event_.get());
  if (connection) return Lease(*this, std::move(*connection));
  lock.lock();
  --open_;
  changed_.notify_all();
  return error_of(connection);
}

void TcpClient::Pool::give_back(std::unique_ptr<ClientConnection> connection, bool blocked) {
  const std::lock_guard lock(mutex_);
  if (blocked) --blocked_;
  if (!connection->broken()) {
    idle_.push_back(std::move(connection));
  } else {
    --open_;
    if (options_.reconnect == Reconnect::never && !lost_ && !cancelled_) {
      lost_ = Error{Errc::connection_lost, concat("the connection to the store at ", name_, " was lost before"), {}};
    }
  }
  changed_.notify_all();
}

void TcpClient::Pool::set_blocked(int change) {
  const std::lock_guard lock(mutex_);
  blocked_ += change;
  changed_.notify_all();
}

TcpClient::TcpClient(std::unique_ptr<Pool> pool) : pool_(std::move(pool)) {}
TcpClient::~TcpClient() = default;

namespace {

Result<UniqueFd> make_cancel_event() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return fail_errno(Errc::unavailable, "cannot make a client of the store", errno);
  return event;
}

}  // namespace

Result<std::unique_ptr<TcpClient>> TcpClient::connect(std::string_view address, std::uint16_t port, Deadline deadline,
                                                      const TcpClientOptions& options) {
  const auto servers = literal_endpoints(address, port);
  if (servers.empty()) {
    return fail(Errc::invalid_argument, concat("'", address, "' is not an IP address; give one, or localhost"));
  }
  if (port == 0) return fail(Errc::invalid_argument, "port 0 is nobody's; give the port of the store's server");
  auto cancel_event = make_cancel_event();
  if (!cancel_event) return error_of(cancel_event);
  auto connection = ClientConnection::open(servers, deadline, cancel_event->get());
  if (!connection) return error_of(connection);
  return std::unique_ptr<TcpClient>(
      new TcpClient(std::make_unique<Pool>(std::move(*connection), std::move(*cancel_event), options)));
}

Result<std::unique_ptr<TcpClient>> TcpClient::clone(Deadline deadline) const {
  auto cancel_event = make_cancel_event();
  if (!cancel_event) return error_of(cancel_event);
  auto connection = ClientConnection::open({&pool_->server(), 1}, deadline, cancel_event->get());
  if (!connection) return error_of(connection);
  return std::unique_ptr<TcpClient>(
      new TcpClient(std::make_unique<Pool>(std::move(*connection), std::move(*cancel_event), pool_->options())));
}

void TcpClient::cancel() noexcept { pool_->cancel(); }

const std::string& TcpClient::server() const { return pool_->name(); }

Result<void> TcpClient::set(std::string_view key, std::string_view value, Deadline deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  return pool_->run(deadline, true, [&](Pool::Lease& lease) {
    wire::put_bytes(lease->begin(Opcode::set, key), value);
    return pool_->send(lease, deadline);
  });
}

Result<std::string> TcpClient::get(std::string_view key, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  const std::string name(key);
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::string> {
    if (auto ok = lease.block(deadline); !ok) return error_of(ok);
    lease->begin(Opcode::wait, {&name, 1});
    if (auto ok = lease->wait(deadline, describe_keys({&name, 1})); !ok) return error_of(ok);
    lease.unblock();
    lease->begin(Opcode::get, key);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive_bytes(deadline);
  });
}

Result<std::int64_t> TcpClient::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<std::int64_t> {
    wire::put(lease->begin(Opcode::add, key), delta);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive<std::int64_t>(deadline);
  });
}

Result<void> TcpClient::wait(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return ok;
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<void> {
    if (auto ok = lease.block(deadline); !ok) return ok;
    lease->begin(Opcode::wait, keys);
    return lease->wait(deadline, describe_keys(keys));
  });
}

Result<bool> TcpClient::check(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return error_of(ok);
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<bool> {
    lease->begin(Opcode::check, keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    auto answer = lease->receive<char>(deadline);
    if (!answer) return error_of(answer);
    return *answer == wire::check_ready;
  });
}

Result<std::string> TcpClient::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                           Deadline deadline) {
  if (auto ok = check_value(key, expected); !ok) return error_of(ok);
  if (auto ok = check_value(key, desired); !ok) return error_of(ok);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<std::string> {
    auto& request = lease->begin(Opcode::compare_set, key);
    wire::put_bytes(request, expected);
    wire::put_bytes(request, desired);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive_bytes(deadline);
  });
}

Result<bool> TcpClient::delete_key(std::string_view key, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<bool> {
    lease->begin(Opcode::delete_key, key);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    auto deleted = lease->receive<std::int64_t>(deadline);
    if (!deleted) return error_of(deleted);
    return *deleted > 0;
  });
}

Result<std::int64_t> TcpClient::num_keys(Deadline deadline) {
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::int64_t> {
    lease->begin(Opcode::num_keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive<std::int64_t>(deadline);
  });
}

Result<std::vector<std::string>> TcpClient::list_keys(Deadline deadline) {
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::vector<std::string>> {
    lease->begin(Opcode::list_keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    auto count = lease->receive<std::int64_t>(deadline);
    if (!count) return error_of(count);
    if (*count < 0) return lease->nonsense(concat(*count, " as the number of keys"));
    std::vector<std::string> keys;
    for (auto left = *count; left > 0; --left) {
      auto key = lease->receive_bytes(deadline);
      if (!key) return error_of(key);
      // Keys without it are not of this store's making, such as PyTorch's "init/".
      if (key->starts_with('/')) keys.push_back(key->substr(1));
    }
    return keys;
  });
}

Result<void> TcpClient::append(std::string_view key, std::string_view value, Deadline deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  return pool_->run(deadline, false, [&](Pool::Lease& lease) {
    wire::put_bytes(lease->begin(Opcode::append, key), value);
    return pool_->send(lease, deadline);
  });
}

Result<std::vector<std::string>> TcpClient::multi_get(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return error_of(ok);
  if (keys.empty()) return std::vector<std::string>();
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::vector<std::string>> {
    if (auto ok = lease.block(deadline); !ok) return error_of(ok);
    lease->begin(Opcode::wait, keys);
    if (auto ok = lease->wait(deadline, describe_keys(keys)); !ok) return error_of(ok);
    lease.unblock();
    lease->begin(Opcode::multi_get, keys);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    std::vector<std::string> values;
    values.reserve(keys.size());
    while (values.size() < keys.size()) {
      auto value = lease->receive_bytes(deadline);
      if (!value) return error_of(value);
      values.push_back(std::move(*value));
    }
    return values;
  });
}

Result<void> TcpClient::multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                                  Deadline deadline) {
  if (auto ok = check_pairs(keys, values); !ok) return ok;
  return pool_->run(deadline, true, [&](Pool::Lease& lease) {
    auto& request = lease->begin(Opcode::multi_set);
    wire::put(request, static_cast<std::uint64_t>(keys.size()));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      put_key(request, keys[i]);
      wire::put_bytes(request, values[i]);
    }
    return pool_->send(lease, deadline);
  });
}

Result<void> TcpClient::queue_push(std::string_view queue, std::string_view element, Deadline deadline) {
  if (auto ok = check_value(queue, element); !ok) return ok;
  return pool_->run(deadline, false, [&](Pool::Lease& lease) {
    wire::put_bytes(lease->begin(Opcode::queue_push, queue), element);
    return pool_->send(lease, deadline);
  });
}

Result<std::string> TcpClient::queue_pop(std::string_view queue, Deadline deadline) {
  if (auto ok = check_key(queue); !ok) return error_of(ok);
  const std::string name(queue);
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<std::string> {
    std::chrono::milliseconds pause{0};
    for (;;) {
      if (auto ok = lease.block(deadline); !ok) return error_of(ok);
      lease->begin(Opcode::wait, {&name, 1});
      if (auto ok = lease->wait(deadline, concat("queue of ", described(queue))); !ok) return error_of(ok);
      lease.unblock();
      lease->begin(Opcode::queue_pop, queue);
      if (auto ok = lease->send(deadline); !ok) return error_of(ok);
      const auto length = lease->receive<std::int64_t>(deadline);
      if (!length) return tl::unexpected(length.error());
      if (*length > 0) return lease->receive_bytes(deadline);
      if (*length < 0) return lease->nonsense(concat(*length, " as the length of a queue"));
      // Gone to somebody else: wait for the next. Not at once if that happens again: a key of that name ends each wait.
      if (Clock::now() >= deadline) break;
      if (!pool_->sleep(std::min(deadline, Clock::now() + pause))) return fail(Errc::cancelled, cancelled_text);
      pause = std::min(2 * pause + std::chrono::milliseconds(1), std::chrono::milliseconds(100));
    }
    return fail(Errc::timeout, concat("the store's queue of ", described(queue), " is empty"));
  });
}

Result<std::int64_t> TcpClient::queue_length(std::string_view queue, Deadline deadline) {
  if (auto ok = check_key(queue); !ok) return error_of(ok);
  return pool_->run(deadline, true, [&](Pool::Lease& lease) -> Result<std::int64_t> {
    lease->begin(Opcode::queue_len, queue);
    if (auto ok = lease->send(deadline); !ok) return error_of(ok);
    return lease->receive<std::int64_t>(deadline);
  });
}

Result<void> TcpClient::barrier(std::string_view key, std::int64_t members, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return ok;
  return pool_->run(deadline, false, [&](Pool::Lease& lease) -> Result<void> {
    if (auto ok = lease.block(deadline); !ok) return ok;
    wire::put(lease->begin(Opcode::barrier, key), members);
    return lease->wait(deadline, concat("barrier of ", described(key)));
  });
}

}  // namespace ddrun::store
