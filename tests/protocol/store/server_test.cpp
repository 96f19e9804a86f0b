// The server over sockets: captured sessions, ports, many clients.
#include "ddrun/store/tcp_server.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <poll.h>
#include <sys/resource.h>

#include <fstream>
#include <latch>
#include <set>
#include <sstream>

#include "ddrun/base/address.hpp"
#include "ddrun/test/processes.hpp"
#include "ddrun/test/store.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

using Conversation = std::vector<Exchange>;

const Conversation& either_dialect() {
  return GENERATE(as<bool>{}, false, true) ? captured_old_session() : captured_session();
}

/// Value of a line of the store thread's /proc status, such as "SigBlk".
std::string thread_status(const std::string& name) {
  std::string found;
  DIR* tasks = ::opendir("/proc/self/task");
  REQUIRE(tasks != nullptr);
  while (const dirent* task = ::readdir(tasks)) {
    std::ifstream file(std::string("/proc/self/task/") + task->d_name + "/status");
    std::stringstream text;
    text << file.rdbuf();
    if (text.str().find("Name:\tddrun-store\n") == std::string::npos) continue;
    const auto at = text.str().find("\n" + name + ":\t");
    if (at != std::string::npos) found = text.str().substr(at + name.size() + 3);
    found = found.substr(0, found.find('\n'));
  }
  ::closedir(tasks);
  return found;
}

std::vector<int> open_descriptors() {
  std::vector<int> fds;
  DIR* dir = ::opendir("/proc/self/fd");
  REQUIRE(dir != nullptr);
  while (const dirent* entry = ::readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(dir)) fds.push_back(fd);
  }
  ::closedir(dir);
  return fds;
}

}  // namespace

TEST_CASE("a captured session over a socket is answered byte for byte") {
  const auto& conversation = either_dialect();
  auto server = started();
  RawClient client(server->port());
  for (const auto& exchange : conversation) {
    CAPTURE(exchange.name);
    REQUIRE(client.send(exchange.sent));
    CHECK(hex(client.receive(exchange.answer.size())) == hex(exchange.answer));
  }
}

TEST_CASE("a server that has no thread yet lets clients wait, and may begin a round or end") {
  auto server = TcpServer::listen().value();
  const auto has_event = [&] {
    pollfd event{server->descriptor(), POLLIN, 0};
    return ::poll(&event, 1, 0) == 1;
  };
  CHECK_FALSE(has_event());
  RawClient early(server->port());
  CHECK(has_event());
  REQUIRE(server->new_round());
  CHECK(early.closed_by_server());
  CHECK_FALSE(has_event());
  CHECK(server->stats().accepted == 0);
  CHECK(thread_status("SigBlk").empty());
  SECTION("until it serves them") {
    const auto& exchange = captured_session().front();
    RawClient client(server->port());
    REQUIRE(client.send(exchange.sent));
    REQUIRE(server->serve());
    CHECK(hex(client.receive(exchange.answer.size())) == hex(exchange.answer));
  }
}

TEST_CASE("a wait that its own client ends is answered in order") {
  auto server = started();
  RawClient client(server->port());
  REQUIRE(client.send(greeting() + unhex("0d 01020304") + unhex("06") + number(1) + field("/k") + unhex("01") +
                      field("/k") + field("v") + unhex("0d 05060708")));
  CHECK(hex(client.receive(9)) ==
        "01020304"
        "00"
        "05060708");
}

