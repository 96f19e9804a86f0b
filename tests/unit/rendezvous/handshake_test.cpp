#include "handshake.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun::rendezvous;
using namespace ddrun::test;

namespace {

const HmacKey secret("sixteen bytes or more");
const HmacKey other_secret("another secret of enough bytes");

Nonce nonce(std::uint8_t fill) {
  Nonce bytes;
  bytes.fill(fill);
  return bytes;
}

/// Both sides, and all bytes of each.
struct TwoSides {
  TwoSides(const HmacKey* of_agent, const HmacKey* of_coordinator, std::uint8_t agent_fill = 1, std::uint8_t fill = 2)
      : agent(of_agent, nonce(agent_fill)), coordinator(of_coordinator, nonce(fill)), to_coordinator(agent.begin()) {}

  /// `step` bytes at a time, until both sides are silent.
  void run(std::size_t step = 1000) {
    std::size_t received_by_coordinator = 0, received_by_agent = 0;
    for (bool moved = true; moved;) {
      moved = pass(coordinator, to_coordinator, received_by_coordinator, to_agent, step);
      moved = pass(agent, to_agent, received_by_agent, to_coordinator, step) || moved;
    }
  }

  AgentHandshake agent;
  CoordinatorHandshake coordinator;
  std::string to_coordinator, to_agent;

 private:
  template <class Side>
  bool pass(Side& side, const std::string& sent, std::size_t& received, std::string& answer, std::size_t step) {
    if (side.state() != HandshakeState::in_progress || received == sent.size()) return false;
    const auto piece = sent.substr(received, step);
    std::string_view left = piece;
    side.feed(left, answer);
    received += piece.size() - left.size();
    return true;
  }
};

/// The handshake ends without keys, and does not wait for more.
template <class Side>
void check_refused(Side& side, std::string_view sent) {
  std::string answer;
  const auto state = side.feed(sent, answer);
  CHECK(state != HandshakeState::done);
  CHECK(state != HandshakeState::in_progress);
}

void check_frames_pass(TwoSides& sides) {
  auto agent = sides.agent.keys();
  auto coordinator = sides.coordinator.keys();
  std::string bytes;
  FrameOpener::Frame frame;
  REQUIRE(agent.sealer.seal(1, "from the agent", bytes));
  REQUIRE(coordinator.opener.next(bytes, frame) == FrameOpener::Status::whole);
  CHECK(frame.payload == "from the agent");
  // A reflected frame is rejected.
  CHECK((agent.opener.next(bytes, frame) == FrameOpener::Status::wrong_tag || sides.to_agent.size() == hello_size));
  bytes.clear();
  REQUIRE(coordinator.sealer.seal(65, "from the coordinator", bytes));
  auto fresh = sides.agent.keys();
  REQUIRE(fresh.opener.next(bytes, frame) == FrameOpener::Status::whole);
  CHECK(frame.payload == "from the coordinator");
}

}  // namespace

TEST_CASE("both sides agree, however the bytes are cut") {
  for (const HmacKey* used : {&secret, static_cast<const HmacKey*>(nullptr)}) {
    for (std::size_t step = 1; step <= 49; ++step) {
      TwoSides sides(used, used);
      sides.run(step);
      CAPTURE(step);
      REQUIRE(sides.agent.state() == HandshakeState::done);
      REQUIRE(sides.coordinator.state() == HandshakeState::done);
      check_frames_pass(sides);
    }
  }
}

TEST_CASE("the handshake has the layout of PROTOCOL.md") {
  TwoSides sides(&secret, &secret);
  sides.run();
  const auto hello = [](const char* numbers, std::uint8_t fill) {
    return "DDRUN-RV" + unhex(numbers) + std::string(32, static_cast<char>(fill));
  };
  const auto first = hello("0300 0100 00000000", 1);
  const auto second = hello("0300 0000 00000000", 2);
  const HmacKey key(secret.sign({"ddrun rendezvous 1", first, second}));
  CHECK(sides.to_coordinator == first + std::string(view(key.sign({"ddrun agent"}))));
  CHECK(sides.to_agent == second + std::string(view(key.sign({"ddrun coordinator"}))));

  auto sealer = sides.agent.keys().sealer;
  std::string bytes, expected;
  REQUIRE(sealer.seal(8, "abcd", bytes));
  REQUIRE(FrameSealer(HmacKey(key.sign({"agent to coordinator"}))).seal(8, "abcd", expected));
  CHECK(bytes == expected);
}

TEST_CASE("bytes after the handshake are left for the frame decoder") {
  TwoSides sides(nullptr, nullptr);
  std::string_view bytes = sides.to_coordinator += "frames";
  CHECK(sides.coordinator.feed(bytes, sides.to_agent) == HandshakeState::done);
  CHECK(bytes == "frames");
  CHECK(sides.coordinator.feed(bytes, sides.to_agent) == HandshakeState::done);
  CHECK(bytes == "frames");
}

TEST_CASE("another secret is refused, without a proof of the coordinator to the agent") {
  TwoSides sides(&secret, &other_secret);
  sides.run();
  CHECK(sides.coordinator.state() == HandshakeState::wrong_secret);
  CHECK(sides.agent.state() == HandshakeState::rejected);
  CHECK(sides.to_agent.substr(hello_size) == std::string(32, '\0'));
}

