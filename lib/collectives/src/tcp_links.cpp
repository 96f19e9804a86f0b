#include "tcp_links.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

#include "ddrun/base/text.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kWord = 32;  // hexadecimal digits

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  static Result<Address> numeric(const std::string& text, std::uint16_t port) {
    Address address;
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    if (inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
      v4.sin_family = AF_INET;
      v4.sin_port = htons(port);
      address.length = sizeof(v4);
    } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
      v6.sin6_family = AF_INET6;
      v6.sin6_port = htons(port);
      address.length = sizeof(v6);
    } else {
      return fail(Errc::invalid_argument, concat("'", text, "' is not a numeric address"));
    }
    return address;
  }
};

std::string random_word() {
  std::array<unsigned char, kWord / 2> bytes{};
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (got > 0) have += static_cast<std::size_t>(got);
  }
  std::string word;
  for (const unsigned byte : bytes) {
    word += "0123456789abcdef"[byte >> 4U];
    word += "0123456789abcdef"[byte & 15U];
  }
  return word;
}

struct Listener {
  UniqueFd socket;
  std::uint16_t port = 0;
};

Result<Listener> listen_on(const std::string& text) {
  auto address = Address::numeric(text, 0);
  if (!address) return tl::unexpected(address.error());
  Listener listener;
  listener.socket.reset(socket(address->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket || bind(listener.socket.get(), address->get(), address->length) != 0 ||
      listen(listener.socket.get(), 16) != 0 ||
      getsockname(listener.socket.get(), address->get(), &address->length) != 0) {
    return fail_errno(Errc::unavailable, concat("cannot listen on ", text), errno);
  }
  listener.port =
      ntohs(address->get()->sa_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address->storage).sin_port
                                                 : reinterpret_cast<const sockaddr_in6&>(address->storage).sin6_port);
  return listener;
}

void no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/// `where` is "address port word" as the peer published it.
Result<UniqueFd> call(int peer, const std::string& where, Deadline deadline) {
  const std::vector<std::string> fields = split(where, ' ');
  const auto port = fields.size() == 3 ? parse_integer(fields[1], 1, 65535) : parse_integer("", 1, 1);
  if (!port || fields[2].size() != kWord) {
    return fail(Errc::protocol, concat("rank ", peer, " gave '", where, "' as its address"));
  }
  const auto address = Address::numeric(fields[0], static_cast<std::uint16_t>(*port));
  if (!address) return tl::unexpected(address.error());
  const std::string what = concat("cannot connect to rank ", peer, " at ", fields[0], " port ", *port);
  UniqueFd fd(socket(address->get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail_errno(Errc::unavailable, what, errno);
  if (::connect(fd.get(), address->get(), address->length) != 0 && errno != EINPROGRESS) {
    return fail_errno(Errc::connection_lost, what, errno);
  }
  if (!wait_for(fd.get(), POLLOUT, deadline)) return fail(Errc::timeout, what + ": no answer in time");
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return fail_errno(Errc::connection_lost, what, error);
  no_delay(fd.get());
  // A new connection always has room for this little.
  if (send(fd.get(), fields[2].data(), kWord, MSG_NOSIGNAL) != static_cast<ssize_t>(kWord)) {
    return fail_errno(Errc::connection_lost, what, errno);
  }
  return fd;
}

/// Whether the caller says the word, within the time a stranger may take of ours.
bool knows(int fd, const std::string& word, Deadline deadline) {
  std::array<char, kWord> said{};
  std::size_t have = 0;
  while (have < said.size()) {
    if (!wait_for(fd, POLLIN, deadline)) return false;
    const ssize_t got = recv(fd, said.data() + have, said.size() - have, 0);
    if (got > 0) have += static_cast<std::size_t>(got);
    else if (got == 0 || (errno != EAGAIN && errno != EINTR)) return false;
  }
  return std::string_view(said.data(), said.size()) == word;
}

Result<UniqueFd> answer(int peer, int listener, const std::string& word, Deadline deadline) {
  while (wait_for(listener, POLLIN, deadline)) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      return fail_errno(Errc::unavailable, concat("cannot accept rank ", peer), errno);
    }
    no_delay(fd.get());
    if (knows(fd.get(), word, std::min(deadline, Clock::now() + 2s))) return fd;
  }
  return fail(Errc::timeout, concat("rank ", peer, " did not connect in time"));
}

}  // namespace

int poll_timeout(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

bool wait_for(int fd, short events, Deadline deadline) {
  pollfd one{fd, events, 0};
  while (true) {
    const int ready = poll(&one, 1, poll_timeout(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

Result<RingLinks> connect_ring(const Group& group, Deadline deadline) {
  auto listener = listen_on(group.address);
  const std::string word = random_word();
  const auto listening =
      agree(group, "listening", listener ? Result<void>() : tl::unexpected(listener.error()), deadline);
  if (!listening) return tl::unexpected(listening.error());
  const auto all = exchange(group, "ring", concat(group.address, ' ', listener->port, ' ', word), deadline);
  if (!all) return tl::unexpected(all.error());

  // Calling first cannot block anybody: the peer's queue answers before the peer does.
  const int next = (group.rank + 1) % group.size;
  const int previous = (group.rank + group.size - 1) % group.size;
  RingLinks links;
  auto to_next = call(next, (*all)[static_cast<std::size_t>(next)], deadline);
  if (!to_next) return tl::unexpected(to_next.error());
  links.to_next = std::move(*to_next);
  auto from_previous = answer(previous, listener->socket.get(), word, deadline);
  if (!from_previous) return tl::unexpected(from_previous.error());
  links.from_previous = std::move(*from_previous);
  // Whoever is lost from here on is seen by a connected neighbour.
  if (auto all_there = exchange(group, "connected", "yes", deadline); !all_there) {
    return tl::unexpected(all_there.error());
  }
  return links;
}

}  // namespace ddrun::collectives
