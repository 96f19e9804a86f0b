#include "client_socket.hpp"

#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace ddrun::store {

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

}  // namespace ddrun::store
