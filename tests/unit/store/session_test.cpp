#include "session.hpp"

#include <memory>
#include <set>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun::store;
using namespace ddrun::test;

namespace {

constexpr std::size_t enough = 1024 * 1024;

/// A client's session without sockets.
class Client final : public Waiter {
 public:
  explicit Client(ServerState& state) : state_(state), session_(state, *this) {}
  ~Client() { state_.space.leave(*this); }

  /// Passes the bytes to the session in one piece, behind those that it has not consumed.
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
  void on_keys_exist() override { received.push_back(0); }
  void on_key_changed(KeyChange change, std::string_view key, std::string_view before, std::string_view now) override {
    append_change(received, change, key, before, now);
  }

  ServerState& state_;
  Session session_;
  std::string pending_;
};

using Conversation = std::vector<Exchange>;

std::string all_sent(const Conversation& conversation) {
  std::string bytes;
  for (const auto& exchange : conversation) bytes += exchange.sent;
  return bytes;
}

std::string all_answers(const Conversation& conversation) {
  std::string bytes;
  for (const auto& exchange : conversation) bytes += exchange.answer;
  return bytes;
}

const Conversation& either_dialect() {
  return GENERATE(as<bool>{}, false, true) ? captured_old_session() : captured_session();
}

}  // namespace

TEST_CASE("captured exchanges are answered byte for byte") {
  const auto& conversation = either_dialect();
  ServerState state;
  Client client(state);
  for (const auto& exchange : conversation) {
    CAPTURE(exchange.name);
    CHECK(hex(client.ask(exchange.sent)) == hex(exchange.answer));
  }
  CHECK_FALSE(client.closed);
}

TEST_CASE("a captured session cut anywhere has the same answers") {
  const auto& conversation = either_dialect();
  const auto sent = all_sent(conversation);
  for (std::size_t cut = 0; cut <= sent.size(); ++cut) {
    ServerState state;
    Client client(state);
    client.send(std::string_view(sent).substr(0, cut));
    client.send(std::string_view(sent).substr(cut));
    if (client.received != all_answers(conversation)) FAIL("cut at " << cut);
  }
}

TEST_CASE("the keys are listed unchanged, in any order") {
  ServerState state;
  Client client(state);
  client.send(greeting());
  CHECK(client.ask(unhex("11")) == number(0));
  for (const auto* key : {"/m2", "/m1", "/p", "init/", ""}) client.send(unhex("01") + field(key) + field("v"));
  client.send(unhex("0e") + field("/queue") + field("element"));
  const auto answer = client.ask(unhex("11"));
  REQUIRE(answer.substr(0, 8) == number(5));
  std::multiset<std::string> keys;
  std::size_t at = 8;
  while (at < answer.size()) {
    const auto size = wire::load<std::uint64_t>(answer.data() + at);
    keys.insert(answer.substr(at + 8, size));
    at += 8 + size;
  }
  CHECK(keys == std::multiset<std::string>{"/m2", "/m1", "/p", "init/", ""});
}

TEST_CASE("a barrier ends for all when the last member arrives, and is open from then on") {
  ServerState state;
  Client one(state), two(state), three(state), late(state);
  const auto arrive = unhex("12") + field("/b") + number(3);
  for (auto* client : {&one, &two, &three, &late}) client->send(greeting());
  CHECK(one.ask(arrive).empty());
  CHECK(two.ask(arrive).empty());
  CHECK(one.received.empty());
  CHECK(hex(three.ask(arrive)) == "00");
  CHECK(hex(one.ask("")) == "00");
  CHECK(hex(two.ask("")) == "00");
  CHECK(hex(late.ask(arrive)) == "00");
  CHECK(*state.space.find("/b") == "4");
}

TEST_CASE("a member that cancels its wait at a barrier stays counted") {
  ServerState state;
  Client one(state), two(state);
  const auto arrive = unhex("12") + field("/b") + number(2);
  CHECK(hex(one.ask(greeting() + arrive + unhex("0c"))) == "01");
  CHECK(hex(two.ask(greeting() + arrive)) == "00");
  CHECK(one.received.empty());
}

TEST_CASE("a barrier at a text, or before the end of a wait, closes the connection") {
  ServerState state;
  state.space.set("/t", "text");
  Client client(state);
  client.send(greeting());
  SECTION("text") { client.send(unhex("12") + field("/t") + number(2)); }
  SECTION("wait") {
    client.send(unhex("06") + number(1) + field("/x"));
    client.send(unhex("12") + field("/b") + number(2));
  }
  CHECK(client.closed);
}

