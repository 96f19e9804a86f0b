#include "ddrun/store/tcp_server.hpp"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>

#include "connection.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/listener.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "wire.hpp"

namespace ddrun::store {

namespace {

/// How long to poll for the next request before sleeping. Waking a sleeping thread takes longer than a client needs for
/// its next request, so spinning makes a series of requests much faster.
constexpr std::chrono::microseconds spin_time{50};
/// After so many fruitless spins in a row the thread sleeps at once, until requests come close together again.
constexpr int max_failed_spins = 4;
// Of TcpServer::waits().
constexpr std::size_t max_waiting_clients = 4096;
constexpr std::size_t max_awaited_keys = 3;
constexpr std::size_t max_key_text = 100;

/// The addresses of clients that may connect.
class AllowedPeers {
 public:
  static Result<AllowedPeers> from(const std::vector<std::string>& addresses) {
    AllowedPeers peers;
    if (addresses.empty()) return peers;
    peers.sorted_ = own_addresses();
    for (const auto& text : addresses) {
      const auto address = IpAddress::parse(text);
      if (!address) return fail(Errc::invalid_argument, concat("'", text, "' is not an IP address of a client"));
      peers.sorted_.push_back(*address);
    }
    std::sort(peers.sorted_.begin(), peers.sorted_.end());
    peers.all_allowed_ = false;
    return peers;
  }

  [[nodiscard]] bool all_allowed() const { return all_allowed_; }
  [[nodiscard]] bool allow(const IpAddress& address) const {
    return all_allowed_ || address.is_loopback() || std::binary_search(sorted_.begin(), sorted_.end(), address);
  }

 private:
  std::vector<IpAddress> sorted_;
  bool all_allowed_ = true;
};

bool has_several_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  // Fails where there are more CPUs than the set holds, which is several.
  return ::sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) > 1;
}

}  // namespace

/// The server's thread and its state. Uses level-triggered epoll directly: a request costs one recv, one send and its
/// share of one epoll_wait; a general event loop adds a system call or two to each.
class TcpServer::Loop {
 public:
  Loop(std::vector<Listener> listeners, AllowedPeers peers, const TcpServerOptions& options)
      : listeners_(std::move(listeners)), on_refusal_(options.on_refusal), peers_(std::move(peers)) {
    shared_.state.memory_limit = options.max_memory;
  }
  ~Loop();

  Result<void> open();
  Result<void> serve() {
    return thread_.start("ddrun-store", [this] { run(); });
  }
  [[nodiscard]] int descriptor() const { return thread_.descriptor(); }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::vector<std::string> addresses() const { return listener_addresses(listeners_); }
  Result<void> new_round();
  Result<void> new_round(AllowedPeers peers);
  TcpServerStats stats();
  std::vector<TcpServerWait> waits();

 private:
  // epoll's user data: these small numbers, else the address of a Connection.
  static constexpr std::uint64_t first_listener_token = EventThread::wakeup_token + 1;

  void run();
  int wait_for_events();
  void on_event(const epoll_event& event);
  void accept_from(Listener& listener);
  void pause_listening(bool paused);
  [[nodiscard]] bool is_allowed(const sockaddr_storage& peer);
  void add_connection(UniqueFd fd);
  void update_watch(Connection& connection, bool keep);
  void send_outbox();
  void refuse(Connection& connection);
  void close(Connection& connection);
  Result<void> clear();
  TcpServerStats collect() const;
  [[nodiscard]] std::vector<TcpServerWait> collect_waits() const;

  // Used by the thread after serve().
  std::vector<Listener> listeners_;
  std::function<void(const std::string&)> on_refusal_;
  std::uint16_t port_ = 0;
  EventThread thread_;

