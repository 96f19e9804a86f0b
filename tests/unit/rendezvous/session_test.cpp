#include "session.hpp"

#include "codec.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using Status = FrameOpener::Status;

namespace {

constexpr std::uint8_t join_type = 1, kept = 2, pong_type = 7, resume_type = 8;
using Texts = std::vector<std::string>;

/// Two ends and the connection between them.
struct Ends {
  Session agent, coordinator;

  Ends() { connect(coordinator); }
  void connect(Session& to) {
    const HmacKey one("to the coordinator"), other("to the agent");
    agent.connect({FrameSealer(one), FrameOpener(other)});
    to.connect({FrameSealer(other), FrameOpener(one)});
  }
};

/// Moves the output of one end to the other one in pieces; returns the payloads.
Texts carry(Session& from, Session& to) {
  Texts payloads;
  while (!from.unsent().empty()) {
    const auto bytes = from.unsent().substr(0, 20);
    to.receive(bytes);
    from.sent(bytes.size());
    for (FrameOpener::Frame frame; to.next(frame) == Status::whole;) payloads.emplace_back(frame.payload);
  }
  return payloads;
}

}  // namespace

TEST_CASE("a session keeps messages until both sides are in it, and then until they are confirmed") {
  Ends ends;
  ends.agent.send(99, "early");  // of an unknown type
  ends.agent.send(join_type, "join");
  CHECK(carry(ends.agent, ends.coordinator) == Texts{"join"});
  CHECK(ends.coordinator.received() == 0);  // JOIN does not count
  ends.agent.open();
  ends.agent.send(kept, std::string(5000, 'x'));
  CHECK(carry(ends.agent, ends.coordinator) == Texts{"early", std::string(5000, 'x')});
  CHECK_FALSE(ends.coordinator.has_partial_input());
  CHECK(ends.agent.bytes_kept() == 5005);
  CHECK_FALSE(ends.agent.confirm(3));
  CHECK(ends.agent.confirm(ends.coordinator.received()));
  CHECK_FALSE(ends.agent.confirm(1));
  CHECK(ends.agent.bytes_kept() == 0);
  // Of a coordinator that has refused this agent, and does not count.
  ends.coordinator.open();
  ends.coordinator.send(66, "refused");
  CHECK(carry(ends.coordinator, ends.agent) == Texts{"refused"});
  CHECK(ends.agent.received() == 1);
  ends.agent.reset_received();
  CHECK(ends.agent.received() == 0);
}

TEST_CASE("a resumed session loses and repeats no message") {
  Ends ends;
  ends.agent.open();
  for (const char* text : {"1", "2", "3"}) ends.agent.send(kept, text);
  CHECK(carry(ends.agent, ends.coordinator) == Texts{"1", "2", "3"});
  CHECK(ends.agent.confirm(1));
  ends.agent.send(kept, "4");  // half of it comes, with the end of the connection
  ends.coordinator.receive(ends.agent.unsent().substr(0, 10));
  FrameOpener::Frame frame;
  CHECK(ends.coordinator.next(frame) == Status::incomplete);
  CHECK(ends.coordinator.has_partial_input());
  ends.agent.disconnect();
  ends.coordinator.disconnect();
  CHECK(ends.agent.unsent().empty());
  CHECK_FALSE(ends.coordinator.has_partial_input());
  ends.agent.send(kept, "5");
  ends.agent.send(pong_type, "dropped");
  Session newer;  // of the same peer, as the coordinator finds out by RESUME
  ends.connect(newer);
  ends.agent.send(resume_type, "resume");
  CHECK(ends.agent.confirm(ends.coordinator.received()));
  ends.agent.open();
  newer.receive(ends.agent.unsent());
  REQUIRE(newer.next(frame) == Status::whole);
  CHECK(frame.type == resume_type);
  ends.coordinator.take_connection(newer);
  CHECK(newer.next(frame) == Status::incomplete);
  for (const char* text : {"4", "5"}) {
    REQUIRE(ends.coordinator.next(frame) == Status::whole);
    CHECK(frame.payload == text);
  }
  CHECK(ends.coordinator.received() == 5);
}

TEST_CASE("a session detects changed and long frames") {
  Ends ends;
  FrameOpener::Frame frame;
  ends.agent.send(join_type, std::string(100, 'j'));
  std::string bytes(ends.agent.unsent());
  ends.coordinator.receive(bytes.substr(0, 50));
  CHECK(ends.coordinator.next(frame, 99) == Status::too_long);
  bytes.back() ^= 1;
  ends.coordinator.receive(bytes.substr(50));
  CHECK(ends.coordinator.next(frame) == Status::wrong_tag);
}

TEST_CASE("answers about the ranks have one part on its way at a time") {
  Ends ends;
  ends.agent.open();
  PacedAnswers answers;
  const auto send = [&] {
    Texts sent;
    while (const auto part = answers.next(ends.agent)) {
      ends.agent.send(kept, "part");
      sent.push_back(concat(part->number, ":", part->part.size(), part->last ? "" : "..."));
    }
    return sent;
  };
  ends.agent.send(kept, "another");
  CHECK(send().empty());
  answers.add({1, true, std::string(2 * max_answer_part + 5, 'x')});
  CHECK(send() == Texts{"1:32768..."});
  CHECK(ends.agent.confirm(1));
  CHECK(send().empty());
  CHECK(ends.agent.confirm(2));
  CHECK(send() == Texts{"1:32768..."});
  answers.add({2, true, ""});  // in place of the rest
  CHECK(send().empty());
  CHECK(ends.agent.confirm(3));
  CHECK(send() == Texts{"2:0"});
  CHECK(ends.agent.confirm(4));
  CHECK(send().empty());
  answers.add({3, true, std::string(max_answer_part, 'x')});
  CHECK(send() == Texts{"3:32768"});
}
