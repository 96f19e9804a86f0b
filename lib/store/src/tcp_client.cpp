#include "ddrun/store/tcp_client.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "client_socket.hpp"
#include "ddrun/base/text.hpp"
#include "limits.hpp"
#include "wire.hpp"

namespace ddrun::store {

using wire::Opcode;

namespace {

/// How long past its deadline a call waits for what a living server answers at once.
constexpr std::chrono::seconds answer_grace{5};

Deadline answer_by(Deadline deadline) { return std::max(deadline, Clock::now() + answer_grace); }

void put_key(std::string& to, std::string_view key) {
  wire::put(to, static_cast<std::uint64_t>(key.size() + 1));
  to.push_back('/');
  to.append(key);
}

void put_keys(std::string& to, std::span<const std::string> keys) {
  wire::put(to, static_cast<std::uint64_t>(keys.size()));
  for (const auto& key : keys) put_key(to, key);
}

template <class T>
auto error_of(Result<T>& result) {
  return tl::unexpected(std::move(result.error()));
}

}  // namespace

/// The connection and whose turn it is on it.
class TcpClient::Connection {
 public:
  Connection(const Endpoint& server, ClientSocket socket)
      : server_(server), name_(server.text()), socket_(std::move(socket)) {}

  /// Tries the endpoints in turn, again and again, until one answers the greeting.
  static Result<std::unique_ptr<Connection>> open(std::span<const Endpoint> servers, Deadline deadline);

  /// The right to use the connection; given back when it goes out of scope.
  class Turn {
   public:
    explicit Turn(Connection& connection) : connection_(&connection) {}
    Turn(Turn&& other) noexcept : connection_(std::exchange(other.connection_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (connection_ != nullptr) connection_->end_turn();
    }
    Connection* operator->() const { return connection_; }

   private:
    Connection* connection_;
  };
  Result<Turn> take_turn(Deadline deadline);

  [[nodiscard]] const Endpoint& server() const { return server_; }
  [[nodiscard]] const std::string& name() const { return name_; }

  // What follows needs the turn.

  /// An empty request that begins with `op`.
  std::string& begin(Opcode op) {
    request_.clear();
    wire::put(request_, op);
    return request_;
  }
  Result<void> send(Deadline deadline) {
    auto sent = socket_.send(request_, answer_by(deadline));
    // Keep the memory of small requests, not that of a big one.
    if (request_.capacity() > 64 * 1024) std::string().swap(request_);
    return sent ? std::move(sent) : Result<void>(broken(sent.error()));
  }
  template <class Integer>
  Result<Integer> receive(Deadline deadline) {
    Integer number{};
    if (auto ok = socket_.receive(reinterpret_cast<char*>(&number), sizeof number, answer_by(deadline)); !ok) {
      return broken(ok.error());
    }
    return number;
  }
  Result<std::string> receive_bytes(Deadline deadline);
  /// Sends WAIT for the keys and sees it through; `timeout` leaves the connection as good as before.
  Result<void> wait(std::span<const std::string> keys, Deadline deadline);

  Result<void> greet(Deadline deadline);

 private:
  tl::unexpected<Error> broken(const Error& error);
  tl::unexpected<Error> nonsense(std::string what);
  Result<void> withdraw(std::span<const std::string> keys);
  void end_turn();

  const Endpoint server_;
  const std::string name_;
  ClientSocket socket_;
  std::string request_;

