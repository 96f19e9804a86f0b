#include "ddrun/store/tcp_client.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "wire.hpp"

namespace ddrun::store {

using wire::Opcode;

static_assert(max_key_size + 1 == wire::max_key, "the client puts one character in front of a key");
static_assert(max_value_size == wire::max_value && max_keys_per_call == wire::max_keys);

namespace {

// Limits that the client checks before it sends: a server would only close the connection.

Result<void> check_key(std::string_view key) {
  if (key.size() <= max_key_size) return {};
  return fail(Errc::invalid_argument, concat("store key '", wire::printable(key), "' has ", key.size(),
                                             " bytes; at most ", max_key_size, " are allowed"));
}

Result<void> check_value(std::string_view key, std::string_view value) {
  TRY(check_key(key));
  if (value.size() <= max_value_size) return {};
  return fail(Errc::invalid_argument, concat("the value for store key '", wire::printable(key), "' has ", value.size(),
                                             " bytes; at most ", max_value_size, " are allowed: split it"));
}

Result<void> check_keys(std::span<const std::string> keys) {
  if (keys.size() > max_keys_per_call) {
    return fail(Errc::invalid_argument, concat("one store call names ", keys.size(), " keys; at most ",
                                               max_keys_per_call, " are allowed: make several calls"));
  }
  for (const auto& key : keys) TRY(check_key(key));
  return {};
}

/// Beyond its deadline a call waits so long for replies that a server sends at once.
constexpr std::chrono::seconds response_grace{5};

/// True if `fd` became ready before the deadline; -1: only sleeps.
bool poll_until(int fd, short events, Deadline deadline) {
  for (;;) {
    // At most a day for each call, so that nothing overflows.
    const auto time = std::clamp<std::chrono::nanoseconds>(deadline - Clock::now(), {}, std::chrono::hours(24)).count();
    const timespec left{time / 1'000'000'000, time % 1'000'000'000};
    pollfd entry{fd, events, 0};
    const int ready = ::ppoll(&entry, 1, &left, nullptr);
    if (ready > 0) return true;
    if ((ready < 0 && errno != EINTR) || Clock::now() >= deadline) return false;
  }
}

/// One attempt on one endpoint. The error's `cause` is the errno.
Result<UniqueFd> connect_socket(const SocketAddress& server, Deadline deadline) {
  UniqueFd fd(::socket(server.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno(Errc::unavailable, "cannot make a socket", errno);
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  int error = ::connect(fd.get(), server.get(), server.size) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    error = ETIMEDOUT;
    socklen_t size = sizeof error;
    if (poll_until(fd.get(), POLLOUT, deadline)) ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  // Where no server listens on a port that outgoing connections may use too, the system can connect a socket to itself.
  if (const auto self = local_socket_address(fd.get());
      error == 0 && self && self->size == server.size && self->text() == server.text()) {
    error = ECONNREFUSED;
  }
  if (error != 0) return fail_errno(Errc::unavailable, "cannot connect", error);
  return fd;
}

/// A key as PyTorch's clients send it: with "/" in front.
void put_key(std::string& to, std::string_view key) { wire::put_bytes(to, concat('/', key)); }
void put_field(std::string& to, std::int64_t number) { wire::put(to, number); }
void put_field(std::string& to, std::string_view bytes) { wire::put_bytes(to, bytes); }

std::string request(Opcode op) { return {static_cast<char>(op)}; }

template <class... Fields>
std::string request(Opcode op, std::string_view key, const Fields&... fields) {
  std::string text = request(op);
  put_key(text, key);
  (put_field(text, fields), ...);
  return text;
}

std::string request(Opcode op, std::span<const std::string> keys) {
  std::string text = request(op);
  wire::put(text, static_cast<std::uint64_t>(keys.size()));
  for (const auto& key : keys) put_key(text, key);
  return text;
}

}  // namespace

/// A connection to a server. After `connection_lost` and `protocol` it is unusable.
class TcpClient::Connection {
 public:
  Connection(UniqueFd fd, const SocketAddress& server) : name(server.text()), fd_(std::move(fd)) {}

  const std::string name;
  bool broken = false;

  Result<void> handshake(Deadline deadline) {
    std::string nonce, greeting = request(Opcode::validate);
    wire::put(nonce, static_cast<std::uint32_t>(::getpid()));
    wire::put(greeting, wire::magic);
    TRY(send_by(deadline, greeting + request(Opcode::ping) + nonce));
    const auto echo = TRY(receive_by(deadline, nonce.size()));
    if (echo != nonce) return protocol_error("the greeting wrongly; something else may be listening there");
    return {};
  }

  Result<void> send(std::string_view request, Deadline deadline) {
    // One deadline for the whole reply, not for each part.
    answer_end_ = std::max(deadline, Clock::now() + response_grace);
    return send_by(answer_end_, request).map_error([&](const Error& error) { return lost(error); });
  }

  template <class Integer>
  Result<Integer> receive() {
    return receive_part(sizeof(Integer)).map([](const std::string& bytes) {
      return wire::load<Integer>(bytes.data());
    });
  }
  Result<std::string> receive_bytes() {
    const auto size = TRY(receive<std::uint64_t>());
    // PyTorch's servers do not limit values; a greater size means that client and server are out of step.
    constexpr std::uint64_t most = 4ULL * 1024 * 1024 * 1024;
    if (size > most) return protocol_error(concat("with a value of ", size, " bytes"));
    return receive_part(size);
  }

  Result<std::vector<std::string>> receive_list(std::uint64_t size) {
    std::vector<std::string> texts;
    while (texts.size() < size) texts.push_back(TRY(receive_bytes()));
    return texts;
  }

  template <class Integer>
  Result<Integer> ask(std::string_view request, Deadline deadline) {
    return send(request, deadline).and_then([&] { return receive<Integer>(); });
  }
  Result<std::string> ask_for_bytes(std::string_view request, Deadline deadline) {
    return send(request, deadline).and_then([&] { return receive_bytes(); });
  }

  /// Waits for the keys. The connection stays usable after `timeout`.
  Result<void> wait(std::span<const std::string> keys, Deadline deadline) {
    TRY(send(request(Opcode::wait, keys), deadline));
    const auto answer = receive_by(deadline, 1);
    if (!answer && answer.error().code == Errc::timeout) return cancel_wait(keys);
    if (!answer) return tl::unexpected(lost(answer.error()));
    if (answer->front() != wire::wait_stopped) return protocol_error(concat(int{answer->front()}, " to a wait"));
    return {};
  }

  tl::unexpected<Error> protocol_error(const std::string& what) {
    broken = true;
    return fail(Errc::protocol, concat("the store at ", name, " answered ", what));
  }

 private:
  Result<void> cancel_wait(std::span<const std::string> keys) {
    auto answer = ask<char>(request(Opcode::cancel_wait), {});
    // The keys may have been set just before the server read the cancel: then both replies are on their way.
    const bool came = answer && *answer == wire::wait_stopped;
    if (came) answer = receive<char>();
    if (!answer) return tl::unexpected(std::move(answer.error()));
    if (*answer != wire::wait_cancelled) return protocol_error(concat(int{*answer}, " to a cancelled wait"));
    if (came) return {};
    return fail(Errc::timeout, concat("timed out waiting for store ", wire::describe_keys(keys)));
  }

  Result<void> send_by(Deadline deadline, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
      else TRY(retry(POLLOUT, deadline));
    }
    return {};
  }

  Result<std::string> receive_by(Deadline deadline, std::size_t size) {
    while (received_.size() < size) {
      char buffer[8 * 1024];
      const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got > 0) {
        received_.append(buffer, static_cast<std::size_t>(got));
      } else if (got == 0) {
        return fail(Errc::connection_lost, "the server closed the connection",
                    std::error_code(ECONNRESET, std::generic_category()));
      } else {
        TRY(retry(POLLIN, deadline));
      }
    }
    std::string bytes = received_.substr(0, size);
    received_.erase(0, size);
    return bytes;
  }
  Result<std::string> receive_part(std::size_t size) {
    return receive_by(answer_end_, size).map_error([&](const Error& error) { return lost(error); });
  }

