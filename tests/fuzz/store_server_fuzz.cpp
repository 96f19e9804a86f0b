// The store's server under arbitrary bytes from up to four clients.
//
// The input is a program: which client sends what, split where, which one leaves, when the round ends. It is executed
// three times: by sessions with whole pieces, by sessions with single bytes, and by connections with sockets. All must
// give the same replies within their memory limit.
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "connection.hpp"
#include "input.hpp"
#include "session.hpp"

using namespace ddrun;
using namespace ddrun::store;
using ddrun::fuzz::Input;

namespace {

constexpr std::size_t clients = 4;
/// What a program may have sent in all, so that none takes long; less where no limit of memory bounds the replies.
constexpr std::size_t most_bytes = 512 * 1024;
constexpr std::size_t most_bytes_without_limit = 64 * 1024;
/// A socket has room for so many bytes of replies, and for more on most machines.
constexpr std::size_t least_room = 64 * 1024;
/// After replies of so many bytes to one client the program ends.
constexpr std::size_t most_replies = 4 * 1024 * 1024;

/// One client of a server without sockets.
class SessionClient final : public Waiter {
 public:
  SessionClient(ServerState& state, bool crumbs, std::size_t enough, bool& exhausted)
      : state_(&state), session_(state, *this), crumbs_(crumbs), enough_(enough), exhausted_(&exhausted) {}
  ~SessionClient() { state_->space.leave(*this); }

  void send(std::string_view piece) {
    if (!crumbs_) return take(piece);
    for (std::size_t i = 0; !piece.empty(); ++i) {
      // Byte by byte, and the middle of something long in greater steps.
      const auto crumb = piece.substr(0, i < 128 ? 1 : i % 64 + 1);
      piece.remove_prefix(crumb.size());
      take(crumb);
    }
  }
  [[nodiscard]] const std::string& received() const { return received_; }
  [[nodiscard]] bool closed() const { return closed_; }

 private:
  void take(std::string_view piece) {
    if (closed_ || *exhausted_) return;
    pending_ += piece;
    // As a connection does: not before there is enough of it. With crumbs it is asked in any case.
    if (!crumbs_ && pending_.size() < session_.needed()) return;
    for (bool more = true; more && !closed_;) {
      const bool too_few = pending_.size() < session_.needed();
      const auto before = received_.size();
      const auto progress = session_.handle(pending_, received_, before + enough_);
      DDRUN_FUZZ_CHECK(progress.consumed <= pending_.size());
      if (too_few) {
        DDRUN_FUZZ_CHECK(progress.consumed == 0 && !progress.close && !progress.paused && received_.size() == before);
      }
      if (progress.paused) DDRUN_FUZZ_CHECK(progress.consumed > 0);
      pending_.erase(0, progress.consumed);
      *exhausted_ = *exhausted_ || received_.size() > most_replies;
      if (*exhausted_) return;
      closed_ = progress.close;
      more = progress.paused;
      // The first bytes may not say yet what is spoken: then `needed` is 1, whatever is there.
      if (!more && !closed_) DDRUN_FUZZ_CHECK(session_.needed() > pending_.size() || session_.needed() == 1);
    }
    if (closed_) state_->space.leave(*this);
    DDRUN_FUZZ_CHECK(!closed_ || !waiting());
  }

  void on_keys_exist() override {
    DDRUN_FUZZ_CHECK(!closed_);
    received_.push_back(wire::wait_stopped);
  }
  void on_key_changed(KeyChange change, std::string_view key, std::string_view before, std::string_view now) override {
    DDRUN_FUZZ_CHECK(!closed_);
    append_change(received_, change, key, before, now);
  }

  ServerState* state_;
  Session session_;
  bool crumbs_;
  std::size_t enough_;
  bool* exhausted_;
  std::string pending_;
  std::string received_;
  bool closed_ = false;
};

class SessionServer {
 public:
  SessionServer(std::size_t memory_limit, bool crumbs, std::size_t enough) : crumbs_(crumbs), enough_(enough) {
    state_.memory_limit = memory_limit;
  }

  void open(std::size_t who) { clients_.at(who).emplace(state_, crumbs_, enough_, exhausted_); }
  void leave(std::size_t who) { clients_.at(who).reset(); }
  void send(std::size_t who, std::string_view piece) { clients_.at(who)->send(piece); }
  void end_round() { state_.space.clear(); }
  [[nodiscard]] const std::string& received(std::size_t who) const { return clients_.at(who)->received(); }
  [[nodiscard]] bool closed(std::size_t who) const { return clients_.at(who)->closed(); }
  [[nodiscard]] const ServerState& state() const { return state_; }
  [[nodiscard]] bool exhausted() const { return exhausted_; }

