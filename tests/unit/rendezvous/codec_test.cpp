#include "codec.hpp"

#include <map>
#include <sstream>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/rendezvous_messages.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;

namespace {

Result<FromAgent> decode(const FromAgent& /*kind*/, std::uint8_t type, std::string_view payload) {
  return decode_from_agent(type, payload);
}
Result<FromCoordinator> decode(const FromCoordinator& /*kind*/, std::uint8_t type, std::string_view payload) {
  return decode_from_coordinator(type, payload);
}

template <class Message>
void check_all_ways(const Message& message) {
  std::string payload = "left over";
  const auto type = encode(message, payload);
  CAPTURE(type_name(type), hex(payload));
  const auto same = decode(message, type, payload);
  REQUIRE(same);
  CHECK(*same == message);
  // A later version may append fields.
  const auto longer = decode(message, type, payload + "more");
  REQUIRE(longer);
  CHECK(*longer == message);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    const auto cut = decode(message, type, payload.substr(0, size));
    if (cut) FAIL("cut to " << size << " bytes it is read all the same");
    if (cut.error().code != Errc::protocol) FAIL("wrong kind of error");
  }
}

}  // namespace

TEST_CASE("every message comes out as it went in, and cut anywhere it is refused") {
  for (const auto& message : messages_of_agent()) check_all_ways(message);
  for (const auto& message : messages_of_coordinator()) check_all_ways(message);
}

TEST_CASE("messages have the layout of PROTOCOL.md") {
  std::string payload;
  CHECK(encode(FromAgent(Opened{7, 29500}), payload) == 2);
  CHECK(hex(payload) ==
        "0700000000000000"
        "3c73");
  CHECK(encode(FromAgent(Failed{1, 5, 1, 4711, true, 9, false, true, "oom"}), payload) == 3);
  CHECK(hex(payload) ==
        "0100000000000000"
        "05000000"
        "01000000"
        "67120000"
        "01"
        "09000000"
        "00"
        "01"
        "030000006f6f6d"
        "00"
        "00");
  CHECK(encode(FromAgent(Stopped{1, {"f", "b", true, false, true, 2, "k"}, "w"}), payload) == 5);
  CHECK(hex(payload) ==
        "0100000000000000"
        "0100000066"
        "0100000062"
        "010001"
        "0200000000000000"
        "010000006b"
        "0100000077"
        "00000000"
        "00000000");
  CHECK(encode(FromAgent(Leave{LeaveKind::time_is_up, 124, "t"}), payload) == 6);
  CHECK(hex(payload) ==
        "02"
        "7c000000"
        "0100000074");
  CHECK(encode(FromAgent(Pong{3, 4, 5}), payload) == 7);
  CHECK(hex(payload) ==
        "03000000"
        "04000000"
        "0500000000000000");
  CHECK(encode(FromAgent(Resume{"1.a", 5}), payload) == 8);
  CHECK(hex(payload) ==
        "03000000312e61"
        "0500000000000000");
  CHECK(encode(FromCoordinator(Ping{3, 5, 7}), payload) == 73);
  CHECK(hex(payload) ==
        "03000000"
        "0500000000000000"
        "07000000");
  CHECK(encode(FromCoordinator(Resumed{5}), payload) == 74);
  CHECK(encode(FromAgent(rendezvous::Exchange{1, 2, "ab"}), payload) == 10);
  CHECK(hex(payload) ==
        "0100000000000000"
        "02000000"
        "020000006162");
  CHECK(encode(FromCoordinator(Exchanged{1, 2, 3, {"ab", ""}, true}), payload) == 76);
  CHECK(hex(payload) ==
        "0100000000000000"
        "02000000"
        "03000000"
        "02000000"
        "020000006162"
        "00000000"
        "01");
  CHECK(encode(FromCoordinator(Log{LogKind::report, "a", 1, 2, "h"}), payload) == 72);
  CHECK(hex(payload) ==
        "02"
        "0100000061"
        "0100000000000000"
        "02000000"
        "0100000068");
  Join join;
  join.version = "v";
  join.settings = {{"k", "w"}};
  join.own_addresses = {"::2"};
  CHECK(encode(FromAgent(join), payload) == 1);
  CHECK(hex(payload) ==
        "0100000076"
        "00000000"
        "00000000"
        "00000000"
        "ffffffff"
        "01000000"
        "0700000064656661756c74"
        "00000000"
        "01000000"
        "010000006b"
        "0100000077"
        "01000000"
        "030000003a3a32"
        "0000000000000000"
        "0000000000000000"
        "ffffffff"
        "00000000"
        "00000000"
        "00"
        "00"
        "00000000");
  CHECK(encode(FromCoordinator(Stop{2, true, "no", 15, 3, true}), payload) == 70);
  CHECK(hex(payload) ==
        "0200000000000000"
        "01"
        "020000006e6f"
        "0f000000"
        "03000000"
        "01");
  CHECK(encode(FromAgent(Ask{1, 2, "o", true}), payload) == 12);
  CHECK(hex(payload) ==
        "01000000"
        "02"
        "010000006f"
        "01");
  CHECK(encode(FromAgent(Stacks{1, true, "p"}), payload) == 13);
  CHECK(hex(payload) ==
        "01000000"
        "01"
        "0100000070");
  CHECK(encode(FromCoordinator(Look{1, 2, "o"}), payload) == 78);
  CHECK(hex(payload) ==
        "01000000"
        "02"
        "010000006f");
  CHECK(encode(FromCoordinator(Page{1, 2, "h", true, "p", {"m"}}), payload) == 79);
  CHECK(hex(payload) ==
        "01000000"
        "02000000"
        "0100000068"
        "01"
        "0100000070"
        "01000000"
        "010000006d");
  Start start;
  start.round = 1;
  start.ranks = {.run_id = "",
                 .restart_count = 2,
                 .max_restarts = 3,
                 .node_rank = 4,
                 .node_count = 5,
                 .base_rank = 6,
                 .local_world_size = 7,
                 .world_size = 8,
                 .role_base_rank = 9,
                 .role_world_size = 10,
                 .master_addr = "a",
                 .master_port = 11,
                 .host = "h",
                 .hosts = "i"};
  CHECK(encode(FromCoordinator(start), payload) == 69);
  CHECK(hex(payload) ==
        "0100000000000000"
        "02000000030000000400000005000000060000000700000008000000090000000a000000"
        "0100000061"
        "0b00"
        "0000000000000000"
        "00000000"
        "0100000068"
        "0100000069");
}