  // Used by the thread only.
  AllowedPeers peers_;
  std::array<epoll_event, 128> events_;
  ServerShared shared_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Connection>> closed_;  // kept until no event of the present batch can refer to them
  std::size_t peak_connections_ = 0;
  std::size_t peak_memory_ = 0;
  std::uint64_t accepted_ = 0;
  std::uint64_t rejected_peers_ = 0;
  std::uint64_t reported_refusals_ = 0;  // including those above the log limit
  Acceptor acceptor_;
  bool listening_paused_ = false;
  bool stopping_ = false;
  const bool may_spin_ = has_several_cpus();
  bool spinning_ = false;
  int failed_spins_ = 0;
};

Result<void> TcpServer::Loop::open() {
  port_ = listeners_.front().at.port();
  TRY(thread_.open("cannot start the store"));
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (!thread_.watch(EPOLL_CTL_ADD, listeners_[i].fd.get(), EPOLLIN, first_listener_token + i)) {
      return fail_errno(Errc::unavailable, "cannot start the store", errno);
    }
  }
  return {};
}

TcpServer::Loop::~Loop() {
  if (thread_.started()) {
    thread_.call([this] {
      while (!connections_.empty()) close(*connections_.back());
      stopping_ = true;
    });
    thread_.join();
  }
  // shutdown(), as a child between clone and exec may hold copies of the descriptors.
  for (auto& listener : listeners_) ::shutdown(listener.fd.get(), SHUT_RDWR);
}

Result<void> TcpServer::Loop::new_round() {
  Result<void> outcome;
  thread_.call([&] { outcome = clear(); });
  return outcome;
}

Result<void> TcpServer::Loop::new_round(AllowedPeers peers) {
  Result<void> outcome;
  thread_.call([&] {
    peers_ = std::move(peers);
    outcome = clear();
  });
  return outcome;
}

TcpServerStats TcpServer::Loop::stats() {
  TcpServerStats stats;
  thread_.call([&] { stats = collect(); });
  return stats;
}

TcpServerStats TcpServer::Loop::collect() const {
  const ServerState& state = shared_.state;
  TcpServerStats stats;
  stats.keys = state.space.size();
  stats.memory = state.memory();
  stats.peak_memory = std::max(peak_memory_, state.memory());
  stats.connections = connections_.size();
  stats.peak_connections = peak_connections_;
  stats.accepted = accepted_;
  stats.refused = state.refused;
  stats.rejected_peers = rejected_peers_;
  stats.bytes_in = shared_.bytes_in;
  stats.bytes_out = shared_.bytes_out;
  for (std::size_t op = 0; op < state.requests.size(); ++op) {
    if (state.requests[op] == 0) continue;
    stats.requests.emplace_back(opcode_name(static_cast<wire::Opcode>(op)), state.requests[op]);
  }
  return stats;
}

std::vector<TcpServerWait> TcpServer::Loop::waits() {
  std::vector<TcpServerWait> waits;
  thread_.call([&] { waits = collect_waits(); });
  return waits;
}

std::vector<TcpServerWait> TcpServer::Loop::collect_waits() const {
  std::map<std::vector<std::string_view>, TcpServerWait> by_keys;
  std::size_t count = 0;
  for (const auto& connection : connections_) {
    const auto peer = connection->waiting() ? peer_socket_address(connection->fd()) : std::nullopt;
    if (!peer) continue;
    if (++count > max_waiting_clients) break;
    auto keys = shared_.state.space.awaited_by(*connection);
    TcpServerWait& wait = by_keys[keys];
    const auto since = connection->waiting_since();
    wait.since = wait.clients.empty() ? since : std::min(wait.since, since);
    wait.clients.push_back(peer->text());
  }
  std::vector<TcpServerWait> waits;
  for (auto& [keys, wait] : by_keys) {
    const std::size_t shown = std::min(keys.size(), max_awaited_keys);
    for (std::size_t i = 0; i < shown; ++i) wait.keys.emplace_back(keys[i].substr(0, max_key_text));
    wait.keys_left_out = keys.size() - shown;
    waits.push_back(std::move(wait));
  }
  return waits;
}

