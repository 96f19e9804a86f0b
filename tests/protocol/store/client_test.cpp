// The client against servers that are late, absent, slow, dead or wrong. They run scripts on a thread.
#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "ddrun/store/resolve.hpp"
#include "ddrun/test/ports.hpp"
#include "ddrun/test/store.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// One accepted connection of a scripted server. No assertions, which only the test's thread may use.
class Peer {
 public:
  explicit Peer(int fd) : fd_(fd) {}
  ~Peer() { ::close(fd_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::string read(std::size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = ::recv(fd_, bytes.data(), size, MSG_WAITALL);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  }
  void write(std::string_view bytes) { (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// The greeting and the ping that follows it.
  void greet() {
    const auto hello = read(10);
    if (hello.size() == 10) write(hello.substr(6));
  }

 private:
  int fd_;
};

/// Listens on the loopback and plays `script` with the first client.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::function<void(Peer&)> script) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_, 8) == 0);
    REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, script = std::move(script)] {
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      Peer peer(fd);
      script(peer);
    });
  }
  ~ScriptedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  int listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

TEST_CASE("the client waits for a server that starts late") {
  TcpServerOptions options;
  options.port = static_cast<std::uint16_t>(free_port());
  Result<std::unique_ptr<TcpServer>> server = fail(Errc::cancelled, "");
  std::thread late([&] {
    std::this_thread::sleep_for(50ms);
    server = TcpServer::start(options);
  });
  auto client = TcpClient::connect("127.0.0.1", options.port, soon());
  late.join();
  REQUIRE(server);
  REQUIRE(client);
  CHECK((*client)->num_keys(soon()).value_or(-1) == 0);
}

TEST_CASE("a server that never starts is a timeout with the reason") {
  const auto port = static_cast<std::uint16_t>(free_port());
  const auto start = Clock::now();
  const auto client = TcpClient::connect("127.0.0.1", port, start + 60ms);
  REQUIRE_FALSE(client);
  CHECK(client.error().code == Errc::timeout);
  CHECK(client.error().message.find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
  CHECK(client.error().message.find("refused") != std::string::npos);
  CHECK(Clock::now() - start < 5s);
}

TEST_CASE("a name is not looked up by the client itself") {
  const auto client = TcpClient::connect("node0", 29500, soon());
  REQUIRE_FALSE(client);
  CHECK(client.error().code == Errc::invalid_argument);
  CHECK(client.error().message.find("'node0' is not an IP address") == 0);
  CHECK_FALSE(TcpClient::connect("127.0.0.1", 0, soon()));
}

TEST_CASE("resolve() returns addresses, and connect_by_name() uses them") {
  CHECK(resolve("10.1.2.3").value_or(std::vector<std::string>{}) == std::vector<std::string>{"10.1.2.3"});
  CHECK(resolve("localhost").value_or(std::vector<std::string>{}) == std::vector<std::string>{"127.0.0.1", "::1"});
  CHECK_FALSE(resolve(""));
  auto server = TcpServer::start();
  REQUIRE(server);
  CHECK(connect_by_name("localhost", (*server)->port(), soon()));
  CHECK(connect_by_name("127.0.0.1", (*server)->port(), soon()));
}

TEST_CASE("the client's bytes are those PyTorch sends") {
  std::string got;
  {
    ScriptedServer server([&](Peer& peer) {
      peer.greet();
      got += peer.read(21);
      got += peer.read(19);
      peer.write(std::string(1, '\0'));
      got += peer.read(11);
      peer.write(field("hi"));
    });
    auto client = connected(server.port());
    REQUIRE(client->set("a", "hi", soon()));
    CHECK(client->get("a", soon()).value_or("") == "hi");
  }
  CHECK(hex(got) == hex(unhex("01 0200000000000000 2f61 0200000000000000 6869"
                              "06 0100000000000000 0200000000000000 2f61"
                              "03 0200000000000000 2f61")));
}

TEST_CASE("another service on the port is a protocol error") {
  ScriptedServer server([](Peer& peer) {
    peer.read(10);
    peer.write("HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  const auto client = TcpClient::connect("127.0.0.1", server.port(), soon());
  REQUIRE_FALSE(client);
  CHECK(client.error().code == Errc::protocol);
}

TEST_CASE("keys that are set while the wait is being cancelled make it a success") {
  std::atomic<bool> next_is_right{false};
  ScriptedServer server([&](Peer& peer) {
    peer.greet();
    peer.read(19);  // WAIT; no answer in time
    peer.read(1);   // CANCEL_WAIT, sent before the reply to the wait arrived
    peer.write(unhex("00 01"));
    next_is_right = peer.read(19).front() == 4;  // and the connection is in step
    peer.write(number(42));
  });
  auto client = connected(server.port());
  const std::vector<std::string> keys = {"k"};
  CHECK(client->wait({keys.data(), 1}, Clock::now() + 20ms));
  CHECK(client->add("n", 2, soon()).value_or(-1) == 42);
  CHECK(next_is_right);
}

TEST_CASE("a server that dies ends every call with its name") {
  ScriptedServer server([](Peer& peer) {
    peer.greet();
    peer.read(18);
  });
  auto client = connected(server.port());
  for (int i = 0; i < 2; ++i) {
    const auto sum = client->add("n", 1, soon());
    REQUIRE_FALSE(sum);
    CHECK(sum.error().code == Errc::connection_lost);
    CHECK(sum.error().message.find("127.0.0.1:" + std::to_string(server.port())) != std::string::npos);
  }
  CHECK_FALSE(client->set("k", "v", soon()));
}

TEST_CASE("a wait ends at once when the server dies") {
  ScriptedServer server([](Peer& peer) {
    peer.greet();
    peer.read(19);
  });
  auto client = connected(server.port());
  const std::vector<std::string> keys = {"k"};
  const auto waited = client->wait(keys, Deadline::max());
  REQUIRE_FALSE(waited);
  CHECK(waited.error().code == Errc::connection_lost);
}

TEST_CASE("a server that stops answering does not hang the client for ever") {
  std::atomic<bool> over{false};
  ScriptedServer server([&](Peer& peer) {
    peer.greet();
    while (!over) std::this_thread::sleep_for(5ms);
  });
  auto client = connected(server.port());
  const auto start = Clock::now();
  const auto sum = client->add("n", 1, start + 50ms);
  over = true;
  REQUIRE_FALSE(sum);
  CHECK(sum.error().code == Errc::connection_lost);
  CHECK(sum.error().message.find("does not answer") != std::string::npos);
  CHECK(Clock::now() - start < 15s);
  CHECK_FALSE(client->num_keys(soon()));
}

TEST_CASE("a server that sends its reply in small parts does not extend the deadline") {
  std::atomic<bool> over{false};
  ScriptedServer server([&](Peer& peer) {
    peer.greet();
    peer.read(1);
    peer.write(number(1'000'000));
    while (!over) {
      peer.write(field("/k"));
      std::this_thread::sleep_for(20ms);
    }
  });
  auto client = connected(server.port());
  const auto start = Clock::now();
  const auto keys = client->list_keys(start);
  over = true;
  REQUIRE_FALSE(keys);
  CHECK(keys.error().code == Errc::connection_lost);
  CHECK(Clock::now() - start < 15s);
}

TEST_CASE("an invalid reply is a protocol error") {
  std::string answer;
  SECTION("a wait answered with 7") { answer = unhex("07"); }
  SECTION("a wait cancelled without a request") { answer = unhex("01"); }
  SECTION("a value of absurd length") { answer = unhex("00 ffffffffffffff7f"); }
  ScriptedServer server([&](Peer& peer) {
    peer.greet();
    peer.write(answer);
    peer.read(100);
  });
  auto client = connected(server.port());
  const auto got = client->get("k", soon());
  REQUIRE_FALSE(got);
  CHECK(got.error().code == Errc::protocol);
}
