#include "ddrun/base/listener.hpp"

#include <fcntl.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <climits>
#include <optional>

#include "ddrun/base/text.hpp"

namespace ddrun {

namespace {

/// The kernel does not support the family. EADDRNOTAVAIL counts only for wildcard and loopback addresses: any other
/// address is the user's mistake.
bool is_family_unavailable(const SocketAddress& at, int error) {
  return error == EAFNOSUPPORT || error == EPROTONOSUPPORT || (error == EADDRNOTAVAIL && at.is_wildcard_or_loopback());
}

tl::unexpected<Error> cannot_listen(const SocketAddress& at, int error) {
  if (error == EADDRINUSE) {
    const auto text = at.text();
    return fail(
        Errc::unavailable,
        concat("cannot listen on ", text, ": port ", at.port(), " is in use by another program; choose another port"),
        std::error_code(error, std::generic_category()));
  }
  return fail_errno(Errc::unavailable, concat("cannot listen on ", at.text()), error);
}

Result<Listener> listen_on(const SocketAddress& at) {
  Listener listener{UniqueFd(::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), at};
  const int fd = listener.fd.get();
  if (fd < 0) return cannot_listen(at, errno);
  const int on = 1;
  // Connections in TIME_WAIT, of an earlier server or of the last round, must not block the port. Two listeners on one
  // port remain impossible.
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (at.family() == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (::bind(fd, at.get(), at.size) != 0) return cannot_listen(at, errno);
  if (::listen(fd, INT_MAX) != 0) return cannot_listen(at, errno);  // capped by the system
  return listener;
}

/// A port that is free now. The caller binds it again by number: a port chosen by bind() would be released when the
/// listener restarts.
Result<std::uint16_t> free_port(SocketAddress at) {
  at.set_port(0);
  const UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::bind(fd.get(), at.get(), at.size) != 0) return cannot_listen(at, errno);
  const auto chosen = local_socket_address(fd.get());
  if (!chosen) return cannot_listen(at, errno);
  return chosen->port();
}

/// One attempt on a given port.
Result<std::vector<Listener>> listen_on_all(std::vector<SocketAddress> endpoints, std::uint16_t port) {
  std::vector<Listener> listeners;
  std::optional<Error> family_error;
  for (auto& endpoint : endpoints) {
    endpoint.set_port(port);
    auto listener = listen_on(endpoint);
    if (listener) {
      listeners.push_back(std::move(*listener));
    } else if (is_family_unavailable(endpoint, listener.error().cause.value())) {
      family_error = std::move(listener.error());
    } else {
      return tl::unexpected(std::move(listener.error()));
    }
  }
  if (listeners.empty() && family_error) return tl::unexpected(std::move(*family_error));
  return listeners;
}

}  // namespace

namespace {

bool set_option(int fd, int option, int value) {
  return ::setsockopt(fd, SOL_SOCKET, option, &value, sizeof value) == 0;
}

/// Guards a listener's port while it does not listen: with SO_REUSEADDR another user could bind it and listen first. A
/// second socket without SO_REUSEADDR is bound there; only sockets of the same user share it, by SO_REUSEPORT.
class PortGuard {
 public:
  explicit PortGuard(const Listener& listener)
      : listener_(listener.fd.get()), fd_(::socket(listener.at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    set_option(listener_, SO_REUSEPORT, 1);
    if (listener.at.family() == AF_INET6) ::setsockopt(fd_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    set_option(fd_.get(), SO_REUSEPORT, 1);
    // Needed to bind beside the listener's connections, which have it set.
    set_option(fd_.get(), SO_REUSEADDR, 1);
    // Without a descriptor, or without SO_REUSEPORT, the port is not guarded.
    if (::bind(fd_.get(), listener.at.get(), listener.at.size) == 0) set_option(fd_.get(), SO_REUSEADDR, 0);
    else fd_.reset();
  }
  ~PortGuard() { set_option(listener_, SO_REUSEPORT, 0); }
  PortGuard(const PortGuard&) = delete;
  PortGuard& operator=(const PortGuard&) = delete;

 private:
  int listener_;
  UniqueFd fd_;
};

}  // namespace

Result<void> Listener::restart() {
  {
    const PortGuard guard(*this);
    // shutdown() drops the queues and keeps a port that was bound by number.
    ::shutdown(fd.get(), SHUT_RD);
    if (::listen(fd.get(), INT_MAX) == 0) {
      if (const auto now = local_socket_address(fd.get()); now && now->port() == at.port()) return {};
    }
  }
  // Fallback for kernels where that does not work.
  fd.reset();
  *this = TRY(listen_on(at));
  return {};
}

std::vector<std::string> listener_addresses(const std::vector<Listener>& listeners) {
  std::vector<std::string> texts;
  for (const auto& listener : listeners) texts.push_back(listener.at.text());
  return texts;
}

Result<std::vector<Listener>> open_listeners(const std::vector<std::string>& addresses, std::uint16_t port) {
  std::vector<SocketAddress> endpoints;
  for (const auto& address : addresses) {
    const auto endpoint = SocketAddress::parse(address, port);
    if (!endpoint) {
      return fail(Errc::invalid_argument,
                  concat("'", address, "' is not an IP address; give addresses such as 127.0.0.1 or ::1"));
    }
    endpoints.push_back(*endpoint);
  }
  if (endpoints.empty()) return fail(Errc::invalid_argument, "no address to listen on; give at least one");
  if (port != 0) return listen_on_all(std::move(endpoints), port);

  constexpr int attempts = 100;
  for (int attempt = 1;; ++attempt) {
    Result<std::uint16_t> chosen = fail(Errc::unavailable, "");
    for (const auto& endpoint : endpoints) {
      chosen = free_port(endpoint);
      if (chosen || !is_family_unavailable(endpoint, chosen.error().cause.value())) break;
    }
    if (!chosen) return tl::unexpected(std::move(chosen.error()));
    auto listeners = listen_on_all(endpoints, *chosen);
    const bool in_use = !listeners && listeners.error().cause == std::errc::address_in_use;
    if (!in_use || attempt == attempts) return listeners;
  }
}

Acceptor::Acceptor() : reserve_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

Acceptor::Outcome Acceptor::next(const Listener& listener, UniqueFd& connection, sockaddr_storage& peer) {
  socklen_t size = sizeof peer;
  connection.reset(
      ::accept4(listener.fd.get(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (connection) return Outcome::accepted;
  switch (errno) {
    case EMFILE:
    case ENFILE: return reject_one(listener.fd.get());
    case ENOBUFS:
    case ENOMEM: return Outcome::exhausted;
    case EAGAIN:
    case EBADF:
    case EINVAL: return Outcome::none;
    default: return Outcome::failed;
  }
}

Acceptor::Outcome Acceptor::reject_one(int listener) {
  if (!reserve_) reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!reserve_) return Outcome::exhausted;
  reserve_.reset();
  UniqueFd connection(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  // accept() reports the descriptor limit before it looks for a pending connection.
  const Outcome outcome = connection ? Outcome::rejected : errno == EAGAIN ? Outcome::none : Outcome::exhausted;
  connection.reset();
  reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return outcome;
}

}  // namespace ddrun
