// Misbehaving clients must not affect the others.
#include <fcntl.h>
#include <sys/resource.h>

#include <fstream>
#include <mutex>

#include "ddrun/test/store.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// A server and a well-behaved client of it.
struct Fixture {
  explicit Fixture(const TcpServerOptions& options = {})
      : server(started(options)), client(connected(server->port())) {}
  /// The server still serves. As it has one thread, it has also read what was sent before.
  void check_unharmed() {
    const auto before = client->add("alive", 0, soon());
    REQUIRE(before);
    CHECK(client->add("alive", 1, soon()).value_or(-1) == *before + 1);
  }

  std::unique_ptr<TcpServer> server;
  std::unique_ptr<TcpClient> client;
};

long resident_kib(std::string_view which = "VmRSS:") {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(which)) return std::stol(line.substr(which.size()));
  }
  return 0;
}

// Sanitizers use a multiple of the memory.
#ifdef DDRUN_SANITIZED
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

/// By how much the largest resident size has grown since then; 0 where the kernel does not count it.
class PeakMemory {
 public:
  PeakMemory() { std::ofstream("/proc/self/clear_refs") << 5; }
  [[nodiscard]] long growth_kib() const { return is_sanitized ? 0 : resident_kib("VmHWM:") - before_; }

 private:
  long before_ = resident_kib("VmHWM:");
};

}  // namespace