TEST_CASE("queue elements wake waiters in the order of their waits") {
  ServerState state;
  Client first(state), second(state), producer(state);
  const auto wait = greeting() + unhex("06") + number(1) + field("/q");
  const auto pop = unhex("0f") + field("/q");
  CHECK(first.ask(wait).empty());
  CHECK(second.ask(wait).empty());
  producer.send(greeting() + unhex("0e") + field("/q") + field("one"));
  CHECK(hex(first.ask("")) == "00");
  CHECK(second.received.empty());
  producer.send(unhex("0e") + field("/q") + field("two"));
  CHECK(hex(second.ask("")) == "00");
  CHECK(first.ask(pop) == number(2) + field("one"));
  CHECK(second.ask(pop) == number(1) + field("two"));
}

TEST_CASE("an element that its consumer did not fetch wakes the next waiter") {
  ServerState state;
  auto first = std::make_unique<Client>(state);
  Client second(state), producer(state);
  const auto wait = greeting() + unhex("06") + number(1) + field("/q");
  CHECK(first->ask(wait).empty());
  CHECK(second.ask(wait).empty());
  producer.send(greeting() + unhex("0e") + field("/q") + field("one"));
  REQUIRE(hex(first->ask("")) == "00");
  SECTION("its connection ends") { first.reset(); }
  SECTION("it gave up just then") { CHECK(hex(first->ask(unhex("0c"))) == "01"); }
  CHECK(hex(second.ask("")) == "00");
}

TEST_CASE("a client that waits for more than a queue leaves its element to others") {
  ServerState state;
  Client both(state), only(state), producer(state);
  CHECK(both.ask(greeting() + unhex("06") + number(2) + field("/q") + field("/k")).empty());
  CHECK(only.ask(greeting() + unhex("06") + number(1) + field("/q")).empty());
  producer.send(greeting() + unhex("0e") + field("/q") + field("one"));
  CHECK(both.received.empty());
  CHECK(hex(only.ask("")) == "00");
  producer.send(unhex("01") + field("/k") + field("v"));
  CHECK(hex(both.ask("")) == "00");
}

TEST_CASE("a check and a wait accept a queue that is not empty") {
  ServerState state;
  Client client(state);
  client.send(greeting() + unhex("0e") + field("/q") + field("one"));
  CHECK(hex(client.ask(unhex("05") + number(1) + field("/q"))) == "00");
  CHECK(hex(client.ask(unhex("06") + number(1) + field("/q"))) == "00");
  CHECK(hex(client.ask(unhex("08") + field("/q"))) == hex(number(0)));  // deleting keys does not touch it
  client.ask(unhex("0f") + field("/q"));
  CHECK(hex(client.ask(unhex("05") + number(1) + field("/q"))) == "01");
}

TEST_CASE("a client of the old dialect is notified of each change of a watched key") {
  ServerState state;
  Client watcher(state), other(state);
  CHECK(hex(watcher.ask(unhex("07") + field("/k"))) == "03");
  const auto news = [&](char change, std::string_view before, std::string_view now) {
    return std::string(1, change) + field("/k") + field(before) + field(now);
  };
  other.send(unhex("00") + field("/k") + field("1"));
  CHECK(watcher.ask("") == news(1, "", "1"));
  other.ask(unhex("03") + field("/k") + number(4));
  CHECK(watcher.ask("") == news(0, "1", "5"));
  other.ask(unhex("01") + field("/k") + field("5") + field("x"));
  CHECK(watcher.ask("") == news(0, "5", "x"));
  other.ask(unhex("00") + field("/another") + field("y"));
  other.ask(unhex("01") + field("/k") + field("no match") + field("z"));
  CHECK(watcher.received.empty());
  other.ask(unhex("08") + field("/k"));
  CHECK(watcher.ask("") == news(2, "x", ""));

  // Also by a client of the modern dialect.
  Client modern(state);
  modern.send(greeting() + unhex("09") + field("/k") + field("a") + unhex("09") + field("/k") + field("b"));
  CHECK(watcher.ask("") == news(1, "", "a") + news(0, "a", "ab"));
}

TEST_CASE("another request of a client of the old dialect cancels its wait") {
  ServerState state;
  Client client(state);
  CHECK(client.ask(unhex("05") + number(1) + field("/k")).empty());
  CHECK(hex(client.ask(unhex("04") + number(1) + field("/k"))) == "01");
  state.space.set("/k", "v");
  CHECK(client.received.empty());
}

