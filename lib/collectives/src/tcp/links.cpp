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

constexpr std::size_t word_letters = 32;
/// How long a caller may take to say who it is, and how many may do so at a time.
constexpr auto hello_patience = 2s;
constexpr std::size_t max_callers = 1024;

Result<std::string> secret_word() {
  std::array<std::byte, word_letters / 2> bytes{};
  if (auto filled = fill_random(bytes); !filled) return tl::unexpected(filled.error());
  return in_hex(bytes);
}

Result<Listener> listen_on(const std::string& address) {
  if (!SocketAddress::parse(address, 0)) {
    return fail(Errc::invalid_argument, concat("'", address, "' is not a numeric address"));
  }
  auto listeners = open_listeners({address}, 0);
  if (!listeners) return tl::unexpected(listeners.error());
  return std::move(listeners->front());
}

/// Until the connection is made or refused: errno, or ETIMEDOUT once the deadline has passed.
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

int TcpLinks::of(const std::vector<Streams>& all, int peer, int stream) {
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
  auto word = secret_word();
  Result<void> ready;
  if (!listener) ready = tl::unexpected(listener.error());
  else if (!word) ready = tl::unexpected(word.error());
  const auto listening = agree(group, "listening", ready, deadline);
  if (!listening) return tl::unexpected(listening.error());
  links.listener_ = std::move(*listener);
  links.word_ = std::move(*word);
  auto places =
      exchange(group, "ring", concat(group.address, ' ', links.listener_.at.port(), ' ', links.word_), deadline);
  if (!places) return tl::unexpected(places.error());
  links.places_ = std::move(*places);

  // Calling first cannot block a rank: the peer's queue answers before the peer does.
  if (auto called = links.call((group.rank + 1) % group.size, 1, deadline); !called) {
    return tl::unexpected(called.error());
  }
  if (auto called = links.wait_for_previous(deadline); !called) return tl::unexpected(called.error());
  // A rank that is lost from here on is seen by a connected neighbour.
  if (auto all_there = exchange(group, "connected", "yes", deadline); !all_there) {
    return tl::unexpected(all_there.error());
  }
  return links;
}

Result<void> TcpLinks::wait_for_previous(Deadline deadline) {
  const int previous = (rank_ + size_ - 1) % size_;
  std::vector<pollfd> polled;
  while (true) {
    if (auto answered = answer(); !answered) return answered;
    if (from(previous, 0) >= 0) return {};
    if (Clock::now() >= deadline) {
      return fail(Errc::timeout, concat("rank ", previous, " did not connect in time"));
    }
    polled.clear();
    poll_for_callers(polled);
    // Who takes too long to say its word is not waited for; see answer().
    poll(polled.data(), polled.size(), poll_timeout(std::min(deadline, Clock::now() + hello_patience)));
  }
}

/// A place is "address port word", as the peer published it.
Result<TcpLinks::Place> TcpLinks::place_of(int peer) const {
  const std::string& text = places_[static_cast<std::size_t>(peer)];
  const std::vector<std::string> fields = split(text, ' ');
  const auto port = fields.size() == 3 ? parse_integer(fields[1], 1, 65535) : parse_integer("", 1, 1);
  const auto at = port ? SocketAddress::parse(fields[0], static_cast<std::uint16_t>(*port)) : std::nullopt;
  if (!at || fields[2].size() != word_letters) {
    return fail(Errc::protocol, concat("rank ", peer, " gave '", text, "' as its address"));
  }
  return Place{*at, fields[2]};
}

bool TcpLinks::one_machine() const {
  const auto address = [](const std::string& place) { return std::string_view(place).substr(0, place.find(' ')); };
  return std::all_of(places_.begin(), places_.end(),
                     [&](const std::string& place) { return address(place) == address(places_[0]); });
}