 private:
  ServerState state_;
  bool crumbs_;
  std::size_t enough_;
  bool exhausted_ = false;
  std::array<std::optional<SessionClient>, clients> clients_;
};

/// A server with sockets, whose loop is here.
class ConnectionServer {
 public:
  explicit ConnectionServer(std::size_t memory_limit) { shared_.state.memory_limit = memory_limit; }

  void open(std::size_t who) {
    int ends[2];
    DDRUN_FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    Client& client = clients_.at(who);
    client.far = UniqueFd(ends[0]);
    client.connection = std::make_unique<Connection>(UniqueFd(ends[1]), shared_);
    client.received.clear();
    client.reads = true;
  }
  void leave(std::size_t who) {
    Client& client = clients_.at(who);
    if (client.connection->fd() >= 0) {
      client.far.reset();
      serve();  // it notices
      if (client.connection->fd() >= 0) client.connection->close();
    }
    client.connection.reset();
    client.far.reset();
    serve();
  }
  void send(std::size_t who, std::string_view piece) {
    while (!piece.empty() && !closed(who) && !exhausted_) {
      const auto sent = put(who, piece);
      piece.remove_prefix(sent);
      serve();
      if (sent == 0) break;  // the other end does not read
    }
    check_memory();
  }
  /// From all clients at once, which are then served in turn. False if some of it found no room.
  bool send(const std::array<std::string, clients>& pieces) {
    bool all = true;
    for (std::size_t who = 0; who < clients; ++who) {
      if (!closed(who)) all = put(who, pieces.at(who)) == pieces.at(who).size() && all;
    }
    serve();
    check_memory();
    return all;
  }
  /// One that does not read its answers for a while.
  void stop_reading(std::size_t who) {
    Client& client = clients_.at(who);
    const int smallest = 1;
    if (client.connection->fd() >= 0) {
      ::setsockopt(client.connection->fd(), SOL_SOCKET, SO_SNDBUF, &smallest, sizeof smallest);
    }
    client.reads = false;
  }
  void read_again(std::size_t who) {
    clients_.at(who).reads = true;
    serve();
  }
  void end_round() { shared_.state.space.clear(); }
  [[nodiscard]] const std::string& received(std::size_t who) const { return clients_.at(who).received; }
  [[nodiscard]] bool closed(std::size_t who) const { return clients_.at(who).connection->fd() < 0; }
  [[nodiscard]] const ServerState& state() const { return shared_.state; }
  [[nodiscard]] bool exhausted() const { return exhausted_; }

 private:
  struct Client {
    std::unique_ptr<Connection> connection;
    UniqueFd far;
    std::string received;
    bool reads = true;
  };

