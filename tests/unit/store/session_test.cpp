#include "session.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun::store;
using namespace ddrun::test;

namespace {

constexpr std::size_t enough = 1024 * 1024;

/// A server without sockets for one client.
class Client final : public Waiter {
 public:
  explicit Client(KeySpace& space) : space_(space), session_(space, *this) {}
  ~Client() { space_.cancel(*this); }

  /// The bytes reach the server in one piece, behind those that it could not use yet.
  void send(std::string_view bytes) {
    pending_ += bytes;
    for (bool more = true; more && !closed;) {
      const auto progress = session_.handle(pending_, received, enough);
      pending_.erase(0, progress.consumed);
      closed = progress.close;
      more = progress.paused;
    }
  }
  std::string ask(std::string_view bytes) {
    send(bytes);
    return std::exchange(received, {});
  }

  std::string received;
  bool closed = false;

 private:
  void keys_exist() override { received.push_back(0); }

  KeySpace& space_;
  Session session_;
  std::string pending_;
};

std::string all_sent() {
  std::string bytes;
  for (const auto& exchange : captured_session()) bytes += exchange.sent;
  return bytes;
}

std::string all_answers() {
  std::string bytes;
  for (const auto& exchange : captured_session()) bytes += exchange.answer;
  return bytes;
}

}  // namespace

TEST_CASE("captured exchanges are answered byte for byte") {
  KeySpace space;
  Client client(space);
  for (const auto& exchange : captured_session()) {
    CAPTURE(exchange.name);
    CHECK(hex(client.ask(exchange.sent)) == hex(exchange.answer));
  }
  CHECK_FALSE(client.closed);
}

TEST_CASE("a captured session in one piece has the same answers") {
  KeySpace space;
  Client client(space);
  CHECK(hex(client.ask(all_sent())) == hex(all_answers()));
}

TEST_CASE("a captured session cut anywhere has the same answers") {
  const auto sent = all_sent();
  for (std::size_t cut = 0; cut <= sent.size(); ++cut) {
    KeySpace space;
    Client client(space);
    client.send(std::string_view(sent).substr(0, cut));
    client.send(std::string_view(sent).substr(cut));
    if (client.received != all_answers()) FAIL("cut at " << cut);
  }
}

TEST_CASE("a captured session byte by byte has the same answers") {
  KeySpace space;
  Client client(space);
  for (const char byte : all_sent()) client.send({&byte, 1});
  CHECK(hex(client.received) == hex(all_answers()));
}

TEST_CASE("a request takes effect with its last byte and not before") {
  KeySpace space;
  Client client(space);
  const auto request = unhex(
      "0b 0200000000000000 0100000000000000 61 0100000000000000 78 "
      "0100000000000000 62 0100000000000000 79");
  client.send(greeting());
  for (std::size_t sent = 0; sent < request.size(); ++sent) {
    REQUIRE(space.size() == 0);
    client.send(std::string_view(request).substr(sent, 1));
  }
  CHECK(space.size() == 2);
}

TEST_CASE("only the greeting opens a session") {
  KeySpace space;
  Client client(space);
  SECTION("another opcode first") { client.send(unhex("07")); }
  SECTION("ping first") { client.send(unhex("0d a9340000")); }
  SECTION("text from a port scanner") { client.send("GET / HTTP/1.0\r\n\r\n"); }
  SECTION("wrong magic") { client.send(unhex("00 cef7853d")); }
  SECTION("greeting twice") { client.send(greeting() + greeting()); }
  CHECK(client.closed);
  CHECK(client.received.empty());
  CHECK(space.size() == 0);
}

TEST_CASE("half a greeting is waited for") {
  KeySpace space;
  Client client(space);
  for (const char byte : greeting()) client.send({&byte, 1});
  CHECK_FALSE(client.closed);
  CHECK(hex(client.ask(unhex("07"))) == "0000000000000000");
}

TEST_CASE("an unknown opcode closes after what came before it was answered") {
  KeySpace space;
  Client client(space);
  CHECK(hex(client.ask(greeting() + unhex("07 ff 07"))) == "0000000000000000");
  CHECK(client.closed);
}

TEST_CASE("adding to a text closes the connection and leaves the value") {
  KeySpace space;
  space.set("t", "text");
  Client client(space);
  client.send(greeting() + unhex("04") + field("t") + number(1));
  CHECK(client.closed);
  CHECK(*space.find("t") == "text");
}

TEST_CASE("a missing key has an empty value") {
  KeySpace space;
  space.set("b", "2");
  Client client(space);
  client.send(greeting());
  CHECK(client.ask(unhex("03") + field("nope")) == number(0));
  CHECK(client.ask(unhex("0a") + number(3) + field("a") + field("b") + field("c")) ==
        number(0) + field("2") + number(0));
  CHECK(client.ask(unhex("05") + number(0)) == std::string(1, '\0'));
  CHECK(client.ask(unhex("06") + number(0)) == std::string(1, '\0'));
}

TEST_CASE("a wait ends when another client sets the last key") {
  KeySpace space;
  Client waiting(space);
  Client setting(space);
  setting.send(greeting());
  CHECK(waiting.ask(greeting() + unhex("06") + number(2) + field("x") + field("y")).empty());
  setting.send(unhex("01") + field("x") + field(""));
  CHECK(waiting.received.empty());
  setting.send(unhex("01") + field("y") + field(""));
  CHECK(hex(waiting.ask("")) == "00");

  // The cancel that crossed it on its way.
  CHECK(hex(waiting.ask(unhex("0c"))) == "01");
  setting.send(unhex("08") + field("y") + unhex("01") + field("y") + field(""));
  CHECK(waiting.received.empty());
}

TEST_CASE("no answer to a wait comes after its cancel") {
  KeySpace space;
  Client client(space);
  CHECK(hex(client.ask(greeting() + unhex("06") + number(1) + field("x") + unhex("0c"))) == "01");
  space.set("x", "");
  CHECK(client.received.empty());
  CHECK(hex(client.ask(unhex("0c"))) == "01");
}

TEST_CASE("a second wait beside the first closes the connection") {
  KeySpace space;
  Client client(space);
  client.send(greeting() + unhex("06") + number(1) + field("x"));
  client.send(unhex("06") + number(1) + field("y"));
  CHECK(client.closed);
}

TEST_CASE("replies stop at a full batch and go on where they stopped") {
  KeySpace space;
  space.set("k", std::string(600, 'v'));
  Client waiter(space);
  Session session(space, waiter);
  std::string input = greeting();
  for (int i = 0; i < 5; ++i) input += unhex("03") + field("k");
  std::string replies;
  auto progress = session.handle(input, replies, 1000);
  CHECK(progress.paused);
  CHECK(replies.size() == 2 * 608);
  input.erase(0, progress.consumed);
  progress = session.handle(input, replies, 100'000);
  CHECK_FALSE(progress.paused);
  CHECK(replies.size() == 5 * 608);
}

TEST_CASE("a reply over the bound closes the connection before it is made") {
  KeySpace space;
  space.set("big", std::string(8 * 1024 * 1024, 'v'));
  Client client(space);
  std::string request = greeting() + unhex("0a") + number(100);
  for (int i = 0; i < 100; ++i) request += field("big");
  client.send(request);
  CHECK(client.closed);
  CHECK(client.received.empty());
}
