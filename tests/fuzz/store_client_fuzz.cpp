// The store's client against a peer that answers with arbitrary bytes.
//
// The input is the requests and the replies: bytes, split anywhere, with pauses, and at the end the peer closes. The
// client's sockets and clock are replaced at link time (--wrap): whenever the client would sleep, the peer executes the
// next step of its script, so that no time passes and every run is the same.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "input.hpp"
#include "request_parser.hpp"

using namespace ddrun;
using namespace ddrun::store;
using ddrun::fuzz::Input;
using namespace std::chrono_literals;

extern "C" int __real_ppoll(pollfd* entries, nfds_t count, const timespec* timeout, const sigset_t* mask);

namespace {

/// The other ends of the client's sockets, and the script of what they do.
class Peer {
 public:
  Peer(Input script, bool greets) : script_(script), greets_(greets) {}

  std::chrono::nanoseconds now{1h};

  /// The client's end of a new connection.
  int connection() {
    int ends[2];
    DDRUN_FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    connections_[ends[0]] = Connection{UniqueFd(ends[1]), {}, {}, false};
    return ends[0];
  }
  /// Connections are refused after the end of the script.
  [[nodiscard]] bool listens() const { return !script_.empty() || opened_ == 0; }
  void opened() { ++opened_; }

  /// Whether all that the client has sent is whole requests.
  void check_whole_requests() {
    for (auto& [fd, connection] : connections_) {
      take(connection);
      DDRUN_FUZZ_CHECK(connection.unparsed.empty());
    }
  }

  int poll(pollfd* entries, nfds_t count, const timespec* timeout, const sigset_t* mask);

 private:
  struct Connection {
    UniqueFd fd;
    RequestParser parser;
    std::string unparsed;
    bool greeted;
  };