TEST_CASE("no memory is reserved for an announced length") {
  Fixture f;
  const long before = resident_kib();
  std::vector<RawClient> claiming;
  for (int i = 0; i < 100; ++i) {
    claiming.emplace_back(f.server->port());
    REQUIRE(claiming.back().send(greeting() + unhex("01 0100000000000000 61 0000800000000000")));
  }
  f.check_unharmed();
  CHECK(resident_kib() - before < 50'000);
}

TEST_CASE("an incomplete request affects no other client and is dropped with its own") {
  Fixture f;
  {
    RawClient half(f.server->port());
    REQUIRE(half.send(greeting() + unhex("01") + field("k") + number(5) + "val"));
    RawClient greets_half(f.server->port());
    REQUIRE(greets_half.send(greeting().substr(0, 3)));
    RawClient silent(f.server->port());
    f.check_unharmed();
  }
  f.check_unharmed();
  CHECK(f.client->num_keys(soon()).value_or(-1) == 1);  // "alive"
}

TEST_CASE("clients that close right after a request leave no connection") {
  Fixture f;
  const auto before = f.server->stats().connections;
  for (int i = 0; i < 50; ++i) {
    RawClient client(f.server->port());
    REQUIRE(client.send(greeting() + unhex("04") + field("/n") + number(1)));
  }
  // First wait until all fifty requests were executed: some may still wait to be accepted.
  const auto end = soon();
  while (f.client->add("n", 0, soon()).value_or(0) < 50 && Clock::now() < end) ::usleep(1000);
  CHECK(f.client->add("n", 0, soon()).value_or(0) == 50);
  while (f.server->stats().connections > before && Clock::now() < end) ::usleep(1000);
  CHECK(f.server->stats().connections == before);
}

TEST_CASE("a client may vanish while it waits") {
  Fixture f;
  for (int i = 0; i < 50; ++i) {
    RawClient gone(f.server->port());
    REQUIRE(gone.send(greeting() + unhex("06") + number(2) + field("/k") + field("/other")));
    if (i % 2 == 0) {
      const linger reset{1, 0};
      ::setsockopt(gone.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
  }
  RawClient stays(f.server->port());
  REQUIRE(stays.send(greeting() + unhex("06") + number(1) + field("/k")));
  f.check_unharmed();
  REQUIRE(f.client->set("k", "v", soon()));
  CHECK(hex(stays.receive(1)) == "00");
  REQUIRE(f.client->set("other", "v", soon()));
  f.check_unharmed();
}

TEST_CASE("a client that never reads costs bounded memory and affects no other") {
  Fixture f;
  REQUIRE(f.client->set("value", std::string(1024 * 1024, 'v'), soon()));
  f.check_unharmed();
  const long before = resident_kib();
  {
    RawClient not_reading(f.server->port());
    REQUIRE(not_reading.send(greeting()));
    std::string requests;
    for (int i = 0; i < 10'000; ++i) requests += unhex("03") + field("/value");
    // 10 GB of replies are requested, again and again, until the server stops reading.
    std::size_t taken = 0;
    for (int i = 0; i < 200; ++i) {
      const auto now = not_reading.send_while_taken(requests, 100ms);
      taken += now;
      if (now < requests.size()) break;
    }
    INFO("bytes of requests taken: " << taken);
    CHECK(taken < 200 * requests.size());
    f.check_unharmed();
    CHECK(resident_kib() - before < 64 * 1024);
  }
  f.check_unharmed();
}

TEST_CASE("a client that reads late gets every reply in order") {
  Fixture f;
  REQUIRE(f.client->set("value", std::string(100'000, 'v'), soon()));
  f.check_unharmed();
  RawClient late(f.server->port());
  std::string requests = greeting();
  constexpr int count = 500;
  for (int i = 0; i < count; ++i) {
    requests += unhex("03") + field("/value") + unhex("0d") + number(static_cast<std::uint64_t>(i)).substr(0, 4);
  }
  REQUIRE(late.send(requests));
  f.check_unharmed();
  for (int i = 0; i < count; ++i) {
    const auto reply = late.receive(8 + 100'000 + 4);
    if (reply.substr(8 + 100'000) != number(static_cast<std::uint64_t>(i)).substr(0, 4)) FAIL("reply " << i);
  }
  REQUIRE(late.send(unhex("0d 01020304")));
  CHECK(hex(late.receive(4)) == "01020304");
}

TEST_CASE("a client that watches keys and does not read is disconnected") {
  Fixture f;
  RawClient not_reading(f.server->port());
  REQUIRE(not_reading.send(unhex("07") + field("/k")));
  REQUIRE(hex(not_reading.receive(1)) == "03");
  const std::string value(1024 * 1024, 'v');
  const auto accepted = f.server->stats().connections;
  for (int i = 0; i < 400 && f.server->stats().connections == accepted; ++i) {
    REQUIRE(f.client->set("k", value, soon()));
  }
  CHECK(f.server->stats().connections == accepted - 1);
  CHECK(f.server->stats().refused == 1);
  f.check_unharmed();
}

TEST_CASE("the memory limit holds for notifications of one change to many clients") {
  std::mutex mutex;
  std::string refusal;
  TcpServerOptions options;
  options.max_memory = 32 * 1024 * 1024;
  options.on_refusal = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    refusal = text;
  };
  Fixture f(options);
  const auto accepted = f.server->stats().connections;
  std::vector<RawClient> watching;
  for (int i = 0; i < 30; ++i) {
    watching.emplace_back(f.server->port());
    // Some wait for the key too.
    const auto wait = i % 2 == 0 ? unhex("05") + number(1) + field("/k") : "";
    REQUIRE(watching.back().send(unhex("07") + field("/k") + wait));
    REQUIRE(hex(watching.back().receive(1)) == "03");
  }
  f.check_unharmed();
  const std::string value(4 * 1024 * 1024, 'v');
  REQUIRE(f.client->set("other", value, soon()));  // the client's own buffer is counted before
  f.check_unharmed();
  const PeakMemory peak;
  REQUIRE(f.client->set("k", value, soon()));
  CHECK(f.client->num_keys(soon()).value_or(-1) == 3);
  CHECK(peak.growth_kib() < 48 * 1024);
  CHECK(f.server->stats().peak_memory <= options.max_memory);
  // The first ones are served, the others are disconnected.
  CHECK(f.server->stats().connections < accepted + watching.size());
  CHECK(f.server->stats().connections > accepted);
  const auto notification = unhex("01") + field("/k") + field("") + field(value);
  CHECK((watching[0].receive(notification.size()) == notification));
  const std::lock_guard lock(mutex);
  INFO(refusal);
  CHECK(refusal.find("no room for a notification of ") != std::string::npos);
}

TEST_CASE("the memory of disconnected clients is freed before others are served") {
  TcpServerOptions options;
  options.max_memory = 32 * 1024 * 1024;
  Fixture f(options);
  REQUIRE(f.client->set("k", std::string(8 * 1024 * 1024, 'v'), soon()));
  std::vector<RawClient> asking;
  for (int i = 0; i < 60; ++i) asking.emplace_back(f.server->port());
  f.check_unharmed();
  const PeakMemory peak;
  for (RawClient& client : asking) REQUIRE(client.send(greeting() + unhex("03") + field("/k")));
  CHECK(f.client->num_keys(soon()).value_or(-1) == 2);
  CHECK(peak.growth_kib() < 48 * 1024);
  CHECK(f.server->stats().refused > 0);
}

TEST_CASE("the memory limit holds for all clients together") {
  std::mutex mutex;
  std::string refusal;
  TcpServerOptions options;
  options.max_memory = 16 * 1024 * 1024;
  options.on_refusal = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    refusal = text;
  };
  Fixture f(options);
  REQUIRE(f.client->set("before", "v", soon()));
  std::string expected;
  const std::string megabytes(4 * 1024 * 1024, 'v');
  // Either the stored value or the received part of the next one exceeds the limit, depending on the pieces.
  SECTION("values") {
    auto greedy = TcpClient::connect("127.0.0.1", f.server->port(), soon());
    REQUIRE(greedy);
    for (int i = 0; i < 1000; ++i) {
      if (!(*greedy)->set("big" + std::to_string(i), megabytes, soon())) break;
    }
    CHECK_FALSE((*greedy)->num_keys(soon()));
  }
  SECTION("a request that never ends") {
    RawClient greedy(f.server->port());
    std::string pairs = greeting() + unhex("0b") + number(1000);
    for (int i = 0; i < 10; ++i) pairs += field("/k") + field(megabytes);
    greedy.send(pairs);
    CHECK(greedy.closed_by_server());
    expected = "unfinished request";
  }
  SECTION("waits") {
    RawClient greedy(f.server->port());
    std::string names = greeting() + unhex("0d 01020304") + unhex("06") + number(20000);
    const std::string filler(1000, 'k');
    for (int i = 0; i < 20000; ++i) names += field(filler + std::to_string(i));
    greedy.send(names);
    CHECK(greedy.receive(4).size() == 4);
    CHECK(greedy.closed_by_server());
  }
  f.check_unharmed();
  CHECK(f.client->get("before", soon()).value_or("") == "v");
  CHECK(f.server->stats().peak_memory <= options.max_memory + 9 * 1024 * 1024);
  const std::lock_guard lock(mutex);
  INFO(refusal);
  CHECK(refusal.find("127.0.0.1:") != std::string::npos);
  CHECK(refusal.find(expected) != std::string::npos);
  CHECK(refusal.find("no room") != std::string::npos);
}

TEST_CASE("an element of a queue that woke a disconnected client wakes the next waiter") {
  Fixture f;
  RawClient not_reading(f.server->port()), next(f.server->port()), producer(f.server->port());
  REQUIRE(not_reading.send(unhex("07") + field("/k") + unhex("05") + number(1) + field("/q")));
  REQUIRE(hex(not_reading.receive(1)) == "03");
  f.check_unharmed();  // its wait is registered now
  REQUIRE(next.send(greeting() + unhex("06") + number(1) + field("/q")));
  f.check_unharmed();
  REQUIRE(producer.send(greeting() + unhex("0e") + field("/q") + field("element")));
  f.check_unharmed();
  // The first one does not read, exceeds the limit of unread notifications, and is disconnected.
  const std::string big(8 * 1024 * 1024, 'v');
  for (int i = 0; i < 8; ++i) REQUIRE(f.client->set("k", big, soon()));
  CHECK(hex(next.receive(1)) == "00");
  REQUIRE(next.send(unhex("0f") + field("/q")));
  CHECK(next.receive(16 + 7) == number(1) + field("element"));
  f.check_unharmed();
}

TEST_CASE("on_refusal is called for a client that exceeds a limit, and not for other protocols") {
  std::mutex mutex;
  std::vector<std::string> refusals;
  TcpServerOptions options;
  options.on_refusal = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    refusals.push_back(text);
  };
  Fixture f(options);
  RawClient stranger(f.server->port());
  stranger.send("GET / HTTP/1.1\r\n\r\n");
  CHECK(stranger.closed_by_server());
  RawClient client(f.server->port());
  client.send(greeting() + unhex("0d 01020304") + unhex("01") + field("/weights") + number(9'000'000));
  CHECK(client.receive(4).size() == 4);
  CHECK(client.closed_by_server());
  f.check_unharmed();
  CHECK(f.server->stats().refused == 2);
  const std::lock_guard lock(mutex);
  REQUIRE(refusals.size() == 1);
  CHECK(refusals[0].find("SET of key /weights with a value of more than 8388608 bytes") != std::string::npos);
}

TEST_CASE("without descriptors new clients are disconnected and the others are served") {
  Fixture f;
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  // The sockets of the clients must exist before the limit hits, as those of other processes would.
  std::vector<int> sockets;
  for (int i = 0; i < 20; ++i) sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(sockets.back()) + 4;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(f.server->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int served = 0;
  int cut_off = 0;
  for (const int fd : sockets) {
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    const auto request = greeting() + unhex("0d 01020304");
    (void)::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char reply[4];
    pollfd entry{fd, POLLIN, 0};
    REQUIRE(::poll(&entry, 1, 10'000) == 1);
    (::recv(fd, reply, sizeof reply, MSG_WAITALL) == 4 ? served : cut_off)++;
  }
  CHECK(served > 0);
  CHECK(cut_off > 0);
  f.check_unharmed();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  RawClient afterwards(f.server->port());
  REQUIRE(afterwards.send(greeting() + unhex("0d 01020304")));
  CHECK(hex(afterwards.receive(4)) == "01020304");
  for (const int fd : sockets) ::close(fd);
}