TEST_CASE("the dialects have different opcodes") {
  ServerState state;
  Client old(state), modern(state);
  CHECK(old.ask(unhex("06")) == number(0));
  old.send(unhex("09"));  // APPEND of the modern dialect
  CHECK(old.closed);
  modern.send(greeting());
  modern.send(unhex("13"));
  CHECK(modern.closed);
}

TEST_CASE("a request beyond the memory limit is refused, and other clients go on") {
  ServerState state;
  state.memory_limit = 10'000;
  Client greedy(state), modest(state);
  const auto set = [](std::string_view key, std::size_t size) {
    return unhex("01") + field(key) + field(std::string(size, 'v'));
  };
  greedy.send(greeting() + set("/a", 8000));
  CHECK_FALSE(greedy.closed);
  modest.send(greeting() + set("/b", 100));
  SECTION("set") { greedy.send(set("/c", 8000)); }
  SECTION("append") { greedy.send(unhex("09") + field("/a") + field(std::string(4000, 'v'))); }
  SECTION("push") { greedy.send(unhex("0e") + field("/q") + field(std::string(4000, 'v'))); }
  SECTION("compare_set") { greedy.send(unhex("02") + field("/c") + field("") + field(std::string(4000, 'v'))); }
  SECTION("multi_set") { greedy.send(unhex("0b") + number(1) + field("/c") + field(std::string(4000, 'v'))); }
  SECTION("wait") {
    std::string request = unhex("06") + number(100);
    for (int i = 0; i < 100; ++i) request += field("/k" + std::to_string(i));
    greedy.send(request);
  }
  SECTION("many small ones") {
    for (int i = 0; i < 100 && !greedy.closed; ++i)
      greedy.send(unhex("04") + field("/n" + std::to_string(i)) + number(1));
  }
  CHECK(greedy.closed);
  CHECK(state.refusal_reason.find("no room") != std::string::npos);
  CHECK(state.memory() <= state.memory_limit);
  CHECK(hex(modest.ask(unhex("05") + number(1) + field("/b"))) == "00");
}

TEST_CASE("a barrier needs memory for its counter and its waiters") {
  ServerState state;
  Client client(state);
  client.send(greeting());
  const auto arrive = unhex("12") + field(std::string(wire::max_key, 'k')) + number(2);
  SECTION("too little") {
    state.memory_limit = 2 * wire::max_key;
    client.send(arrive);
    CHECK(client.closed);
  }
  SECTION("enough") {
    state.memory_limit = 2 * wire::max_key + 1024;
    client.send(arrive);
    CHECK_FALSE(client.closed);
    CHECK(state.memory() > 2 * wire::max_key);
  }
  CHECK(state.memory() <= state.memory_limit);
}

TEST_CASE("the memory count is 0 when all clients and keys are gone") {
  ServerState state;
  {
    Client client(state), other(state);
    client.send(greeting());
    for (int i = 0; i < 20; ++i) client.send(unhex("0e") + field("/q") + field("element"));
    for (int i = 0; i < 20; ++i) client.ask(unhex("0f") + field("/q"));
    client.send(unhex("01") + field("/a") + field("v") + unhex("09") + field("/a") + field("w"));
    client.ask(unhex("08") + field("/a"));
    client.ask(unhex("06") + number(2) + field("/x") + field("/y") + unhex("0c"));
    client.ask(unhex("06") + number(2) + field("/x") + field("/y"));
    other.ask(unhex("07") + field("/w"));
    other.ask(unhex("05") + number(1) + field("/z"));
    CHECK(state.memory() > 0);
    state.space.set("/left", "over");
    state.space.push("/left", "over");
  }
  state.space.clear();
  CHECK(state.memory() == 0);
}

TEST_CASE("a request takes effect with its last byte and not before") {
  ServerState state;
  Client client(state);
  const auto request = unhex(
      "0b 0200000000000000 0100000000000000 61 0100000000000000 78 "
      "0100000000000000 62 0100000000000000 79");
  client.send(greeting());
  for (std::size_t sent = 0; sent < request.size(); ++sent) {
    REQUIRE(state.space.size() == 0);
    client.send(std::string_view(request).substr(sent, 1));
  }
  CHECK(state.space.size() == 2);
}