  /// What the client has sent must be requests.
  static void take(Connection& connection) {
    char buffer[16 * 1024];
    for (ssize_t got; connection.fd && (got = ::recv(connection.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) {
      connection.unparsed.append(buffer, static_cast<std::size_t>(got));
    }
    std::string_view rest = connection.unparsed;
    for (;;) {
      Request request;
      std::size_t consumed = 0;
      const auto status = connection.parser.next(rest, request, consumed);
      DDRUN_FUZZ_CHECK(status != RequestParser::Status::refused);
      if (status == RequestParser::Status::incomplete) break;
      rest.remove_prefix(consumed);
    }
    connection.unparsed.erase(0, connection.unparsed.size() - rest.size());
  }

  void say(const Connection& connection, std::string_view bytes) {
    // Bounds the memory of a long script.
    constexpr std::size_t most = 2 * 1024 * 1024;
    if ((said_ += bytes.size()) > most) script_ = Input(nullptr, 0);
    if (connection.fd) (void)!::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  /// The next thing of the script. Returns how long nothing happened.
  std::chrono::nanoseconds act(Connection& connection);

  Input script_;
  bool greets_;
  int opened_ = 0;
  std::size_t said_ = 0;
  std::map<int, Connection> connections_;  // by the client's descriptor
};

Peer* peer = nullptr;

std::chrono::nanoseconds Peer::act(Connection& connection) {
  if (!std::exchange(connection.greeted, true) && greets_) {
    const auto nonce = static_cast<std::uint32_t>(::getpid());
    say(connection, {reinterpret_cast<const char*>(&nonce), sizeof nonce});
    return {};
  }
  if (script_.empty()) {
    connection.fd.reset();
    return {};
  }
  std::string bytes;
  const auto what = script_.byte();
  switch (what / 16) {
    case 0: say(connection, script_.bytes(what)); break;
    case 1: say(connection, script_.bytes(script_.byte())); break;
    case 2: return std::chrono::milliseconds(1U << what % 16);  // up to half a minute
    case 3: connection.fd.reset(); break;
    case 4: break;
    case 5:  // a length, and as many bytes
    case 6:
      bytes = script_.bytes(what % 32);
      wire::put(bytes, std::uint64_t{0});
      std::rotate(bytes.begin(), bytes.end() - 8, bytes.end());
      bytes[0] = static_cast<char>(bytes.size() - 8);
      say(connection, bytes);
      break;
    case 7:  // a number
      wire::put(bytes, std::int64_t{what % 16} - 1);
      say(connection, bytes);
      break;
    case 8:  // a length whose bytes do not come
      wire::put(bytes, std::uint64_t{1} << (what % 16 + 20));
      say(connection, bytes);
      break;
    case 9: say(connection, std::string(std::size_t{64} << what % 10, static_cast<char>(script_.byte()))); break;
    case 10:  // a number and texts: a list
      wire::put(bytes, std::int64_t{what % 16});
      for (int left = what % 16; left > 0; --left) wire::put_bytes(bytes, script_.bytes(script_.byte() % 32));
      say(connection, bytes);
      break;
    default: say(connection, std::string(1, static_cast<char>(what % 4))); break;  // the end of a wait, or not
  }
  return {};
}

int Peer::poll(pollfd* entries, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  const auto asked = timeout == nullptr
                         ? std::chrono::nanoseconds::max()
                         : std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
  const auto it = connections_.find(entries[0].fd);
  if (it == connections_.end()) {
    // A pause. One without end would never end.
    DDRUN_FUZZ_CHECK(entries[0].fd < 0 && timeout != nullptr);
    now += asked;
    const timespec none{};
    return __real_ppoll(entries, count, &none, mask);
  }
  take(it->second);
  if ((entries[0].events & POLLIN) != 0) {
    const auto silence = std::min(act(it->second), asked);
    now += silence;
  }
  const timespec none{};
  return __real_ppoll(entries, count, &none, mask);
}

std::string name_of(std::uint8_t choice) {
  static constexpr std::string_view names[] = {"a", "b", "", "queue", "a longer name than the others have it", "\xff"};
  if (choice < 250) return std::string(names[choice % std::size(names)]);
  return std::string(max_key_size + 253 - choice, 'k');  // as long as may be, and more
}

/// Calls a client as the input says and checks what it returns.
class User {
 public:
  explicit User(std::unique_ptr<TcpClient> client) : client_(std::move(client)) {}

  void ask(Input& input) {
    const auto what = input.byte();
    const auto choice = input.byte();
    static constexpr std::chrono::milliseconds patience[] = {0ms, 10ms, 1s, 20s};
    const Deadline deadline = what >= 224 ? Deadline() : Clock::now() + patience[what / 32 % 4];
    const auto key = name_of(choice);
    switch (what % 32) {
      case 0: return check(client_->set(key, "value", deadline));
      case 1: return check(client_->get(key, deadline));
      case 2: return check(client_->add(key, choice, deadline));
      case 3: return check(client_->wait(names(choice), deadline));
      case 4: return check(client_->check(names(choice), deadline));
      case 5: return check(client_->compare_set(key, "before", "after", deadline));
      case 6: return check(client_->delete_key(key, deadline));
      case 7: return check(client_->num_keys(deadline));
      case 8: return check(client_->list_keys(deadline));
      case 9: {
        const auto keys = names(choice % 64 + 1);
        const auto values = client_->multi_get(keys, deadline);
        DDRUN_FUZZ_CHECK(!values || values->size() == keys.size());
        return check(values);
      }
      case 10: return check(client_->set(key, std::string(std::size_t{choice} * 1024, 'v'), deadline));
      default: return check(client_->multi_get(names(choice % 8 + 1), deadline));
    }
  }

 private:
  static std::vector<std::string> names(unsigned count) {
    std::vector<std::string> names;
    for (unsigned i = 0; i < count; ++i) names.push_back(name_of(static_cast<std::uint8_t>(i)));
    return names;
  }

  template <class T>
  void check(const Result<T>& result) {
    if (result) {
      DDRUN_FUZZ_CHECK(!over_);
      peer->check_whole_requests();
      return;
    }
    const auto code = result.error().code;
    DDRUN_FUZZ_CHECK(!result.error().message.empty());
    DDRUN_FUZZ_CHECK(code == Errc::invalid_argument || code == Errc::timeout || code == Errc::connection_lost ||
                     code == Errc::protocol);
    // Reported by the client: unusable from now on.
    if (over_) DDRUN_FUZZ_CHECK(code == Errc::connection_lost || code == Errc::invalid_argument);
    over_ = over_ || code == Errc::connection_lost || code == Errc::protocol;
  }

  std::unique_ptr<TcpClient> client_;
  bool over_ = false;
};

}  // namespace

// What the linker puts in place of the system's.
extern "C" {

int __wrap_socket(int /*family*/, int /*type*/, int /*protocol*/) { return peer->connection(); }

int __wrap_connect(int /*fd*/, const sockaddr* /*to*/, socklen_t /*size*/) {
  if (!peer->listens()) {
    errno = ECONNREFUSED;
    return -1;
  }
  peer->opened();
  return 0;
}

int __wrap_ppoll(pollfd* entries, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  return peer->poll(entries, count, timeout, mask);
}

// A std::chrono::steady_clock::time_point, which is returned as the number in it.
std::int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  static_assert(sizeof(std::chrono::steady_clock::time_point) == sizeof(std::int64_t));
  return peer->now.count();
}
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const auto setup = input.byte();
  const auto asked = input.bytes(2 * (setup / 16 + 1));
  Peer this_peer(input, setup / 2 % 4 != 3);
  peer = &this_peer;
  auto client = TcpClient::connect("127.0.0.1", 29500, Clock::now() + 10s);
  if (client) {
    User user(std::move(*client));
    for (Input questions(reinterpret_cast<const std::uint8_t*>(asked.data()), asked.size()); !questions.empty();) {
      user.ask(questions);
    }
  }
  peer = nullptr;
  return 0;
}
