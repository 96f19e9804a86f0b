#include "tcp/links.hpp"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/text.hpp"
#include "describe.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t token_length = 32;
/// Time limit for a peer's hello, and limit of connections waiting for one.
constexpr auto hello_timeout = 2s;
constexpr std::size_t max_pending = 1024;

Result<std::string> random_token() {
  std::array<std::byte, token_length / 2> bytes{};
  TRY(fill_random(bytes));
  return in_hex(bytes);
}

Result<Listener> listen_on(const std::string& address) {
  if (!SocketAddress::parse(address, 0)) {
    return fail(Errc::invalid_argument, concat("'", address, "' is not a numeric address"));
  }
  return std::move(TRY(open_listeners({address}, 0)).front());
}

/// Waits until the connection is made or refused: 0 or an errno, ETIMEDOUT after the deadline.
int finish_connecting(int fd, Deadline deadline) {
  pollfd one{fd, POLLOUT, 0};
  while (poll(&one, 1, poll_timeout(deadline)) <= 0) {
    if (Clock::now() >= deadline) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

}  // namespace

int TcpLinks::fd_of(const std::vector<Streams>& all, int peer, int stream) {
  const Streams& streams = all[static_cast<std::size_t>(peer)];
  const auto i = static_cast<std::size_t>(stream);
  return i < streams.size() ? streams[i].get() : -1;
}

Result<TcpLinks> TcpLinks::connect(const Group& group, Deadline deadline) {
  TcpLinks links;
  links.rank_ = group.rank;
  links.size_ = group.size;
  links.to_.resize(static_cast<std::size_t>(group.size));
  links.from_.resize(static_cast<std::size_t>(group.size));
  if (group.size == 1) return links;

  auto listener = listen_on(group.address);
  auto token = random_token();
  Result<void> ready;
  if (!listener) ready = tl::unexpected(listener.error());
  else if (!token) ready = tl::unexpected(token.error());
  TRY(agree(group, "listening", ready, deadline));
  links.listener_ = std::move(*listener);
  links.token_ = std::move(*token);
  links.endpoints_ =
      TRY(exchange(group, "ring", concat(group.address, ' ', links.listener_.at.port(), ' ', links.token_), deadline));

  // Connecting first cannot deadlock: the kernel's accept queue completes connections.
  TRY(links.connect((group.rank + 1) % group.size, 1, deadline));
  TRY(links.accept_previous(deadline));
  // From here on a lost rank is detected by a connected neighbour.
  TRY(exchange(group, "connected", "yes", deadline));
  return links;
}

Result<void> TcpLinks::accept_previous(Deadline deadline) {
  const int previous = (rank_ + size_ - 1) % size_;
  std::vector<pollfd> polled;
  while (true) {
    TRY(accept_pending());
    if (from(previous, 0) >= 0) return {};
    if (Clock::now() >= deadline) {
      return fail(Errc::timeout, concat("rank ", previous, " did not connect in time"));
    }
    polled.clear();
    add_poll_fds(polled);
    // Wakes up in time to drop peers whose hello is late.
    poll(polled.data(), polled.size(), poll_timeout(std::min(deadline, Clock::now() + hello_timeout)));
  }
}

/// An endpoint is "address port token", as published by the peer.
Result<TcpLinks::Endpoint> TcpLinks::endpoint_of(int peer) const {
  const std::string& text = endpoints_[static_cast<std::size_t>(peer)];
  const std::vector<std::string> fields = split(text, ' ');
  const auto port = fields.size() == 3 ? parse_integer(fields[1], 1, 65535) : parse_integer("", 1, 1);
  const auto at = port ? SocketAddress::parse(fields[0], static_cast<std::uint16_t>(*port)) : std::nullopt;
  if (!at || fields[2].size() != token_length) {
    return fail(Errc::protocol, concat("rank ", peer, " gave '", text, "' as its address"));
  }
  return Endpoint{*at, fields[2]};
}

bool TcpLinks::one_machine() const {
  const auto address = [](const std::string& endpoint) {
    return std::string_view(endpoint).substr(0, endpoint.find(' '));
  };
  return std::all_of(endpoints_.begin(), endpoints_.end(),
                     [&](const std::string& endpoint) { return address(endpoint) == address(endpoints_[0]); });
}

Result<void> TcpLinks::connect(int peer, int streams, Deadline deadline) {
  Streams& link = to_[static_cast<std::size_t>(peer)];
  const std::size_t first = link.size();
  const auto wanted = static_cast<std::size_t>(streams);
  if (first >= wanted) return {};
  const auto endpoint = TRY(endpoint_of(peer));
  // Start all connections before waiting for the first.
  while (link.size() < wanted) {
    UniqueFd fd(socket(endpoint.at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return connect_error(peer, errno);
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd.get(), endpoint.at.get(), endpoint.at.size) != 0 && errno != EINPROGRESS) {
      return connect_error(peer, errno);
    }
    link.push_back(std::move(fd));
  }
  for (std::size_t i = first; i < wanted; ++i) {
    if (const int error = finish_connecting(link[i].get(), deadline); error != 0) return connect_error(peer, error);
    HelloMessage hello{{}, static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(i)};
    std::memcpy(hello.token.data(), endpoint.token.data(), token_length);
    // The buffer of a new connection always has room for a hello.
    if (send(link[i].get(), &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) {
      return connect_error(peer, errno);
    }
  }
  return {};
}

/// A rank listens from before it publishes its endpoint until it exits, so a reset, or a refusal on the same host,
/// means it has exited.
tl::unexpected<Error> TcpLinks::connect_error(int peer, int error) const {
  const auto address = [this](int rank) {
    const std::string& endpoint = endpoints_[static_cast<std::size_t>(rank)];
    return std::string_view(endpoint).substr(0, endpoint.find(' '));
  };
  // Between machines a firewall may refuse.
  const bool refused_here = error == ECONNREFUSED && address(peer) == address(rank_);
  if (error == ECONNRESET || error == EPIPE || refused_here) {
    return fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
  }
  const auto endpoint = endpoint_of(peer);
  const std::string what = concat("cannot connect to rank ", peer, " at ", endpoint ? endpoint->at.text() : "?");
  if (error == ETIMEDOUT) return fail(Errc::timeout, what + ": no answer in time");
  return fail_errno(error == EMFILE || error == ENFILE ? Errc::unavailable : Errc::connection_lost, what, error);
}

Result<void> TcpLinks::accept_pending() {
  while (true) {
    UniqueFd fd;
    sockaddr_storage peer_address{};
    const auto outcome = acceptor_.next(listener_, fd, peer_address);
    if (outcome == Acceptor::Outcome::none) break;
    if (outcome == Acceptor::Outcome::failed) continue;
    if (outcome != Acceptor::Outcome::accepted) {
      return fail(Errc::unavailable,
                  "cannot answer another rank's connection: this process or machine has no "
                  "descriptor left; raise the limit on open files (ulimit -n)");
    }
    if (pending_.size() == max_pending) pending_.erase(pending_.begin());
    pending_.push_back({std::move(fd), {}, 0, Clock::now() + hello_timeout});
  }
  std::erase_if(pending_, [&](PendingPeer& peer) {
    const Hello status = read_hello(peer);
    if (status == Hello::valid) register_peer(peer);
    return status != Hello::incomplete || Clock::now() >= peer.deadline;
  });
  return {};
}

TcpLinks::Hello TcpLinks::read_hello(PendingPeer& peer) const {
  while (peer.have < peer.received.size()) {
    const ssize_t got = recv(peer.fd.get(), peer.received.data() + peer.have, peer.received.size() - peer.have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Hello::incomplete;
    if (got <= 0) return Hello::invalid;
    peer.have += static_cast<std::size_t>(got);
    // Close at the first wrong character.
    const std::size_t length = std::min(peer.have, token_length);
    if (std::memcmp(peer.received.data(), token_.data(), length) != 0) return Hello::invalid;
  }
  return Hello::valid;
}

void TcpLinks::register_peer(PendingPeer& peer) {
  HelloMessage hello{};
  std::memcpy(&hello, peer.received.data(), sizeof(hello));
  if (hello.rank >= static_cast<std::uint32_t>(size_) || hello.stream >= max_streams) return;
  Streams& link = from_[hello.rank];
  if (link.size() <= hello.stream) link.resize(hello.stream + 1);
  if (!link[hello.stream]) link[hello.stream] = std::move(peer.fd);
}

void TcpLinks::add_poll_fds(std::vector<pollfd>& polled) const {
  polled.push_back({listener_.fd.get(), POLLIN, 0});
  for (const PendingPeer& peer : pending_) polled.push_back({peer.fd.get(), POLLIN, 0});
}

void TcpLinks::close() {
  for (auto* const links : {&to_, &from_}) {
    for (Streams& link : *links) link.clear();
  }
  pending_.clear();
  listener_.fd.reset();
}

TcpWatch::TcpWatch(int rank, int size)
    : rank_(rank), size_(size), partial_(static_cast<std::size_t>(size)), left_(static_cast<std::size_t>(size)) {}

void TcpWatch::begin(const Call& call, std::uint64_t number) {
  call_ = call;
  number_ = number;
  notice_sent_ = false;
}

bool TcpWatch::can_read(const TcpLinks& links, int peer) const { return links.to(peer, 0) >= 0 && !has_left(peer); }

Result<void> TcpWatch::read_notices(const TcpLinks& links, int peer) {
  PartialNotice& part = partial_[static_cast<std::size_t>(peer)];
  while (can_read(links, peer)) {
    const ssize_t got =
        recv(links.to(peer, 0), part.bytes.data() + part.have, part.bytes.size() - part.have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      left_[static_cast<std::size_t>(peer)] = 1;
      return fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
    }
    part.have += static_cast<std::size_t>(got);
    if (part.have < part.bytes.size()) continue;
    part.have = 0;
    Notice notice;
    std::memcpy(&notice, part.bytes.data(), sizeof(notice));
    if (notice.call == leaving) left_[static_cast<std::size_t>(peer)] = 1;
    else if (peer == next()) next_notice_ = notice;
  }
  return peer == next() ? compare() : Result<void>();
}

/// The next rank's notice may have arrived before this rank began that call.
Result<void> TcpWatch::compare() const {
  if (next_notice_.call != number_ || number_ == 0) return {};
  if (next_notice_.kind == kind_of(call_) && next_notice_.count == call_.count) return {};
  return call_mismatch(next(), static_cast<std::uint32_t>(next_notice_.kind), next_notice_.count, rank_, call_);
}

void TcpWatch::send_call_notice(const TcpLinks& links) {
  if (notice_sent_) return;
  notice_sent_ = true;
  send_notice(links.from((rank_ + size_ - 1) % size_, 0), {number_, kind_of(call_), call_.count});
}

void TcpWatch::send_leave_notice(const TcpLinks& links, int size) {
  for (int peer = 0; peer < size; ++peer) send_notice(links.from(peer, 0), {leaving, 0, 0});
}

/// Notices are so few and small that the socket buffer always has room.
void TcpWatch::send_notice(int fd, const Notice& notice) {
  if (fd >= 0) (void)!send(fd, &notice, sizeof(notice), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace ddrun::collectives
