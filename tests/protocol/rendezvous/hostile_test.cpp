// Invalid and malicious connections, which must not affect the job.
#include <sys/resource.h>

#include <fstream>

#include "ddrun/test/catch.hpp"
#include "fixture.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

long resident_kib() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::stol(line.substr(6));
  }
  return 0;
}

std::string hello(const char* numbers) { return "DDRUN-RV" + unhex(numbers) + std::string(32, 'n'); }

/// The reply before the close.
std::string reply_to(const Fixture& f, const std::string& bytes) {
  RawAgent stranger(f.server->port());
  stranger.send(bytes);
  return stranger.receive_all();
}

RawAgent joined(const Fixture& f, const std::string& host) {
  RawAgent agent(f.server->port());
  REQUIRE(agent.handshake() == HandshakeState::done);
  REQUIRE(agent.join(host));
  REQUIRE(agent.wait_for<Welcome>());
  return agent;
}

}  // namespace

TEST_CASE("peers of another protocol are disconnected without a reply") {
  Fixture f;
  for (const auto& bytes : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("\x16\x03\x01\x02\x00", 5),
                            std::string("SSH-2.0-x\r\n"), std::string("DDRUN-RW"), std::string(100'000, '\0')}) {
    CAPTURE(bytes.substr(0, 20));
    CHECK(reply_to(f, bytes).empty());
    f.check_members_unaffected();
  }
  CHECK(f.server->stats().foreign_protocol == 5);
  CHECK(f.has_noticed("something on 127.0.0.1 that is not ddrun"));
}

TEST_CASE("a port scanner is not logged") {
  Fixture f;
  for (int i = 0; i < 20; ++i) {
    RawAgent scanner(f.server->port());
    if (i % 2 == 0) {
      const linger reset{1, 0};
      ::setsockopt(scanner.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
  }
  CHECK(wait_until([&] { return f.server->stats().timed_out == 20; }));
  f.check_members_unaffected();
  CHECK(f.notices().empty());
}

TEST_CASE("another secret is refused, without a proof of the coordinator") {
  auto options = Fixture::slow_heartbeat();
  options.secret_file = "/a/secret";
  Fixture f(options);
  RawAgent agent(f.server->port());
  CHECK(agent.handshake("another secret, also long") == HandshakeState::rejected);
  f.check_members_unaffected();
  CHECK(f.server->stats().wrong_secrets == 1);
  CHECK(f.has_noticed("127.0.0.1 has another secret and was turned away: this machine's is /a/secret on "));
  CHECK(f.has_noticed("scp -p /a/secret 127.0.0.1:/a/secret"));
  // All are counted, few are reported.
  for (int i = 0; i < 99; ++i) {
    RawAgent again(f.server->port());
    CHECK(again.handshake("another secret, also long") == HandshakeState::rejected);
  }
  CHECK(f.server->stats().wrong_secrets == 100);
  f.check_members_unaffected();
  CHECK(f.notices().size() == 13);  // ten, and the 16th, 32nd and 64th
}

TEST_CASE("a recorded session is of no use") {
  Fixture f;
  auto recorded = joined(f, "recorded");
  REQUIRE(recorded.send_message(Failed{.round = 1000}));
  REQUIRE(recorded.wait_for<Stop>());
  for (auto& member : f.members) REQUIRE(member.wait_for<Stop>());
  const auto session = recorded.sent();
  SECTION("to a new connection") {
    CHECK(reply_to(f, session).substr(hello_size) == std::string(32, '\0'));
    CHECK(f.server->stats().wrong_secrets == 1);
  }
  SECTION("to a new connection that is authenticated") {
    RawAgent agent(f.server->port());
    REQUIRE(agent.handshake() == HandshakeState::done);
    agent.send(session.substr(hello_size + 32));
    CHECK(agent.receive_all().empty());
    CHECK(f.has_noticed("was changed on its way"));
  }
  SECTION("to its own connection") {
    recorded.send(session.substr(hello_size + 32));
    CHECK_FALSE(recorded.receive());
    CHECK(
        coordinator_has_logged("lost recorded: a message was changed on its way or is not from whom it claims to be"));
  }
  f.check_members_unaffected();  // round 1000 is not repeated
}

TEST_CASE("a handshake that takes too long is closed") {
  Fixture f;
  const auto begin = Clock::now();
  std::vector<RawAgent> slow;
  for (int i = 0; i < 4; ++i) slow.emplace_back(f.server->port());
  REQUIRE(slow[1].send(hello("0300 0100 00000000").substr(0, 47)));
  REQUIRE(slow[2].send(hello("0300 0100 00000000")));
  REQUIRE(slow[3].handshake() == HandshakeState::done);  // never joins
  for (auto& one : slow) one.receive_all();
  CHECK(Clock::now() - begin > 4s);
  CHECK(f.server->stats().timed_out == 4);
  f.check_members_unaffected();
}

TEST_CASE("unauthenticated connections are limited and cheap") {
  Fixture f;
  const long before = resident_kib();
  std::vector<RawAgent> idle;
  // 600 from 40 addresses; beyond the limits they wait in the accept queue or get "busy".
  for (int i = 0; i < 600; ++i) idle.emplace_back(f.server->port(), concat("127.0.1.", i % 40 + 1).c_str());
  f.check_members_unaffected();
  CHECK(wait_until([&] { return f.server->stats().newcomers == 512; }));
  CHECK(resident_kib() - before < 10'000);
  // They are closed after five seconds, and the next ones are accepted; meanwhile the job goes on.
  CHECK(wait_until([&] {
    f.check_members_unaffected();
    return f.server->stats().accepted >= 600;
  }));
  idle.clear();
  auto late = joined(f, "late");
  f.check_members_unaffected();
}

TEST_CASE("one address has only so many connections that wait") {
  Fixture f;
  std::vector<RawAgent> idle;
  for (int i = 0; i < 40; ++i) idle.emplace_back(f.server->port());
  for (int i = 32; i < 40; ++i) {
    CHECK(idle[static_cast<std::size_t>(i)].receive_all() == CoordinatorHandshake::busy_reply());
  }
  CHECK(f.server->stats().newcomers == 32);
  CHECK(f.server->stats().rejected == 8);
  CHECK(f.has_noticed("too many connections from 127.0.0.1"));
  // Other addresses are not affected.
  RawAgent other(f.server->port(), "127.0.0.2");
  CHECK(other.handshake() == HandshakeState::done);
  f.check_members_unaffected();
}

TEST_CASE("frames that are too long, garbled, unknown or unreadable end their connection only") {
  Fixture f;
  const auto check_cut_off = [&](const std::string& host, const std::string& notice, auto&& misbehave) {
    CAPTURE(host);
    auto agent = joined(f, host);
    misbehave(agent);
    while (agent.receive()) {
    }
    CHECK(f.has_noticed(notice));
    f.check_members_unaffected();
  };
  check_cut_off("long", "longer than any", [](RawAgent& agent) { agent.send(unhex("01004000 02")); });
  check_cut_off("huge", "longer than any", [](RawAgent& agent) { agent.send(unhex("ffffffff 02")); });
  check_cut_off("garbage", "was changed on its way",
                [](RawAgent& agent) { agent.send(unhex("04000000 07") + std::string(20, 'x')); });
  check_cut_off("flipped", "was changed on its way", [](RawAgent& agent) {
    auto bytes = agent.sealed(Pong{1});
    bytes[7] = static_cast<char>(bytes[7] ^ 1);
    agent.send(bytes);
  });
  check_cut_off("skipped", "was changed on its way", [](RawAgent& agent) {
    (void)agent.sealed(Pong{1});
    agent.send_message(Pong{2});
  });
  CHECK(f.server->stats().cut_off == 5);
}

TEST_CASE("authenticated peers must send valid messages, too") {
  Fixture open(Fixture::slow_heartbeat(), "");  // without tags, messages are easily forged
  std::size_t notices_seen = 0;
  const auto notice_after = [&](const std::string& bytes) {
    RawAgent agent(open.server->port());
    REQUIRE(agent.handshake("") == HandshakeState::done);
    agent.send(bytes);
    agent.receive_all();
    REQUIRE(wait_until([&, before = notices_seen]() { return open.notices().size() > before; }));
    notices_seen = open.notices().size();
    open.check_members_unaffected();
    return open.notices().back();
  };
  CHECK(notice_after(unhex("00000000 63")).find("unknown type 99") != std::string::npos);
  CHECK(notice_after(unhex("10000000 07 01000000 00000000 0000000000000000"))
            .find("its first message is not JOIN but PONG") != std::string::npos);
  CHECK(notice_after(unhex("04000000 01 ffffffff")).find("JOIN with a payload of 4 bytes") != std::string::npos);
  CHECK(notice_after(unhex("01000100 01")).find("longer than any may be") != std::string::npos);  // 64 KiB and one
}

TEST_CASE("a member's message of an unknown type is skipped") {
  Fixture f;
  auto member = joined(f, "newer");
  REQUIRE(member.send(member.sealed(99, "of a later version")));
  REQUIRE(member.send_message(Opened{3, 1}));
  CHECK(member.wait_for<Start>().value_or(Start{}).round == 3);
}

TEST_CASE("memory is not allocated by announced lengths") {
  Fixture open(Fixture::slow_heartbeat(), "");
  const long before = resident_kib();
  std::vector<RawAgent> claiming;
  for (int i = 0; i < 100; ++i) {
    RawAgent agent(open.server->port(), concat("127.0.0.", i + 2).c_str());
    REQUIRE(agent.handshake("") == HandshakeState::done);
    REQUIRE(agent.join("claims"));
    REQUIRE(agent.send(unhex("00004000 05 00")));
    claiming.push_back(std::move(agent));
  }
  open.check_members_unaffected();
  CHECK(wait_until([&] { return open.server->stats().agents == 102; }));
  CHECK(resident_kib() - before < 50'000);  // of 400 MB
}

TEST_CASE("an agent that does not read costs bounded memory and is disconnected") {
  Fixture f;
  auto unreading = joined(f, "deaf");
  const long before = resident_kib();
  // Each requests 60 MB, of which nothing is read.
  for (int i = 0; i < 20; ++i) unreading.send_message(Succeeded{1'000});
  CHECK(coordinator_has_logged("lost deaf: it does not read what it is told"));
  CHECK(resident_kib() - before < 700'000);  // of 1.2 GB; sanitizers delay freeing
  f.check_members_unaffected();
}

TEST_CASE("without descriptors new connections are closed and the job goes on") {
  Fixture f;
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  // The agents' own sockets must exist before the limit applies.
  std::vector<int> sockets;
  for (int i = 0; i < 20; ++i) sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit low = old;
  low.rlim_cur = static_cast<rlim_t>(sockets.back()) + 4;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(f.server->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int greeted = 0, cut_off = 0;
  for (const int fd : sockets) {
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    const auto bytes = hello("0300 0100 00000000");
    (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char reply[hello_size];
    pollfd entry{fd, POLLIN, 0};
    REQUIRE(::poll(&entry, 1, 10'000) == 1);
    (::recv(fd, reply, sizeof reply, MSG_WAITALL) == sizeof reply ? greeted : cut_off)++;
  }
  CHECK(greeted > 0);
  CHECK(cut_off > 0);
  f.check_members_unaffected();
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &old) == 0);
  for (const int fd : sockets) ::close(fd);
  auto later = joined(f, "later");
  f.check_members_unaffected();
}

TEST_CASE("an unknown session cannot be resumed, nor can another's be guessed") {
  Fixture f;
  for (const char* session :
       {"", ".", "1", "1.", "2.0123456789abcdef0123456789abcdef", "99999999999999999999.a", "-1.a"}) {
    RawAgent outsider(f.server->port());
    REQUIRE(outsider.handshake() == HandshakeState::done);
    REQUIRE(outsider.send_message(Resume{session, 0}));
    const auto refused = outsider.wait_for<Refused>();
    REQUIRE(refused);
    CHECK(refused->kind == RefusalKind::lost);
    CHECK(outsider.receive_all().empty());
  }
  f.check_members_unaffected();
}

TEST_CASE("a resume with a wrong count is disconnected, and the member is unaffected") {
  Fixture f;
  RawAgent member(f.server->port());
  REQUIRE(member.handshake() == HandshakeState::done);
  REQUIRE(member.join("counted"));
  const auto welcome = member.wait_for<Welcome>();
  REQUIRE(welcome);
  RawAgent again(f.server->port());
  REQUIRE(again.handshake() == HandshakeState::done);
  REQUIRE(again.send_message(Resume{welcome->session, 1000}));
  CHECK(again.receive_all().empty());
  CHECK(f.has_noticed("it has heard 1000 messages, it says"));
  REQUIRE(member.send_message(Opened{3, 1}));
  CHECK(member.wait_for<Start>().value_or(Start{}).round == 3);
  f.check_members_unaffected();
}