void TcpServer::Loop::run() {
  while (!stopping_) {
    const int count = wait_for_events();
    for (int i = 0; i < count; ++i) on_event(events_[static_cast<std::size_t>(i)]);
    send_outbox();
    // By index: closing a client may wake others, which are appended.
    for (std::size_t i = 0; i < shared_.woken.size(); ++i) {
      Connection& connection = *shared_.woken[i];
      if (connection.fd() >= 0) update_watch(connection, connection.flush());
    }
    shared_.woken.clear();
    closed_.clear();
    peak_memory_ = std::max(peak_memory_, shared_.state.memory());
  }
}

int TcpServer::Loop::wait_for_events() {
  const auto wait = [this](int timeout) { return thread_.wait(events_, timeout); };
  if (spinning_) {
    const auto end = Clock::now() + spin_time;
    do {
      if (const int count = wait(0); count != 0) {
        failed_spins_ = 0;
        return count;
      }
    } while (Clock::now() < end);
    spinning_ = ++failed_spins_ < max_failed_spins;
  }
  const auto asleep = Clock::now();
  const int count = wait(-1);
  if (!spinning_ && may_spin_ && Clock::now() - asleep < spin_time) {
    spinning_ = true;
    failed_spins_ = 0;
  }
  return count;
}

void TcpServer::Loop::on_event(const epoll_event& event) {
  const std::uint64_t token = event.data.u64;
  if (token == EventThread::wakeup_token) return thread_.run_pending_call();
  if (token < first_listener_token + listeners_.size()) return accept_from(listeners_[token - first_listener_token]);

  auto& connection = *reinterpret_cast<Connection*>(static_cast<std::uintptr_t>(token));
  if (connection.fd() < 0) return;  // closed by an earlier event of this batch
  // recv() or send() reports a reset, so EPOLLERR and EPOLLHUP need no handling.
  update_watch(connection, connection.watched_for_out ? connection.on_writable() : connection.on_readable());
}

void TcpServer::Loop::update_watch(Connection& connection, bool keep) {
  if (!keep) return refuse(connection);
  if (connection.woken()) return;  // the flush at the end of this batch will probably empty the buffer
  const bool wants_out = connection.has_unsent();
  if (wants_out == connection.watched_for_out) return;
  connection.watched_for_out = wants_out;
  if (!thread_.watch(EPOLL_CTL_MOD, connection.fd(), wants_out ? EPOLLOUT : EPOLLIN,
                     reinterpret_cast<std::uintptr_t>(&connection))) {
    close(connection);
  }
}

/// Closes a connection, and reports the reason if the client was refused.
void TcpServer::Loop::refuse(Connection& connection) {
  std::string refusal_reason = std::exchange(shared_.state.refusal_reason, {});
  if (!refusal_reason.empty() && on_refusal_ && should_log(++reported_refusals_)) {
    const auto peer = peer_socket_address(connection.fd());
    on_refusal_(
        concat("the store has cut off its client ", peer ? peer->text() : "(gone)", ": ", refusal_reason,
               reported_refusals_ > log_limit ? concat(" (number ", reported_refusals_, "; not all are shown)") : ""));
  }
  close(connection);
}

void TcpServer::Loop::send_outbox() {
  Outbox& outbox = shared_.outbox;
  const std::string_view bytes = outbox.bytes;
  for (const auto& [to, begin, size] : outbox.items) {
    if (to->fd() >= 0) update_watch(*to, to->deliver(bytes.substr(begin, size)));
  }
  outbox.items.clear();
  outbox.bytes.clear();
}

void TcpServer::Loop::close(Connection& connection) {
  // Closing does not end the watch while a child between clone and exec holds a copy of the descriptor.
  thread_.forget(connection.fd());
  connection.close();
  auto& place = connections_[connection.index];
  closed_.push_back(std::move(place));
  if (&place != &connections_.back()) {
    place = std::move(connections_.back());
    place->index = closed_.back()->index;
  }
  connections_.pop_back();
  if (listening_paused_) pause_listening(false);
}