TEST_CASE("a reply and the end of a wait are sent together, in order") {
  std::latch held(1), all_sent(1);
  TcpServerOptions options;
  options.on_refusal = [&](const std::string&) {
    held.count_down();
    all_sent.wait();
  };
  const auto server = started(options);
  std::vector<RawClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(server->port());
    REQUIRE(clients.back().send(greeting() + unhex("0d 01020304")));
    REQUIRE(clients.back().receive(4).size() == 4);
  }
  // A client that exceeds a limit holds the server until the requests of all others are there: one batch of events.
  RawClient excessive(server->port());
  REQUIRE(excessive.send(greeting() + unhex("0d 01020304") + unhex("01") + field("k") + number(9'000'000)));
  held.wait();
  for (RawClient& client : clients) {
    const bool last = &client == &clients.back();
    REQUIRE(client.send(unhex("04") + field("n") + number(1) + (last ? unhex("01") + field("k") + field("v") : "") +
                        unhex("06") + number(1) + field("k")));
  }
  all_sent.count_down();
  for (std::size_t i = 0; i < clients.size(); ++i) {
    CHECK(clients[i].receive(9) == number(i + 1) + unhex("00"));
    tcp_info info{};
    socklen_t size = sizeof info;
    REQUIRE(::getsockopt(clients[i].fd(), IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
    if (info.tcpi_data_segs_in != 0) CHECK(info.tcpi_data_segs_in == 2);  // the first answered the ping
  }
}

TEST_CASE("a value of the greatest size passes in pieces while others are served") {
  auto server = started();
  RawClient slow(server->port());
  RawClient other(server->port());
  const std::string value(8 * 1024 * 1024, 'v');
  const auto request = greeting() + unhex("01") + field("big") + field(value);
  REQUIRE(slow.send(std::string_view(request).substr(0, request.size() / 2)));
  REQUIRE(other.send(greeting() + unhex("0d 01020304")));
  CHECK(hex(other.receive(4)) == "01020304");
  REQUIRE(slow.send(std::string_view(request).substr(request.size() / 2)));
  REQUIRE(slow.send(unhex("03") + field("big")));
  CHECK((slow.receive(8 + value.size()) == field(value)));
}

TEST_CASE("all addresses have the same port") {
  auto server = started();
  REQUIRE(server->port() != 0);
  auto four = TcpClient::connect("127.0.0.1", server->port(), soon());
  REQUIRE(four);
  auto six = TcpClient::connect("::1", server->port(), soon());
  if (!six) skip("this machine has no IPv6 loopback");
  CHECK((*six)->server() == "[::1]:" + std::to_string(server->port()));
  REQUIRE((*four)->set("k", "v", soon()));
  CHECK((*four)->get("k", soon()).value_or("") == "v");
  CHECK((*six)->get("k", soon()).value_or("") == "v");
}

TEST_CASE("localhost reaches a server on either family") {
  for (const auto* address : {"127.0.0.1", "::1"}) {
    TcpServerOptions options;
    options.addresses = {address};
    auto server = TcpServer::start(options);
    if (!server) skip("this machine has no IPv6 loopback");
    CHECK(TcpClient::connect("localhost", (*server)->port(), soon()));
  }
}

TEST_CASE("the error for a port in use names it and a remedy") {
  auto first = started();
  TcpServerOptions options;
  options.port = first->port();
  const auto second = TcpServer::start(options);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == Errc::unavailable);
  CHECK(second.error().message == "cannot listen on 127.0.0.1:" + std::to_string(options.port) + ": port " +
                                      std::to_string(options.port) +
                                      " is in use by another program; choose another port");
}

TEST_CASE("a port can be used again at once") {
  TcpServerOptions options;
  for (int i = 0; i < 5; ++i) {
    auto server = started(options);
    options.port = server->port();
    auto client = TcpClient::connect("127.0.0.1", server->port(), soon());
    REQUIRE(client);
    CHECK((*client)->num_keys(soon()).value_or(-1) == 0);
    server.reset();  // closes first, so its connections are in TIME_WAIT
  }
}

TEST_CASE("the error for a bad address names it") {
  TcpServerOptions options;
  options.addresses = {"node0"};
  auto server = TcpServer::start(options);
  REQUIRE_FALSE(server);
  CHECK(server.error().code == Errc::invalid_argument);
  CHECK(server.error().message.find("'node0' is not an IP address") == 0);
  options.addresses = {};
  server = TcpServer::start(options);
  REQUIRE_FALSE(server);
  CHECK(server.error().code == Errc::invalid_argument);
  options.addresses = {"127.0.0.1", "192.0.2.1"};  // reserved for documentation: never this machine's
  server = TcpServer::start(options);
  REQUIRE_FALSE(server);
  CHECK(server.error().code == Errc::unavailable);
  CHECK(server.error().message.find("192.0.2.1") != std::string::npos);
}

TEST_CASE("five hundred clients are served at the same time") {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  auto server = started();
  std::vector<RawClient> clients;
  constexpr int count = 500;
  for (int i = 0; i < count; ++i) {
    clients.emplace_back(server->port());
    REQUIRE(clients.back().send(greeting() + unhex("04") + field("init/") + number(1)));
  }
  std::uint64_t sum = 0;
  for (auto& client : clients) {
    const auto answer = client.receive(8);
    REQUIRE(answer.size() == 8);
    std::uint64_t value = 0;
    std::memcpy(&value, answer.data(), 8);
    sum += value;
  }
  CHECK(sum == count * (count + 1) / 2);
  for (auto& client : clients) REQUIRE(client.send(unhex("06") + number(1) + field("go")));
  REQUIRE(clients[0].send(unhex("0c")));
  REQUIRE(hex(clients[0].receive(1)) == "01");
  REQUIRE(clients[0].send(unhex("0d 01020304")));
  REQUIRE(hex(clients[0].receive(4)) == "01020304");
  RawClient setter(server->port());
  // All waits are registered once each of these has been read, in whatever order: a late one is answered at once.
  REQUIRE(setter.send(greeting() + unhex("01") + field("go") + field("")));
  for (std::size_t i = 1; i < clients.size(); ++i) REQUIRE(hex(clients[i].receive(1)) == "00");
}

