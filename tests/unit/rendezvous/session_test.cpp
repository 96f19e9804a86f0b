#include "session.hpp"

#include "codec.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using Status = FrameOpener::Status;

namespace {

constexpr std::uint8_t kept = 2;  // OPENED

/// Two ends and the connection between them.
struct Ends {
  Session agent, coordinator;

  Ends() { connect(); }
  void connect() {
    const HmacKey one("to the coordinator"), other("to the agent");
    agent.connect({FrameSealer(one), FrameOpener(other)});
    coordinator.connect({FrameSealer(other), FrameOpener(one)});
  }
  /// Moves the output of one end to the other one, in pieces.
  static void carry(Session& from, Session& to, std::size_t piece = 7) {
    while (!from.unsent().empty()) {
      const auto bytes = from.unsent().substr(0, piece);
      to.receive(bytes);
      from.sent(bytes.size());
    }
  }
  static std::vector<std::string> payloads(Session& of) {
    std::vector<std::string> all;
    for (FrameOpener::Frame frame; of.next(frame) == Status::whole;) all.emplace_back(frame.payload);
    return all;
  }
};
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a session keeps messages until both sides are in it") {
  Ends ends;
  ends.agent.send(kept, "early");
  ends.agent.send(join_type, "join");
  ends.carry(ends.agent, ends.coordinator);
  CHECK(ends.payloads(ends.coordinator) == Texts{"join"});
  CHECK(ends.coordinator.received() == 0);  // JOIN does not count
  ends.agent.open();
  ends.agent.send(kept, "late");
  ends.carry(ends.agent, ends.coordinator);
  CHECK(ends.payloads(ends.coordinator) == Texts{"early", "late"});
  CHECK(ends.coordinator.received() == 2);
}

TEST_CASE("a session gives frames as they become whole, and frees its buffers") {
  Ends ends;
  ends.agent.open();
  ends.agent.send(kept, std::string(5000, 'x'));
  const std::string bytes(ends.agent.unsent());
  FrameOpener::Frame frame;
  ends.coordinator.receive(std::string_view(bytes).substr(0, 5000));
  CHECK(ends.coordinator.next(frame) == Status::incomplete);
  CHECK(ends.coordinator.has_partial_input());
  ends.coordinator.receive(std::string_view(bytes).substr(5000));
  REQUIRE(ends.coordinator.next(frame) == Status::whole);
  CHECK(frame.payload == std::string(5000, 'x'));
  CHECK(ends.coordinator.next(frame) == Status::incomplete);
  CHECK_FALSE(ends.coordinator.has_partial_input());
  ends.agent.sent(bytes.size());
  CHECK(ends.agent.bytes_kept() == 5000);  // not confirmed
  CHECK(ends.agent.confirm(1));
  CHECK(ends.agent.bytes_kept() == 0);
}

TEST_CASE("a resumed session loses and repeats no message") {
  Ends ends;
  ends.agent.open();
  for (const char* text : {"1", "2", "3"}) ends.agent.send(kept, text);
  ends.carry(ends.agent, ends.coordinator);
  CHECK(ends.payloads(ends.coordinator) == Texts{"1", "2", "3"});
  CHECK(ends.agent.confirm(1));
  ends.agent.send(kept, "4");  // lost with the connection, half sent
  ends.coordinator.receive(ends.agent.unsent().substr(0, 10));
  ends.agent.disconnect();
  ends.coordinator.disconnect();
  CHECK(ends.agent.unsent().empty());
  FrameOpener::Frame frame;
  CHECK(ends.coordinator.next(frame) == Status::incomplete);
  ends.agent.send(kept, "5");
  ends.agent.send(pong_type, "dropped");
  ends.connect();
  ends.coordinator.disconnect();
  Session newer;  // of the same peer, as the coordinator finds out by RESUME
  newer.connect({FrameSealer(HmacKey("to the agent")), FrameOpener(HmacKey("to the coordinator"))});
  ends.agent.send(resume_type, "resume");
  CHECK(ends.agent.confirm(ends.coordinator.received()));
  ends.agent.open();
  ends.carry(ends.agent, newer, 1000);
  REQUIRE(newer.next(frame) == Status::whole);
  CHECK(frame.type == resume_type);
  ends.coordinator.take_connection(newer);
  CHECK(newer.next(frame) == Status::incomplete);
  CHECK(ends.payloads(ends.coordinator) == Texts{"4", "5"});
  CHECK(ends.coordinator.received() == 5);
}

TEST_CASE("a session detects impossible counts, foreign and long frames") {
  Ends ends;
  ends.agent.open();
  ends.agent.send(kept, "1");
  CHECK_FALSE(ends.agent.confirm(2));
  CHECK(ends.agent.confirm(1));
  CHECK_FALSE(ends.agent.confirm(0));
  FrameOpener::Frame frame;
  std::string bytes(ends.agent.unsent());
  bytes.back() ^= 1;
  ends.coordinator.receive(bytes);
  CHECK(ends.coordinator.next(frame) == Status::wrong_tag);
  CHECK(ends.coordinator.received() == 0);
  ends.connect();
  ends.agent.send(join_type, std::string(100, 'j'));
  ends.carry(ends.agent, ends.coordinator);
  CHECK(ends.coordinator.next(frame, 99) == Status::too_long);
}

TEST_CASE("messages of a coordinator that refused an agent do not count in its session") {
  Ends ends;
  ends.coordinator.open();
  ends.coordinator.send(66, "refused");
  ends.carry(ends.coordinator, ends.agent);
  CHECK(ends.payloads(ends.agent) == Texts{"refused"});
  ends.connect();
  ends.agent.reset_received();
  CHECK(ends.agent.received() == 0);
}