Result<void> TcpLinks::call(int peer, int streams, Deadline deadline) {
  Streams& link = to_[static_cast<std::size_t>(peer)];
  const std::size_t first = link.size();
  const auto wanted = static_cast<std::size_t>(streams);
  if (first >= wanted) return {};
  const auto place = place_of(peer);
  if (!place) return tl::unexpected(place.error());
  // All begin before the first is waited for.
  while (link.size() < wanted) {
    UniqueFd fd(socket(place->at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return cannot_call(peer, errno);
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd.get(), place->at.get(), place->at.size) != 0 && errno != EINPROGRESS) {
      return cannot_call(peer, errno);
    }
    link.push_back(std::move(fd));
  }
  for (std::size_t i = first; i < wanted; ++i) {
    if (const int error = finish_connecting(link[i].get(), deadline); error != 0) return cannot_call(peer, error);
    Hello hello{{}, static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(i)};
    std::memcpy(hello.word.data(), place->word.data(), word_letters);
    // A new connection always has room for this little.
    if (send(link[i].get(), &hello, sizeof(hello), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) {
      return cannot_call(peer, errno);
    }
  }
  return {};
}

/// A rank listens from before it told others where until it ends: what its system answers by itself says that it has.
tl::unexpected<Error> TcpLinks::cannot_call(int peer, int error) const {
  const auto address = [this](int rank) {
    const std::string& place = places_[static_cast<std::size_t>(rank)];
    return std::string_view(place).substr(0, place.find(' '));
  };
  // From another machine it may be a firewall that refuses.
  const bool refused_here = error == ECONNREFUSED && address(peer) == address(rank_);
  if (error == ECONNRESET || error == EPIPE || refused_here) {
    return fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
  }
  const auto place = place_of(peer);
  const std::string what = concat("cannot connect to rank ", peer, " at ", place ? place->at.text() : "?");
  if (error == ETIMEDOUT) return fail(Errc::timeout, what + ": no answer in time");
  return fail_errno(error == EMFILE || error == ENFILE ? Errc::unavailable : Errc::connection_lost, what, error);
}

Result<void> TcpLinks::answer() {
  while (true) {
    UniqueFd fd;
    sockaddr_storage who{};
    const auto outcome = acceptor_.next(listener_, fd, who);
    if (outcome == Acceptor::Outcome::none) break;
    if (outcome == Acceptor::Outcome::failed) continue;
    if (outcome != Acceptor::Outcome::accepted) {
      return fail(Errc::unavailable,
                  "cannot answer another rank's connection: this process or machine has no "
                  "descriptor left; raise the limit on open files (ulimit -n)");
    }
    if (callers_.size() == max_callers) callers_.erase(callers_.begin());
    callers_.push_back({std::move(fd), {}, 0, Clock::now() + hello_patience});
  }
  std::erase_if(callers_, [&](Caller& caller) {
    const Heard heard = listen_to(caller);
    if (heard == Heard::friendly) welcome(caller);
    return heard != Heard::more || Clock::now() >= caller.until;
  });
  return {};
}

TcpLinks::Heard TcpLinks::listen_to(Caller& caller) const {
  while (caller.have < caller.said.size()) {
    const ssize_t got = recv(caller.fd.get(), caller.said.data() + caller.have, caller.said.size() - caller.have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Heard::more;
    if (got <= 0) return Heard::stranger;
    caller.have += static_cast<std::size_t>(got);
    // Hung up on at the first wrong letter.
    const std::size_t letters = std::min(caller.have, word_letters);
    if (std::memcmp(caller.said.data(), word_.data(), letters) != 0) return Heard::stranger;
  }
  return Heard::friendly;
}

void TcpLinks::welcome(Caller& caller) {
  Hello hello{};
  std::memcpy(&hello, caller.said.data(), sizeof(hello));
  if (hello.rank >= static_cast<std::uint32_t>(size_) || hello.stream >= max_streams) return;
  Streams& link = from_[hello.rank];
  if (link.size() <= hello.stream) link.resize(hello.stream + 1);
  if (!link[hello.stream]) link[hello.stream] = std::move(caller.fd);
}

void TcpLinks::poll_for_callers(std::vector<pollfd>& polled) const {
  polled.push_back({listener_.fd.get(), POLLIN, 0});
  for (const Caller& caller : callers_) polled.push_back({caller.fd.get(), POLLIN, 0});
}

void TcpLinks::close() {
  for (auto* const links : {&to_, &from_}) {
    for (Streams& link : *links) link.clear();
  }
  callers_.clear();
  listener_.fd.reset();
}

TcpWatch::TcpWatch(int rank, int size)
    : rank_(rank), size_(size), halves_(static_cast<std::size_t>(size)), left_(static_cast<std::size_t>(size)) {}

void TcpWatch::begin(const Call& call, std::uint64_t number) {
  call_ = call;
  number_ = number;
  told_ = false;
}

bool TcpWatch::can_hear(const TcpLinks& links, int peer) const { return links.to(peer, 0) >= 0 && !has_left(peer); }

Result<void> TcpWatch::hear(const TcpLinks& links, int peer) {
  Half& half = halves_[static_cast<std::size_t>(peer)];
  while (can_hear(links, peer)) {
    const ssize_t got =
        recv(links.to(peer, 0), half.bytes.data() + half.have, half.bytes.size() - half.have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      left_[static_cast<std::size_t>(peer)] = 1;
      return fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
    }
    half.have += static_cast<std::size_t>(got);
    if (half.have < half.bytes.size()) continue;
    half.have = 0;
    Notice notice;
    std::memcpy(&notice, half.bytes.data(), sizeof(notice));
    if (notice.call == leaving) left_[static_cast<std::size_t>(peer)] = 1;
    else if (peer == next()) next_says_ = notice;
  }
  return peer == next() ? compare() : Result<void>();
}

/// The next rank may have said it before this one came to that call.
Result<void> TcpWatch::compare() const {
  if (next_says_.call != number_ || number_ == 0) return {};
  if (next_says_.kind == kind_of(call_) && next_says_.count == call_.count) return {};
  return different_calls(next(), static_cast<std::uint32_t>(next_says_.kind), next_says_.count, rank_, call_);
}

void TcpWatch::tell_call(const TcpLinks& links) {
  if (told_) return;
  told_ = true;
  tell(links.from((rank_ + size_ - 1) % size_, 0), {number_, kind_of(call_), call_.count});
}

void TcpWatch::tell_leaving(const TcpLinks& links, int size) {
  for (int peer = 0; peer < size; ++peer) tell(links.from(peer, 0), {leaving, 0, 0});
}

/// Notices are so few and small that there is always room for one.
void TcpWatch::tell(int fd, const Notice& notice) {
  if (fd >= 0) (void)!send(fd, &notice, sizeof(notice), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace ddrun::collectives