TEST_CASE("the store's thread blocks signals and its descriptors are close-on-exec") {
  const auto before = open_descriptors();
  auto server = started();
  RawClient client(server->port());
  REQUIRE(client.send(greeting() + unhex("0d 01020304")));
  REQUIRE(client.receive(4).size() == 4);
  // Every signal that can be blocked; 32 and 33 belong to the C library, 9 and 19 cannot be.
  const auto mask = std::stoull(thread_status("SigBlk"), nullptr, 16);
  const auto cannot = (1ULL << 8) | (1ULL << 18) | (1ULL << 31) | (1ULL << 32);
  CHECK((mask | cannot) == ~0ULL);
  for (const int fd : open_descriptors()) {
    if (std::find(before.begin(), before.end(), fd) != before.end()) continue;
    CAPTURE(fd);
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("an idle server does not wake up") {
  auto server = started();
  auto client = TcpClient::connect("127.0.0.1", server->port(), soon());
  REQUIRE(client);
  REQUIRE((*client)->add("n", 1, soon()));
  const auto switches = [] { return std::stol(thread_status("voluntary_ctxt_switches")); };
  // It may still be spinning, for some microseconds.
  const auto settled_by = Clock::now() + 5s;
  long before = switches();
  for (long now = -1; now != before && Clock::now() < settled_by;) {
    before = switches();
    ::usleep(20'000);
    now = switches();
  }
  ::usleep(300'000);
  CHECK(switches() == before);
}

TEST_CASE("clients of both dialects share one store") {
  auto server = started();
  auto modern = TcpClient::connect("127.0.0.1", server->port(), soon());
  REQUIRE(modern);
  RawClient old(server->port());
  RawClient callbacks(server->port());  // a client of that time has two connections, and this one is silent
  REQUIRE(old.send(unhex("05") + number(1) + field("/k")));
  REQUIRE((*modern)->set("k", "v", soon()));
  CHECK(hex(old.receive(1)) == "00");
  REQUIRE(old.send(unhex("02") + field("/k")));
  CHECK(old.receive(9) == field("v"));
  REQUIRE(old.send(unhex("00") + field("/from_old") + field("1")));
  CHECK((*modern)->get("from_old", soon()).value_or("") == "1");
}

TEST_CASE("stats() counts keys, connections, bytes and requests") {
  auto server = started();
  {
    RawClient client(server->port());
    const std::string sent = greeting() + unhex("01") + field("/a") + field("1") + unhex("04") + field("/n") +
                             number(2) + unhex("04") + field("/n") + number(2);
    REQUIRE(client.send(sent));
    CHECK(client.receive(16) == number(2) + number(4));
    const auto stats = server->stats();
    CHECK(stats.keys == 2);
    CHECK(stats.connections == 1);
    CHECK(stats.bytes_in == sent.size());
    CHECK(stats.bytes_out == 16);
    CHECK(stats.memory > 0);
    using Requests = std::vector<std::pair<std::string, std::uint64_t>>;
    CHECK(stats.requests == Requests{{"VALIDATE", 1}, {"SET", 1}, {"ADD", 2}});
  }
  const auto end = soon();
  while (server->stats().connections > 0 && Clock::now() < end) ::usleep(1000);
  const auto stats = server->stats();
  CHECK(stats.connections == 0);
  CHECK(stats.peak_connections == 1);
  CHECK(stats.accepted == 1);
  CHECK(stats.refused == 0);
}

TEST_CASE("waits() names clients and what they wait for, for as long as they wait") {
  const auto server = started();
  const auto client = connected(server->port());
  const auto waiting = [&](const std::vector<std::string>& keys) {
    RawClient raw(server->port());
    std::string request = greeting() + unhex("06") + number(keys.size());
    for (const std::string& key : keys) request += field(key);
    REQUIRE(raw.send(request));
    return raw;
  };
  const std::vector<RawClient> raw = [&] {
    std::vector<RawClient> all;
    all.push_back(waiting({"/a"}));
    all.push_back(waiting({"/a"}));
    all.push_back(waiting({"/1", "/2", "/3", "/4", std::string(1000, 'k')}));
    return all;
  }();
  const auto clients = [&] {
    std::size_t count = 0;
    for (const auto& wait : server->waits()) count += wait.clients.size();
    return count;
  };
  REQUIRE(wait_until([&] { return clients() == 3; }));
  const auto waits = server->waits();
  REQUIRE(waits.size() == 2);
  CHECK(waits[0].keys == std::vector<std::string>{"/1", "/2", "/3"});
  CHECK(waits[0].keys_left_out == 2);
  CHECK(waits[1].keys == std::vector<std::string>{"/a"});
  CHECK(waits[1].keys_left_out == 0);
  std::vector<std::string> addresses;
  for (const RawClient& one : raw) addresses.push_back(local_socket_address(one.fd())->text());
  CHECK(waits[0].clients == std::vector{addresses[2]});
  CHECK(std::set(waits[1].clients.begin(), waits[1].clients.end()) == std::set{addresses[0], addresses[1]});
  CHECK(waits[1].since <= Clock::now());
  CHECK(Clock::now() - waits[1].since < std::chrono::seconds(20));
  REQUIRE(client->set("a", "1", soon()));  // may return before the server has it
  CHECK(wait_until([&] { return server->waits().size() == 1; }));
}

TEST_CASE("no descriptor is left when server and clients are gone") {
  const auto before = open_descriptors().size();
  {
    auto server = started();
    const auto client = connected(server->port());
    REQUIRE(server->new_round());
  }
  CHECK(open_descriptors().size() == before);
}
