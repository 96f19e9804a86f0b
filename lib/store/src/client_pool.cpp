#include "client_pool.hpp"

#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <cstring>

#include "ddrun/base/text.hpp"

namespace ddrun::store {

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

}  // namespace

bool worth_retrying(const std::error_code& cause) {
  constexpr std::array retried = {ECONNREFUSED, ECONNRESET, ECONNABORTED, ETIMEDOUT, EHOSTUNREACH, EPIPE, EAGAIN};
  return std::find(retried.begin(), retried.end(), cause.value()) != retried.end();
}

tl::unexpected<Error> cancelled() { return fail(Errc::cancelled, "the store's client was cancelled"); }

bool sleep_until(Deadline when, int cancel) { return poll_until(-1, 0, when, cancel) != Polled::cancelled; }

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
  // Where nobody listens on a port that outgoing connections may use too, the system can connect a socket to itself.
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

using wire::Opcode;

namespace {

/// How long past its deadline a call waits for what a living server answers at once.
constexpr std::chrono::seconds answer_grace{5};

Deadline answer_by(Deadline deadline) { return std::max(deadline, Clock::now() + answer_grace); }

bool has_answer(Opcode op) {
  return op != Opcode::set && op != Opcode::append && op != Opcode::multi_set && op != Opcode::queue_push;
}

}  // namespace

void put_key(std::string& to, std::string_view key) {
  wire::put(to, static_cast<std::uint64_t>(key.size() + 1));
  to.push_back('/');
  to.append(key);
}

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

}  // namespace ddrun::store