  std::size_t put(std::size_t who, std::string_view piece) {
    const ssize_t sent = ::send(clients_.at(who).far.get(), piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent > 0 ? static_cast<std::size_t>(sent) : 0;
  }

  void check_memory() const {
    const auto& state = shared_.state;
    DDRUN_FUZZ_CHECK(state.memory_limit == 0 || state.memory() <= state.memory_limit);
  }

  void read(Client& client) {
    char buffer[16 * 1024];
    for (ssize_t got; client.far && (got = ::recv(client.far.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) {
      client.received.append(buffer, static_cast<std::size_t>(got));
    }
    exhausted_ = exhausted_ || client.received.size() > most_replies;
  }

  static bool has_input(const Client& client) {
    int unread = 0;
    ::ioctl(client.connection->fd(), FIONREAD, &unread);
    return unread > 0 || !client.far;
  }

  void settle(Client& client, bool keep) {
    client.connection->watched_for_out = client.connection->has_unsent();
    if (keep) return;
    read(client);
    client.connection->close();
  }

  /// Short replies, which the server sends after each round of events.
  void deliver() {
    for (const auto& [to, begin, size] : shared_.outbox.items) {
      for (auto& client : clients_) {
        auto* const connection = client.connection.get();
        if (connection != to || connection->fd() < 0) continue;
        settle(client, connection->deliver(std::string_view(shared_.outbox.bytes).substr(begin, size)));
      }
    }
    shared_.outbox.items.clear();
    shared_.outbox.bytes.clear();
  }

  /// As the server's loop: until there is nothing to read and nothing that can be written.
  void serve() {
    for (bool busy = true; busy && !exhausted_;) {
      busy = false;
      for (auto& client : clients_) {
        if (!client.connection || client.connection->fd() < 0) continue;
        if (client.reads) read(client);
        if (client.connection->watched_for_out) {
          if (!client.reads && client.far) continue;
          busy = true;
          settle(client, client.connection->on_writable());
        } else if (has_input(client)) {
          busy = true;
          settle(client, client.connection->on_readable());
        }
      }
      deliver();
      // By index: closing a client may wake others.
      for (std::size_t i = 0; i < shared_.woken.size(); ++i) {
        for (auto& client : clients_) {
          auto* const connection = client.connection.get();
          if (connection == shared_.woken[i] && connection->fd() >= 0) settle(client, connection->flush());
        }
      }
      shared_.woken.clear();
    }
    for (auto& client : clients_) {
      if (client.reads) read(client);
    }
  }

  ServerShared shared_;
  bool exhausted_ = false;
  std::array<Client, clients> clients_;
};

// Requests that are well-formed, so that not every one of them must be guessed byte by byte.

std::string name_of(std::uint8_t choice) {
  static constexpr std::string_view names[] = {
      "/a", "/b", "/queue", "/n", "", "/a/longer/name/of/a/key/than/others", "init/", "/\xff"};
  if (choice < 240) return std::string(names[choice % std::size(names)]);
  return std::string(choice == 255 ? wire::max_key : 1U << (choice - 240), 'k');
}

std::string value_of(Input& input) {
  static constexpr std::string_view values[] = {"", "1", "-7", "9223372036854775807", " +12 and more", "text", "0"};
  const auto choice = input.byte();
  if (choice < 64) return std::string(values[choice % std::size(values)]);
  if (choice < 192) return std::string(input.bytes(choice - 64));
  return std::string(std::size_t{1} << (choice % 16), 'v');
}

std::int64_t delta_of(std::uint8_t choice) {
  switch (choice) {
    case 0x80: return INT64_MIN;
    case 0x7f: return INT64_MAX;
    default: return static_cast<std::int8_t>(choice);
  }
}

std::string request_of(Dialect dialect, Input& input) {
  std::string request;
  const auto number = static_cast<char>(input.byte() % (dialect == Dialect::old ? 9 : 0x13));
  request.push_back(number);
  const auto key = [&] { wire::put_bytes(request, name_of(input.byte())); };
  const auto value = [&] { wire::put_bytes(request, value_of(input)); };
  switch (opcode_of(dialect, number).value()) {
    using wire::Opcode;
    case Opcode::validate: wire::put(request, wire::magic); break;
    case Opcode::ping: wire::put(request, std::uint32_t{input.byte()}); break;
    case Opcode::get:
    case Opcode::delete_key:
    case Opcode::queue_pop:
    case Opcode::queue_len:
    case Opcode::watch_key: key(); break;
    case Opcode::add:
    case Opcode::barrier:
      key();
      wire::put(request, delta_of(input.byte()));
      break;
    case Opcode::set:
    case Opcode::append:
    case Opcode::queue_push:
      key();
      value();
      break;
    case Opcode::compare_set:
      key();
      value();
      value();
      break;
    case Opcode::num_keys:
    case Opcode::list_keys:
    case Opcode::cancel_wait: break;
    case Opcode::check:
    case Opcode::wait:
    case Opcode::multi_get:
    case Opcode::multi_set: {
      const std::uint64_t count = input.byte() % 8;
      wire::put(request, count);
      for (auto left = count; left > 0; --left) {
        key();
        if (opcode_of(dialect, number) == Opcode::multi_set) value();
      }
      break;
    }
  }
  return request;
}

class Program {
 public:
  Program(const std::uint8_t* data, std::size_t size) : input_(data, size) {}

  void run() {
    static constexpr std::size_t limits[] = {0, 0, 1024, 4096, 16384, 65536, 262144, 1024 * 1024};
    const auto setup = input_.byte();
    const std::size_t limit = limits[setup % std::size(limits)];
    static constexpr std::size_t enough[] = {1, 100, 4096, 1024 * 1024};
    SessionServer whole(limit, false, enough[setup / 8 % 4]);
    SessionServer crumbs(limit, true, enough[setup / 32 % 4]);
    std::optional<ConnectionServer> connections;
    if (setup >= 128) connections.emplace(limit);
    whole_ = &whole;
    crumbs_ = &crumbs;
    connections_ = connections ? &*connections : nullptr;
    comparable_ = limit == 0;  // their buffers count, too

    const auto dialects = input_.byte();
    for (std::size_t who = 0; who < clients; ++who) open(who, dialects >> 2 * who);
    const auto most = limit == 0 ? most_bytes_without_limit : most_bytes;
    while (!input_.empty() && sent_ < most && !exhausted()) step();
    for (std::size_t who = 0; who < clients; ++who) {
      if (connections_ != nullptr) connections_->read_again(who);
    }
    for (std::size_t who = 0; who < clients; ++who) compare(who);
    for (std::size_t who = 0; who < clients; ++who) leave(who);
    end_round();
    DDRUN_FUZZ_CHECK(whole.state().memory() == 0);
    DDRUN_FUZZ_CHECK(crumbs.state().memory() == 0);
    DDRUN_FUZZ_CHECK(!connections || connections->state().memory() == 0);
  }

 private:
  /// `how`: 0 with a modern client's greeting, 1 nothing yet, 2 an old client's first request, 3 modern again.
  void open(std::size_t who, int how) {
    how %= 4;
    dialects_[who] = how == 2 ? Dialect::old : Dialect::modern;
    whole_->open(who);
    crumbs_->open(who);
    if (connections_ != nullptr) connections_->open(who);
    if (how % 3 == 0) send(who, std::string("\0\xce\xf7\x85\x3c", 5));
    if (how == 2) send(who, "\x06");
  }

  void leave(std::size_t who) {
    compare(who);
    whole_->leave(who);
    crumbs_->leave(who);
    if (connections_ != nullptr) connections_->leave(who);
  }

  void end_round() {
    whole_->end_round();
    crumbs_->end_round();
    if (connections_ != nullptr) connections_->end_round();
  }

  void send(std::size_t who, std::string_view piece) {
    sent_ += piece.size();
    whole_->send(who, piece);
    crumbs_->send(who, piece);
    if (connections_ != nullptr) connections_->send(who, piece);
    check();
  }

  [[nodiscard]] bool exhausted() const {
    return whole_->exhausted() || crumbs_->exhausted() || (connections_ != nullptr && connections_->exhausted());
  }

  /// What all clients have to say, at once.
  void send_all() {
    // More than that is not read in one go.
    for (const auto& out : unsent_) {
      if (out.size() > 32 * 1024) return;
    }
    for (std::size_t who = 0; who < clients; ++who) {
      sent_ += unsent_[who].size();
      whole_->send(who, unsent_[who]);
      crumbs_->send(who, unsent_[who]);
    }
    if (connections_ != nullptr) comparable_ = connections_->send(unsent_) && comparable_;
    for (auto& out : unsent_) out.clear();
    check();
  }

  void check() const {
    if (exhausted()) return;
    const auto& state = whole_->state();
    DDRUN_FUZZ_CHECK(state.memory_limit == 0 || state.memory() <= state.memory_limit);
    DDRUN_FUZZ_CHECK(state.memory() == crumbs_->state().memory());
    DDRUN_FUZZ_CHECK(state.refused == crumbs_->state().refused);
    DDRUN_FUZZ_CHECK(state.refusal_reason == crumbs_->state().refusal_reason);
  }

  void compare(std::size_t who) const {
    if (exhausted()) return;
    DDRUN_FUZZ_CHECK(whole_->received(who) == crumbs_->received(who));
    DDRUN_FUZZ_CHECK(whole_->closed(who) == crumbs_->closed(who));
    DDRUN_FUZZ_CHECK(whole_->state().requests == crumbs_->state().requests);
    if (connections_ == nullptr || !comparable_) return;
    DDRUN_FUZZ_CHECK(whole_->closed(who) == connections_->closed(who));
    const auto& received = connections_->received(who);
    // A client that is refused gets no more than its socket has room for.
    if (connections_->closed(who) && received.size() > least_room) {
      DDRUN_FUZZ_CHECK(whole_->received(who).starts_with(received));
    } else {
      DDRUN_FUZZ_CHECK(whole_->received(who) == received);
    }
  }

  void step() {
    const auto what = input_.byte();
    const std::size_t who = what % clients;
    std::string& out = unsent_[who];
    switch (what / clients % 16) {
      case 0: send(who, input_.bytes(input_.byte())); break;  // anything at all
      case 1: send(who, std::string(std::size_t{input_.byte()} * 64, static_cast<char>(input_.byte()))); break;
      case 2:
        leave(who);
        out.clear();
        open(who, input_.byte());
        break;
      case 3: end_round(); break;
      case 4:
        if (connections_ != nullptr) connections_->stop_reading(who);
        comparable_ = comparable_ && connections_ == nullptr;
        break;
      case 5:
        if (connections_ != nullptr) connections_->read_again(who);
        break;
      case 6:  // part of what there is to say
      case 7: {
        out += request_of(dialects_[who], input_);
        const auto size = std::min<std::size_t>(out.size(), input_.byte());
        send(who, out.substr(0, size));
        out.erase(0, size);
        break;
      }
      case 8: out += request_of(dialects_[who], input_); break;  // later, with others
      case 15: send_all(); break;
      default:
        out += request_of(dialects_[who], input_);
        send(who, std::exchange(out, {}));
        break;
    }
  }

  Input input_;
  SessionServer* whole_ = nullptr;
  SessionServer* crumbs_ = nullptr;
  ConnectionServer* connections_ = nullptr;
  bool comparable_ = true;
  std::size_t sent_ = 0;
  std::array<Dialect, clients> dialects_{};
  std::array<std::string, clients> unsent_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Program(data, size).run();
  return 0;
}