  /// After a send() or recv() that failed with errno: waits until another may succeed.
  Result<void> retry(short events, Deadline deadline) const {
    if (errno == EINTR) return {};
    if (errno != EAGAIN && errno != EWOULDBLOCK) return fail_errno(Errc::connection_lost, "connection lost", errno);
    if (poll_until(fd_.get(), events, deadline)) return {};
    return fail(Errc::timeout, "no answer in time");
  }

  Error lost(const Error& error) {
    broken = true;
    return {Errc::connection_lost,
            error.code == Errc::timeout ? concat("the store at ", name, " does not answer")
                                        : concat("lost the store at ", name, ": ", error.message),
            error.cause};
  }

  const UniqueFd fd_;
  Deadline answer_end_{};
  std::string received_;  // not parsed yet
};

TcpClient::TcpClient(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}
TcpClient::~TcpClient() = default;

Result<std::unique_ptr<TcpClient>> TcpClient::connect(std::string_view address, std::uint16_t port, Deadline deadline) {
  const auto servers = literal_socket_addresses(address, port);
  if (servers.empty()) {
    return fail(Errc::invalid_argument, concat("'", address, "' is not an IP address; give one, or localhost"));
  }
  if (port == 0) return fail(Errc::invalid_argument, "port must be 1-65535; give the port of the store's server");
  std::minstd_rand random(std::random_device{}());
  // Backoff with jitter: short at first, as a server is usually up soon; random, so that thousands do not synchronize.
  std::chrono::microseconds pause{1000};
  for (;;) {
    bool retryable = false;
    Error reason{Errc::unavailable, "no address", {}};
    for (const auto& server : servers) {
      // An address that drops packets must not use up the time of the next.
      const auto attempt = servers.size() == 1 ? deadline : std::min(deadline, Clock::now() + response_grace);
      auto socket = connect_socket(server, attempt);
      if (!socket) {
        // The server does not listen yet, or restarts.
        const int error = socket.error().cause.value();
        retryable =
            retryable || error == ECONNREFUSED || error == ECONNRESET || error == ETIMEDOUT || error == EHOSTUNREACH;
        reason = std::move(socket.error());
        continue;
      }
      auto connection = std::make_unique<Connection>(std::move(*socket), server);
      const auto greeted = connection->handshake(attempt);
      if (greeted) return std::unique_ptr<TcpClient>(new TcpClient(std::move(connection)));
      if (greeted.error().code == Errc::protocol) return tl::unexpected(greeted.error());
      retryable = true;  // accepted, then closed or silent: the server may be restarting
      reason = greeted.error();
      reason.message = concat("connected, but ", reason.message);
    }
    const auto target = concat("the store at ", servers.front().text());
    if (!retryable) return fail(Errc::unavailable, concat("cannot reach ", target, ": ", reason.message), reason.cause);
    const auto next = Clock::now() + pause / 2 + pause * static_cast<int>(random() % 1000) / 1000;
    if (next >= deadline) {
      return fail(Errc::timeout,
                  concat("could not reach ", target, " in time: ", reason.message, "; is its server running?"),
                  reason.cause);
    }
    poll_until(-1, 0, next);
    pause = std::min(pause * 2, std::chrono::microseconds(500'000));
  }
}

const std::string& TcpClient::server() const { return connection_->name; }

/// Calls `call` with the connection under the lock, unless the arguments are wrong or the connection was lost before.
template <class Call>
std::invoke_result_t<Call, TcpClient::Connection&> TcpClient::with_connection(const Result<void>& arguments,
                                                                              Call call) {
  TRY(arguments);
  const std::lock_guard lock(mutex_);
  if (!connection_->broken) return call(*connection_);
  return fail(Errc::connection_lost, concat("the connection to the store at ", server(), " was lost before"));
}

Result<void> TcpClient::set(std::string_view key, std::string_view value, Deadline deadline) {
  return with_connection(check_value(key, value),
                         [&](Connection& link) { return link.send(request(Opcode::set, key, value), deadline); });
}

Result<std::string> TcpClient::get(std::string_view key, Deadline deadline) {
  return with_connection(check_key(key), [&](Connection& link) {
    const std::string name(key);
    const auto there = link.wait({&name, 1}, deadline);
    return there.and_then([&] { return link.ask_for_bytes(request(Opcode::get, key), deadline); });
  });
}

Result<std::int64_t> TcpClient::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  return with_connection(check_key(key), [&](Connection& link) {
    return link.ask<std::int64_t>(request(Opcode::add, key, delta), deadline);
  });
}

Result<void> TcpClient::wait(std::span<const std::string> keys, Deadline deadline) {
  return with_connection(check_keys(keys), [&](Connection& link) { return link.wait(keys, deadline); });
}

Result<bool> TcpClient::check(std::span<const std::string> keys, Deadline deadline) {
  return with_connection(check_keys(keys), [&](Connection& link) {
    const auto answer = link.ask<char>(request(Opcode::check, keys), deadline);
    return answer.map([](char ready) { return ready == wire::check_ready; });
  });
}

Result<std::string> TcpClient::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                           Deadline deadline) {
  const auto arguments = check_value(key, expected).and_then([&] { return check_value(key, desired); });
  return with_connection(arguments, [&](Connection& link) {
    return link.ask_for_bytes(request(Opcode::compare_set, key, expected, desired), deadline);
  });
}

Result<bool> TcpClient::delete_key(std::string_view key, Deadline deadline) {
  return with_connection(check_key(key), [&](Connection& link) {
    const auto answer = link.ask<std::int64_t>(request(Opcode::delete_key, key), deadline);
    return answer.map([](std::int64_t deleted) { return deleted > 0; });
  });
}

Result<std::int64_t> TcpClient::num_keys(Deadline deadline) {
  return with_connection({},
                         [&](Connection& link) { return link.ask<std::int64_t>(request(Opcode::num_keys), deadline); });
}

Result<std::vector<std::string>> TcpClient::list_keys(Deadline deadline) {
  return with_connection({}, [&](Connection& link) -> Result<std::vector<std::string>> {
    const auto count = TRY(link.ask<std::int64_t>(request(Opcode::list_keys), deadline));
    if (count < 0) return link.protocol_error(concat(count, " as the number of keys"));
    auto keys = TRY(link.receive_list(static_cast<std::uint64_t>(count)));
    // Keys without the "/" were not set by a client, such as PyTorch's "init/".
    std::erase_if(keys, [](const std::string& key) { return !key.starts_with('/'); });
    for (std::string& key : keys) key.erase(0, 1);
    return keys;
  });
}

Result<std::vector<std::string>> TcpClient::multi_get(std::span<const std::string> keys, Deadline deadline) {
  if (keys.empty()) return {};
  return with_connection(check_keys(keys), [&](Connection& link) {
    return link.wait(keys, deadline)
        .and_then([&] { return link.send(request(Opcode::multi_get, keys), deadline); })
        .and_then([&] { return link.receive_list(keys.size()); });
  });
}

}  // namespace ddrun::store