TEST_CASE("values that mean nothing are refused") {
  const auto agent = [](std::uint8_t type, const char* bytes) { return bool(decode_from_agent(type, unhex(bytes))); };
  const auto coordinator = [](std::uint8_t type, const char* bytes) {
    return bool(decode_from_coordinator(type, unhex(bytes)));
  };
  CHECK(agent(6, "03 7d000000 00000000"));
  CHECK_FALSE(agent(6, "04 7d000000 00000000"));  // no such kind of LEAVE
  CHECK(coordinator(66, "01 00000000"));
  CHECK_FALSE(coordinator(66, "7f 00000000"));
  CHECK(coordinator(70, "0100000000000000 01 00000000 00000000 00000000 00"));
  CHECK_FALSE(coordinator(70, "0100000000000000 02 00000000 00000000 00000000 00"));  // neither true nor false
}

TEST_CASE("a message of an unknown type is told from one that cannot be read") {
  for (const int type : {0, 11, 73, 255})
    CHECK(decode_from_agent(std::uint8_t(type), "").error().code == Errc::unsupported);
  for (const int type : {0, 8, 77, 255})
    CHECK(decode_from_coordinator(std::uint8_t(type), "").error().code == Errc::unsupported);
}

TEST_CASE("PROTOCOL.md hands each type out once, and has those of today") {
  std::map<int, std::string> types;
  std::istringstream page(read_file(DDRUN_SOURCE_DIR "/lib/rendezvous/PROTOCOL.md"));
  for (std::string line; std::getline(page, line);) {
    std::istringstream row(line);
    int type = 0;
    std::string bar, name;
    if (!(row >> bar >> type >> bar >> name) || bar != "|") continue;
    CAPTURE(line);
    CHECK(types.try_emplace(type, name).second);
  }
  CHECK(types.size() == 30);
  for (int type = 0; type < 256; ++type) {
    const std::string name = type_name(static_cast<std::uint8_t>(type));
    CAPTURE(type);
    if (name != "?") CHECK(types[type] == name);
  }
}

TEST_CASE("lengths and counts are checked against the remaining bytes") {
  // A text of 4 GiB, a list of 4 billion texts, and one larger than the payload: nothing is allocated.
  CHECK_FALSE(decode_from_coordinator(72, unhex("00 ffffffff 61")));
  CHECK_FALSE(decode_from_coordinator(68, unhex("0100000000000000 00000000 ffffffff")));
  CHECK_FALSE(decode_from_coordinator(68, unhex("0100000000000000 00000000 02000000 00000000 000000")));
  CHECK(decode_from_coordinator(68, unhex("0100000000000000 00000000 02000000 00000000 00000000")));
}