TEST_CASE("a false coordinator is detected") {
  TwoSides sides(&secret, &secret);
  std::string out = sides.to_coordinator;
  std::string_view bytes;
  const auto hello = "DDRUN-RV" + unhex("0300 0000 00000000") + std::string(32, 'n');
  bytes = hello;
  REQUIRE(sides.agent.feed(bytes, out) == HandshakeState::in_progress);
  SECTION("with a proof of its own making") {
    const std::string proof(32, 'p');
    bytes = proof;
    CHECK(sides.agent.feed(bytes, out) == HandshakeState::wrong_secret);
  }
  SECTION("by sending back what the agent proved") {
    const auto proof = out.substr(hello_size);
    bytes = proof;
    CHECK(sides.agent.feed(bytes, out) == HandshakeState::wrong_secret);
  }
}

TEST_CASE("a secret on one side only is reported") {
  {
    TwoSides sides(&secret, nullptr);
    sides.run();
    CHECK(sides.agent.state() == HandshakeState::needs_no_secret);
    CHECK(sides.coordinator.state() == HandshakeState::needs_no_secret);
  }
  {
    TwoSides sides(nullptr, &secret);
    sides.run();
    CHECK(sides.agent.state() == HandshakeState::needs_secret);
    CHECK(sides.coordinator.state() == HandshakeState::needs_secret);
  }
}

TEST_CASE("another version of the protocol is named on both sides") {
  TwoSides sides(&secret, &secret);
  sides.to_coordinator[8] = 7;
  sides.run();
  CHECK(sides.coordinator.state() == HandshakeState::other_version);
  CHECK(sides.coordinator.peer_version() == 7);
  CHECK(sides.agent.state() == HandshakeState::other_version);
  CHECK(sides.agent.peer_version() == protocol_version);
  CHECK(sides.to_agent.size() == hello_size);
}

TEST_CASE("a coordinator at its limit replies busy") {
  AgentHandshake agent(&secret, nonce(1));
  const auto reply = CoordinatorHandshake::busy_reply();
  std::string_view bytes = reply;
  std::string out;
  CHECK(agent.feed(bytes, out) == HandshakeState::busy);
  CHECK(out.empty());
}

TEST_CASE("another protocol is detected by its first wrong byte") {
  for (const auto& sent : {std::string("GET / HTTP/1.1\r\n"), std::string("\x16\x03\x01"), std::string("DDRUN-RW"),
                           std::string(1, '\0'), std::string("X")}) {
    CAPTURE(sent);
    CoordinatorHandshake coordinator(&secret, nonce(2));
    std::string_view bytes = sent;
    std::string out;
    CHECK(coordinator.feed(bytes, out) == HandshakeState::foreign_protocol);
    CHECK(out.empty());
    AgentHandshake agent(&secret, nonce(1));
    bytes = sent;
    CHECK(agent.feed(bytes, out) == HandshakeState::foreign_protocol);
    CHECK(out.empty());
  }
  CoordinatorHandshake coordinator(&secret, nonce(2));
  std::string out;
  for (const char c : std::string("DDRUN-R")) {
    std::string_view byte(&c, 1);
    REQUIRE(coordinator.feed(byte, out) == HandshakeState::in_progress);
  }
  std::string_view byte("!");
  CHECK(coordinator.feed(byte, out) == HandshakeState::foreign_protocol);
}

TEST_CASE("a flipped bit anywhere in the handshake ends it") {
  TwoSides good(&secret, &secret);
  good.run();
  for (std::size_t bit = 0; bit < good.to_coordinator.size() * 8; ++bit) {
    auto sent = good.to_coordinator;
    sent[bit / 8] = static_cast<char>(sent[bit / 8] ^ (1 << bit % 8));
    CAPTURE(bit);
    CoordinatorHandshake coordinator(&secret, nonce(2));
    check_refused(coordinator, sent);
  }
  for (std::size_t bit = 0; bit < good.to_agent.size() * 8; ++bit) {
    auto sent = good.to_agent;
    sent[bit / 8] = static_cast<char>(sent[bit / 8] ^ (1 << bit % 8));
    CAPTURE(bit);
    AgentHandshake agent(&secret, nonce(1));
    check_refused(agent, sent);
  }
}

TEST_CASE("a recorded session is of no use to either side") {
  TwoSides recorded(&secret, &secret);
  recorded.run();
  REQUIRE(recorded.agent.state() == HandshakeState::done);
  {
    // To a coordinator, with new random bytes.
    CoordinatorHandshake coordinator(&secret, nonce(3));
    std::string_view bytes = recorded.to_coordinator;
    std::string out;
    CHECK(coordinator.feed(bytes, out) == HandshakeState::wrong_secret);
    CHECK(out.substr(hello_size) == std::string(32, '\0'));
  }
  {
    AgentHandshake agent(&secret, nonce(4));
    std::string_view bytes = recorded.to_agent;
    std::string out;
    CHECK(agent.feed(bytes, out) == HandshakeState::wrong_secret);
  }
  // Frames of the session: another session has other keys.
  TwoSides later(&secret, &secret, 4, 3);
  later.run();
  REQUIRE(later.coordinator.state() == HandshakeState::done);
  std::string bytes;
  REQUIRE(recorded.agent.keys().sealer.seal(1, "join", bytes));
  FrameOpener::Frame frame;
  CHECK(later.coordinator.keys().opener.next(bytes, frame) == FrameOpener::Status::wrong_tag);
}

TEST_CASE("random bytes are not the same twice") { CHECK(random_nonce() != random_nonce()); }