  std::mutex mutex_;  // of what follows
  std::condition_variable free_;
  bool taken_ = false;
  std::optional<Error> broken_;  // written by whoever has the turn
};

Result<TcpClient::Connection::Turn> TcpClient::Connection::take_turn(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_free = [this] { return !taken_; };
  if (deadline == Deadline::max()) {
    free_.wait(lock, is_free);
  } else if (!free_.wait_until(lock, deadline, is_free)) {
    return fail(Errc::timeout, concat("another thread kept this client of the store at ", name_,
                                      " busy until the deadline; give each thread its own (clone)"));
  }
  if (broken_) return tl::unexpected(*broken_);
  taken_ = true;
  return Turn(*this);
}

void TcpClient::Connection::end_turn() {
  {
    const std::lock_guard lock(mutex_);
    taken_ = false;
  }
  free_.notify_one();
}

tl::unexpected<Error> TcpClient::Connection::broken(const Error& error) {
  const char* what = error.code == Errc::timeout ? "the store at " : "lost the store at ";
  const Error whole{Errc::connection_lost,
                    concat(what, name_, error.code == Errc::timeout ? " does not answer" : ": " + error.message),
                    error.cause};
  const std::lock_guard lock(mutex_);
  broken_ = whole;
  return tl::unexpected(whole);
}

tl::unexpected<Error> TcpClient::Connection::nonsense(std::string what) {
  const Error whole{Errc::protocol, concat("the store at ", name_, " answered ", what), {}};
  const std::lock_guard lock(mutex_);
  broken_ = whole;
  return tl::unexpected(whole);
}

Result<void> TcpClient::Connection::greet(Deadline deadline) {
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

Result<std::unique_ptr<TcpClient::Connection>> TcpClient::Connection::open(std::span<const Endpoint> servers,
                                                                           Deadline deadline) {
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
      auto socket = ClientSocket::connect(server, attempt);
      if (!socket) {
        hope = hope || worth_retrying(socket.error().cause);
        reason = std::move(socket.error());
        continue;
      }
      auto connection = std::make_unique<Connection>(server, std::move(*socket));
      const auto greeted = connection->greet(attempt);
      if (greeted) return connection;
      if (greeted.error().code == Errc::protocol) return tl::unexpected(greeted.error());
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
    std::this_thread::sleep_until(next);
    pause = std::min(pause * 2, longest_pause);
  }
}

Result<std::string> TcpClient::Connection::receive_bytes(Deadline deadline) {
  auto size = receive<std::uint64_t>(deadline);
  if (!size) return error_of(size);
  // PyTorch's servers do not limit values; anything beyond this is a sign of being out of step.
  constexpr std::uint64_t most = 4ULL * 1024 * 1024 * 1024;
  if (*size > most) return nonsense(concat("with a value of ", *size, " bytes"));
  std::string value;
  if (auto ok = socket_.receive(value, *size, answer_by(deadline)); !ok) return broken(ok.error());
  return value;
}

Result<void> TcpClient::Connection::wait(std::span<const std::string> keys, Deadline deadline) {
  put_keys(begin(Opcode::wait), keys);
  if (auto ok = send(deadline); !ok) return ok;
  char answer = 0;
  if (auto ok = socket_.receive(&answer, 1, deadline); !ok) {
    return ok.error().code == Errc::timeout ? withdraw(keys) : Result<void>(broken(ok.error()));
  }
  if (answer != wire::wait_stopped) return nonsense(concat(int{answer}, " to a wait"));
  return {};
}

Result<void> TcpClient::Connection::withdraw(std::span<const std::string> keys) {
  begin(Opcode::cancel_wait);
  if (auto ok = send({}); !ok) return ok;
  auto answer = receive<char>({});
  if (!answer) return error_of(answer);
  // The keys may have come just before the server read the cancel: then both answers are on their way.
  const bool came = *answer == wire::wait_stopped;
  if (came) answer = receive<char>({});
  if (!answer) return error_of(answer);
  if (*answer != wire::wait_cancelled) return nonsense(concat(int{*answer}, " to a cancelled wait"));
  if (came) return {};
  return fail(Errc::timeout, concat("timed out waiting for store ", describe_keys(keys)));
}

TcpClient::TcpClient(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}
TcpClient::~TcpClient() = default;

Result<std::unique_ptr<TcpClient>> TcpClient::connect(std::string_view address, std::uint16_t port, Deadline deadline) {
  const auto servers = literal_endpoints(address, port);
  if (servers.empty()) {
    return fail(Errc::invalid_argument, concat("'", address, "' is not an IP address; give one, or localhost"));
  }
  if (port == 0) return fail(Errc::invalid_argument, "port 0 is nobody's; give the port of the store's server");
  auto connection = Connection::open(servers, deadline);
  if (!connection) return error_of(connection);
  return std::unique_ptr<TcpClient>(new TcpClient(std::move(*connection)));
}

Result<std::unique_ptr<TcpClient>> TcpClient::clone(Deadline deadline) const {
  auto connection = Connection::open({&connection_->server(), 1}, deadline);
  if (!connection) return error_of(connection);
  return std::unique_ptr<TcpClient>(new TcpClient(std::move(*connection)));
}

const std::string& TcpClient::server() const { return connection_->name(); }

Result<void> TcpClient::set(std::string_view key, std::string_view value, Deadline deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  auto& request = (*turn)->begin(Opcode::set);
  put_key(request, key);
  wire::put_bytes(request, value);
  return (*turn)->send(deadline);
}

Result<std::string> TcpClient::get(std::string_view key, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  const std::string name(key);
  if (auto ok = (*turn)->wait({&name, 1}, deadline); !ok) return error_of(ok);
  put_key((*turn)->begin(Opcode::get), key);
  if (auto ok = (*turn)->send(deadline); !ok) return error_of(ok);
  return (*turn)->receive_bytes(deadline);
}

Result<std::int64_t> TcpClient::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  auto& request = (*turn)->begin(Opcode::add);
  put_key(request, key);
  wire::put(request, delta);
  if (auto ok = (*turn)->send(deadline); !ok) return error_of(ok);
  return (*turn)->receive<std::int64_t>(deadline);
}

Result<void> TcpClient::wait(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return ok;
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  return (*turn)->wait(keys, deadline);
}

Result<bool> TcpClient::check(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return error_of(ok);
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  put_keys((*turn)->begin(Opcode::check), keys);
  if (auto ok = (*turn)->send(deadline); !ok) return error_of(ok);
  auto answer = (*turn)->receive<char>(deadline);
  if (!answer) return error_of(answer);
  return *answer == wire::check_ready;
}

Result<std::string> TcpClient::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                           Deadline deadline) {
  if (auto ok = check_value(key, expected); !ok) return error_of(ok);
  if (auto ok = check_value(key, desired); !ok) return error_of(ok);
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  auto& request = (*turn)->begin(Opcode::compare_set);
  put_key(request, key);
  wire::put_bytes(request, expected);
  wire::put_bytes(request, desired);
  if (auto ok = (*turn)->send(deadline); !ok) return error_of(ok);
  return (*turn)->receive_bytes(deadline);
}

