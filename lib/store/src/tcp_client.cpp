#include "ddrun/store/tcp_client.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "limits.hpp"
#include "wire.hpp"

namespace ddrun::store {

using wire::Opcode;

// ---- the socket

namespace {

enum class Polled { ready, late, cancelled, failed /* errno says why */ };

Polled poll_until(int fd, short events, Deadline deadline, int cancel) {
  for (;;) {
    timespec left{};
    const timespec* timeout = nullptr;
    if (deadline != Deadline::max()) {
      const auto now = Clock::now();
      if (deadline > now) {
        // A wait of years is cut to a day and begun again: nothing overflows.
        const auto nanoseconds = std::min<std::chrono::nanoseconds>(deadline - now, std::chrono::hours(24)).count();
        left = {static_cast<time_t>(nanoseconds / 1'000'000'000), static_cast<long>(nanoseconds % 1'000'000'000)};
      }
      timeout = &left;
    }
    pollfd entries[] = {{fd, events, 0}, {cancel, POLLIN, 0}};  // a negative descriptor is passed over
    const int ready = ::ppoll(entries, 2, timeout, nullptr);
    if (ready > 0) return entries[1].revents != 0 ? Polled::cancelled : Polled::ready;
    if (ready < 0 && errno != EINTR) return Polled::failed;
    if (ready == 0 && deadline != Deadline::max() && Clock::now() >= deadline) return Polled::late;
  }
}

/// Whether a failed attempt to connect may go better in a moment: nothing listens there yet, or a restart cut it off.
bool worth_retrying(const std::error_code& cause) {
  constexpr std::array retried = {ECONNREFUSED, ECONNRESET, ECONNABORTED, ETIMEDOUT, EHOSTUNREACH, EPIPE, EAGAIN};
  return std::find(retried.begin(), retried.end(), cause.value()) != retried.end();
}

/// What every call of a client that was cancelled fails with.
tl::unexpected<Error> cancelled() { return fail(Errc::cancelled, "the store's client was cancelled"); }

/// False if `cancel` became readable before then.
bool sleep_until(Deadline when, int cancel) { return poll_until(-1, 0, when, cancel) != Polled::cancelled; }

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

}  // namespace

Result<ClientSocket> ClientSocket::connect(const SocketAddress& server, Deadline deadline, int cancel) {
  UniqueFd fd(::socket(server.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno(Errc::unavailable, "cannot make a socket", errno);
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const auto failed = [&](int error) { return fail_errno(Errc::unavailable, "cannot connect", error); };
  if (::connect(fd.get(), server.get(), server.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return failed(errno);
    switch (poll_until(fd.get(), POLLOUT, deadline, cancel)) {
      case Polled::ready: break;
      case Polled::late: return failed(ETIMEDOUT);
      case Polled::cancelled: return cancelled();
      case Polled::failed: return failed(errno);
    }
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return failed(error);
  }
  // Where no server listens on a port that outgoing connections may use too, the system can connect a socket to itself.
  if (const auto self = local_socket_address(fd.get());
      self && self->size == server.size && self->text() == server.text()) {
    return failed(ECONNREFUSED);
  }
  return ClientSocket(std::move(fd), cancel);
}

Result<void> ClientSocket::wait_for(short events, Deadline deadline) {
  switch (poll_until(fd_.get(), events, deadline, cancel_)) {
    case Polled::ready: return {};
    case Polled::late: return fail(Errc::timeout, "no answer in time");
    case Polled::cancelled: return cancelled();
    case Polled::failed: break;
  }
  return fail_errno(Errc::connection_lost, "poll", errno);
}

Result<void> ClientSocket::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (auto ok = wait_for(POLLOUT, deadline); !ok) return ok;
    } else if (errno != EINTR) {
      return fail_errno(Errc::connection_lost, "connection lost", errno);
    }
  }
  return {};
}

Result<void> ClientSocket::receive(char* to, std::size_t size, Deadline deadline) {
  if (ahead_.empty()) ahead_.resize(4096);
  for (;;) {
    const std::size_t ready = std::min(size, ahead_end_ - ahead_begin_);
    if (ready > 0) std::memcpy(to, ahead_.data() + ahead_begin_, ready);
    ahead_begin_ += ready;
    to += ready;
    size -= ready;
    if (size == 0) return {};

    const bool direct = size >= ahead_.size();
    const ssize_t got = direct ? ::recv(fd_.get(), to, size, MSG_DONTWAIT)
                               : ::recv(fd_.get(), ahead_.data(), ahead_.size(), MSG_DONTWAIT);
    if (got > 0) {
      const auto count = static_cast<std::size_t>(got);
      ahead_begin_ = 0;
      ahead_end_ = direct ? 0 : count;
      if (direct) {
        to += count;
        size -= count;
      }
    } else if (got == 0) {
      return fail(Errc::connection_lost, "the server closed the connection",
                  std::error_code(ECONNRESET, std::generic_category()));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (auto ok = wait_for(POLLIN, deadline); !ok) return ok;
    } else if (errno != EINTR) {
      return fail_errno(Errc::connection_lost, "connection lost", errno);
    }
  }
}

Result<void> ClientSocket::receive(std::string& to, std::size_t size, Deadline deadline) {
  constexpr std::size_t step = 1024 * 1024;
  while (size > 0) {
    const std::size_t part = std::min(size, step);
    const std::size_t before = to.size();
    to.resize(before + part);
    if (auto ok = receive(to.data() + before, part, deadline); !ok) return ok;
    size -= part;
  }
  return {};
}

// ---- the protocol

namespace {

/// How long past its deadline a call waits for what a living server answers at once.
constexpr std::chrono::seconds answer_grace{5};

Deadline answer_by(Deadline deadline) { return std::max(deadline, Clock::now() + answer_grace); }

bool has_answer(Opcode op) {
  return op != Opcode::set && op != Opcode::append && op != Opcode::multi_set && op != Opcode::queue_push;
}

/// A key as PyTorch's clients send it: with "/" in front.
void put_key(std::string& to, std::string_view key) {
  wire::put(to, static_cast<std::uint64_t>(key.size() + 1));
  to.push_back('/');
  to.append(key);
}

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

}  // namespace

ClientConnection::ClientConnection(const SocketAddress& server, ClientSocket socket)
    : server_(server), name_(server.text()), socket_(std::move(socket)) {}

std::string& ClientConnection::begin(Opcode op) {
  request_.clear();
  wire::put(request_, op);
  return request_;
}

std::string& ClientConnection::begin(Opcode op, std::string_view key) {
  put_key(begin(op), key);
  return request_;
}

std::string& ClientConnection::begin(Opcode op, std::span<const std::string> keys) {
  wire::put(begin(op), static_cast<std::uint64_t>(keys.size()));
  for (const auto& key : keys) put_key(request_, key);
  return request_;
}

Result<void> ClientConnection::send(Deadline deadline) {
  if (!request_.empty()) unconfirmed_ = !has_answer(static_cast<Opcode>(request_.front()));
  // One grace for the whole of an answer: a server that trickles it gains no time with each part.
  answer_end_ = answer_by(deadline);
  auto sent = socket_.send(request_, answer_end_);
  // Keep the memory of small requests, not that of a big one.
  if (request_.capacity() > 64 * 1024) std::string().swap(request_);
  return sent ? std::move(sent) : Result<void>(lost(sent.error()));
}

Result<void> ClientConnection::send_confirmed(Deadline deadline) {
  if (auto ok = send(deadline); !ok) return ok;
  return confirm(deadline);
}

Result<void> ClientConnection::confirm(Deadline deadline) {
  // A CHECK for no key at all, which every server answers; PING is not known to all.
  wire::put(begin(Opcode::check), std::uint64_t{0});
  if (auto ok = send(deadline); !ok) return ok;
  if (auto answer = receive<char>(deadline); !answer) return tl::unexpected(std::move(answer.error()));
  return {};
}

tl::unexpected<Error> ClientConnection::lost(const Error& error) {
  broken_ = true;
  if (error.code == Errc::cancelled) return tl::unexpected(error);
  if (error.code == Errc::timeout) {
    return fail(Errc::connection_lost, concat("the store at ", name_, " does not answer"), error.cause);
  }
  return fail(Errc::connection_lost, concat("lost the store at ", name_, ": ", error.message), error.cause);
}

tl::unexpected<Error> ClientConnection::nonsense(const std::string& what) {
  broken_ = true;
  return fail(Errc::protocol, concat("the store at ", name_, " answered ", what));
}

Result<void> ClientConnection::receive_raw(char* to, std::size_t size, Deadline deadline) {
  if (auto ok = socket_.receive(to, size, std::max(deadline, answer_end_)); !ok) return lost(ok.error());
  return {};
}

Result<std::string> ClientConnection::receive_bytes(Deadline deadline) {
  auto size = receive<std::uint64_t>(deadline);
  if (!size) return tl::unexpected(std::move(size.error()));
  // PyTorch's servers do not limit values; anything beyond this is a sign of being out of step.
  constexpr std::uint64_t most = 4ULL * 1024 * 1024 * 1024;
  if (*size > most) return nonsense(concat("with a value of ", *size, " bytes"));
  std::string value;
  if (auto ok = socket_.receive(value, *size, std::max(deadline, answer_end_)); !ok) return lost(ok.error());
  return value;
}

Result<void> ClientConnection::greet(Deadline deadline) {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  begin(Opcode::validate);
  wire::put(request_, wire::magic);
  wire::put(request_, Opcode::ping);
  wire::put(request_, nonce);
  std::uint32_t echo = 0;
  if (auto ok = socket_.send(request_, deadline); !ok) return ok;
  if (auto ok = socket_.receive(reinterpret_cast<char*>(&echo), sizeof echo, deadline); !ok) return ok;
  if (echo != nonce) return nonsense("the greeting wrongly; something else may be listening there");
  return {};
}

Result<std::unique_ptr<ClientConnection>> ClientConnection::open(std::span<const SocketAddress> servers,
                                                                 Deadline deadline, int cancel) {
  std::minstd_rand random(static_cast<unsigned>(::getpid()) ^
                          static_cast<unsigned>(Clock::now().time_since_epoch().count()));
  // Short at first, since a server is usually up in a moment; spread, so that thousands do not come in step.
  std::chrono::microseconds pause{1000};
  constexpr std::chrono::microseconds longest_pause{500'000};
  for (;;) {
    bool hope = false;
    Error reason{Errc::unavailable, "no address", {}};
    for (const auto& server : servers) {
      // One address that swallows everything must not use up the time of the next.
      const auto attempt = servers.size() == 1 ? deadline : std::min(deadline, Clock::now() + answer_grace);
      auto socket = ClientSocket::connect(server, attempt, cancel);
      if (!socket) {
        if (socket.error().code == Errc::cancelled) return tl::unexpected(std::move(socket.error()));
        hope = hope || worth_retrying(socket.error().cause);
        reason = std::move(socket.error());
        continue;
      }
      auto connection = std::make_unique<ClientConnection>(server, std::move(*socket));
      const auto greeted = connection->greet(attempt);
      if (greeted) return connection;
      if (greeted.error().code == Errc::protocol || greeted.error().code == Errc::cancelled) {
        return tl::unexpected(greeted.error());
      }
      hope = true;  // accepted, then cut off or left waiting: it may be starting over
      reason = greeted.error();
      reason.message = concat("connected, but ", reason.message);
    }
    const auto target = concat("the store at ", servers.front().text());
    if (!hope) return fail(Errc::unavailable, concat("cannot reach ", target, ": ", reason.message), reason.cause);
    const auto next = Clock::now() + pause / 2 + pause * static_cast<int>(random() % 1000) / 1000;
    if (next >= deadline) {
      return fail(Errc::timeout,
                  concat("could not reach ", target, " in time: ", reason.message, "; is its server running?"),
                  reason.cause);
    }
    if (!sleep_until(next, cancel)) return cancelled();
    pause = std::min(pause * 2, longest_pause);
  }
}

Result<void> ClientConnection::wait(Deadline deadline, const std::string& what) {
  if (auto ok = send(deadline); !ok) return ok;
  char answer = 0;
  if (auto ok = socket_.receive(&answer, 1, deadline); !ok) {
    if (ok.error().code == Errc::timeout) {
      return withdraw(what);
    }
    return lost(ok.error());
  }
  if (answer != wire::wait_stopped) return nonsense(concat(int{answer}, " to a wait"));
  return {};
}

Result<void> ClientConnection::withdraw(const std::string& what) {
  begin(Opcode::cancel_wait);
  if (auto ok = send({}); !ok) return ok;
  auto answer = receive<char>({});
  // The keys may have come just before the server read the cancel: then both answers are on their way.
  const bool came = answer && *answer == wire::wait_stopped;
  if (came) answer = receive<char>({});
  if (!answer) return tl::unexpected(std::move(answer.error()));
  if (*answer != wire::wait_cancelled) return nonsense(concat(int{*answer}, " to a cancelled wait"));
  if (came) return {};
  return fail(Errc::timeout, concat("timed out waiting for store ", what));
}

// ---- the connections of a client

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
    // Never read again: a thread that looks at it from now on finds it readable.
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

/// The one that must go first, else any.
std::unique_ptr<ClientConnection> TcpClient::Pool::next_idle() {
  auto it = std::find_if(idle_.begin(), idle_.end(), [](const auto& idle) { return idle->unconfirmed(); });
  if (it == idle_.end()) it = idle_.end() - 1;
  auto connection = std::move(*it);
  idle_.erase(it);
  return connection;
}

Result<TcpClient::Pool::Lease> TcpClient::Pool::take(Deadline deadline) {
  // Cancelling wakes no thread here, since a signal handler may not: look again after this time.
  constexpr std::chrono::milliseconds look_again{20};
  std::unique_lock lock(mutex_);
  if (user_ == std::thread::id()) user_ = std::this_thread::get_id();
  shared_ = shared_ || user_ != std::this_thread::get_id();
  for (;;) {
    if (cancelled_.load(std::memory_order_acquire)) return cancelled();
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
  return tl::unexpected(std::move(connection.error()));
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

// ---- the client

namespace {

template <class T>
auto error_of(Result<T>& result) {
  return tl::unexpected(std::move(result.error()));
}

std::string described(std::string_view key) {
  const std::string name(key);
  return describe_keys({&name, 1});
}

Result<UniqueFd> make_cancel_event() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return fail_errno(Errc::unavailable, "cannot make a client of the store", errno);
  return event;
}

}  // namespace

TcpClient::TcpClient(std::unique_ptr<Pool> pool) : pool_(std::move(pool)) {}
TcpClient::~TcpClient() = default;

Result<std::unique_ptr<TcpClient>> TcpClient::connect(std::string_view address, std::uint16_t port, Deadline deadline,
                                                      const TcpClientOptions& options) {
  const auto servers = literal_socket_addresses(address, port);
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
      // Gone to another client: wait for the next. Not at once if that happens again: a key of that name ends each
      // wait.
      if (Clock::now() >= deadline) break;
      if (!pool_->sleep(std::min(deadline, Clock::now() + pause))) return cancelled();
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