void TcpServer::Loop::accept_from(Listener& listener) {
  // A bounded number at a time, so that existing clients are served too.
  for (int left = 64; left > 0; --left) {
    UniqueFd fd;
    sockaddr_storage peer{};
    switch (acceptor_.next(listener, fd, peer)) {
      case Acceptor::Outcome::accepted:
        if (is_allowed(peer)) add_connection(std::move(fd));
        break;
      case Acceptor::Outcome::rejected:  // closed, so that the client gets an error
      case Acceptor::Outcome::failed: break;
      case Acceptor::Outcome::none: return;
      case Acceptor::Outcome::exhausted: return pause_listening(true);
    }
  }
}

bool TcpServer::Loop::is_allowed(const sockaddr_storage& peer) {
  if (peers_.all_allowed()) return true;
  const auto address = IpAddress::of(peer);
  if (address && peers_.allow(*address)) return true;
  ++rejected_peers_;
  if (on_refusal_ && should_log(rejected_peers_)) {
    on_refusal_(
        concat("the store has cut off a client from ", address ? address->text() : "an unknown address",
               ", which is not the address of a node of this round",
               rejected_peers_ > log_limit ? concat(" (number ", rejected_peers_, "; not all are shown)") : ""));
  }
  return false;
}

void TcpServer::Loop::pause_listening(bool paused) {
  listening_paused_ = paused;
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    (void)thread_.watch(EPOLL_CTL_MOD, listeners_[i].fd.get(), paused ? 0 : std::uint32_t{EPOLLIN},
                        first_listener_token + i);
  }
}

void TcpServer::Loop::add_connection(UniqueFd fd) {
  auto connection = std::make_unique<Connection>(std::move(fd), shared_);
  if (!thread_.watch(EPOLL_CTL_ADD, connection->fd(), EPOLLIN, reinterpret_cast<std::uintptr_t>(connection.get())))
    return;
  connection->index = connections_.size();
  connections_.push_back(std::move(connection));
  ++accepted_;
  peak_connections_ = std::max(peak_connections_, connections_.size());
}

Result<void> TcpServer::Loop::clear() {
  Result<void> outcome;
  // The accept queues first, so that no client of the old round is accepted afterwards.
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    thread_.forget(listeners_[i].fd.get());
    if (auto ok = listeners_[i].restart(); !ok) {
      outcome = std::move(ok);
      continue;
    }
    if (!thread_.watch(EPOLL_CTL_ADD, listeners_[i].fd.get(), EPOLLIN, first_listener_token + i)) {
      outcome = fail_errno(Errc::unavailable, "cannot watch the store's address", errno);
    }
  }
  listening_paused_ = false;
  while (!connections_.empty()) close(*connections_.back());
  shared_.state.space.clear();
  return outcome;
}

TcpServer::TcpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
TcpServer::~TcpServer() = default;

Result<std::unique_ptr<TcpServer>> TcpServer::listen(const TcpServerOptions& options) {
  auto peers = TRY(AllowedPeers::from(options.allowed_peers));
  auto listeners = TRY(open_listeners(options.addresses, options.port));
  auto loop = std::make_unique<Loop>(std::move(listeners), std::move(peers), options);
  TRY(loop->open());
  return std::unique_ptr<TcpServer>(new TcpServer(std::move(loop)));
}

Result<void> TcpServer::serve() { return loop_->serve(); }

int TcpServer::descriptor() const { return loop_->descriptor(); }

Result<std::unique_ptr<TcpServer>> TcpServer::start(const TcpServerOptions& options) {
  auto server = TRY(listen(options));
  TRY(server->serve());
  return server;
}

std::uint16_t TcpServer::port() const { return loop_->port(); }

std::vector<std::string> TcpServer::addresses() const { return loop_->addresses(); }

Result<void> TcpServer::new_round() { return loop_->new_round(); }

Result<void> TcpServer::new_round(const std::vector<std::string>& allowed_peers) {
  return loop_->new_round(TRY(AllowedPeers::from(allowed_peers)));
}

TcpServerStats TcpServer::stats() const { return loop_->stats(); }

std::vector<TcpServerWait> TcpServer::waits() const { return loop_->waits(); }

}  // namespace ddrun::store