Result<bool> TcpClient::delete_key(std::string_view key, Deadline deadline) {
  if (auto ok = check_key(key); !ok) return error_of(ok);
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  put_key((*turn)->begin(Opcode::delete_key), key);
  if (auto ok = (*turn)->send(deadline); !ok) return error_of(ok);
  auto deleted = (*turn)->receive<std::int64_t>(deadline);
  if (!deleted) return error_of(deleted);
  return *deleted > 0;
}

Result<std::int64_t> TcpClient::num_keys(Deadline deadline) {
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  (*turn)->begin(Opcode::num_keys);
  if (auto ok = (*turn)->send(deadline); !ok) return error_of(ok);
  return (*turn)->receive<std::int64_t>(deadline);
}

Result<void> TcpClient::append(std::string_view key, std::string_view value, Deadline deadline) {
  if (auto ok = check_value(key, value); !ok) return ok;
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  auto& request = (*turn)->begin(Opcode::append);
  put_key(request, key);
  wire::put_bytes(request, value);
  return (*turn)->send(deadline);
}

Result<std::vector<std::string>> TcpClient::multi_get(std::span<const std::string> keys, Deadline deadline) {
  if (auto ok = check_keys(keys); !ok) return error_of(ok);
  std::vector<std::string> values;
  if (keys.empty()) return values;
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  if (auto ok = (*turn)->wait(keys, deadline); !ok) return error_of(ok);
  put_keys((*turn)->begin(Opcode::multi_get), keys);
  if (auto ok = (*turn)->send(deadline); !ok) return error_of(ok);
  values.reserve(keys.size());
  while (values.size() < keys.size()) {
    auto value = (*turn)->receive_bytes(deadline);
    if (!value) return error_of(value);
    values.push_back(std::move(*value));
  }
  return values;
}

Result<void> TcpClient::multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                                  Deadline deadline) {
  if (auto ok = check_pairs(keys, values); !ok) return ok;
  auto turn = connection_->take_turn(deadline);
  if (!turn) return error_of(turn);
  auto& request = (*turn)->begin(Opcode::multi_set);
  wire::put(request, static_cast<std::uint64_t>(keys.size()));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    put_key(request, keys[i]);
    wire::put_bytes(request, values[i]);
  }
  return (*turn)->send(deadline);
}

}  // namespace ddrun::store