TEST_CASE("a connection that begins like neither dialect is closed without a reason for the log") {
  ServerState state;
  Client client(state);
  SECTION("a text from a port scanner") { client.send("GET / HTTP/1.0\r\n\r\n"); }
  SECTION("an opcode that the old dialect lacks") { client.send(unhex("0d a9340000")); }
  SECTION("a length beyond the limits") { client.send(unhex("03 0000130ee0000000")); }
  SECTION("almost the greeting, a SET of the old dialect then") { client.send(unhex("00 cef7853d 00000000")); }
  CHECK(client.closed);
  CHECK(client.received.empty());
  CHECK(state.refusal_reason.empty());
  CHECK(state.refused == 1);
}

TEST_CASE("a second greeting ends the session") {
  ServerState state;
  Client client(state);
  client.send(greeting() + greeting());
  CHECK(client.closed);
}

TEST_CASE("the refusal names the request that exceeds a limit") {
  ServerState state;
  Client client(state);
  client.send(greeting() + unhex("0d a9340000"));
  std::string expected;
  SECTION("key") {
    client.send(unhex("03") + number(8193));
    expected = "8192";
  }
  SECTION("value") {
    client.send(unhex("01") + field("/big") + number(8 * 1024 * 1024 + 1));
    expected = "SET of key /big with a value of more than 8388608";
  }
  SECTION("keys") {
    client.send(unhex("05") + number(131073));
    expected = "131072";
  }
  SECTION("sum") {
    client.send(unhex("01") + field("/t") + field("text") + unhex("04") + field("/t") + number(1));
    expected = "ADD of key /t, whose value is not a number";
  }
  CHECK(client.closed);
  CHECK(state.refusal_reason.find(expected) != std::string::npos);
}

TEST_CASE("an unknown opcode closes the connection after earlier requests are answered") {
  ServerState state;
  Client client(state);
  CHECK(hex(client.ask(greeting() + unhex("07 ff 07"))) == "0000000000000000");
  CHECK(client.closed);
}

TEST_CASE("a missing key has an empty value") {
  ServerState state;
  state.space.set("b", "2");
  Client client(state);
  client.send(greeting());
  CHECK(client.ask(unhex("03") + field("nope")) == number(0));
  CHECK(client.ask(unhex("0a") + number(3) + field("a") + field("b") + field("c")) ==
        number(0) + field("2") + number(0));
  CHECK(client.ask(unhex("05") + number(0)) == std::string(1, '\0'));
  CHECK(client.ask(unhex("06") + number(0)) == std::string(1, '\0'));
}

TEST_CASE("a wait ends when another client sets the last key") {
  ServerState state;
  Client waiting(state);
  Client setting(state);
  setting.send(greeting());
  CHECK(waiting.ask(greeting() + unhex("06") + number(2) + field("x") + field("y")).empty());
  setting.send(unhex("01") + field("x") + field(""));
  CHECK(waiting.received.empty());
  setting.send(unhex("01") + field("y") + field(""));
  CHECK(hex(waiting.ask("")) == "00");

  // A cancel that was sent before the reply arrived.
  CHECK(hex(waiting.ask(unhex("0c"))) == "01");
  setting.send(unhex("08") + field("y") + unhex("01") + field("y") + field(""));
  CHECK(waiting.received.empty());
}

TEST_CASE("no answer to a wait comes after its cancel") {
  ServerState state;
  Client client(state);
  CHECK(hex(client.ask(greeting() + unhex("06") + number(1) + field("x") + unhex("0c"))) == "01");
  state.space.set("x", "");
  CHECK(client.received.empty());
  CHECK(hex(client.ask(unhex("0c"))) == "01");
}

TEST_CASE("a second wait beside the first closes the connection") {
  ServerState state;
  Client client(state);
  client.send(greeting() + unhex("06") + number(1) + field("x"));
  client.send(unhex("06") + number(1) + field("y"));
  CHECK(client.closed);
}

TEST_CASE("replies pause at a full batch and continue there") {
  ServerState state;
  state.space.set("k", std::string(600, 'v'));
  Client waiter(state);
  Session session(state, waiter);
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

TEST_CASE("a reply over the limit closes the connection before it is built") {
  ServerState state;
  state.space.set("big", std::string(8 * 1024 * 1024, 'v'));
  Client client(state);
  std::string request = greeting() + unhex("0a") + number(100);
  for (int i = 0; i < 100; ++i) request += field("big");
  client.send(request);
  CHECK(client.closed);
  CHECK(client.received.empty());
}
