#include "request_parser.hpp"

#include "ddrun/store/tcp_client.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun::store;
using namespace ddrun::test;
using Status = RequestParser::Status;

namespace {

Status parse(const std::string& input) {
  RequestParser parser;
  Request request;
  std::size_t consumed = 0;
  return parser.next(input, request, consumed);
}

std::string op(int code) { return std::string(1, static_cast<char>(code)); }

}  // namespace

TEST_CASE("unknown opcodes are refused at their first byte") {
  for (int code = 0x13; code < 256; ++code) {
    CAPTURE(code);
    CHECK(parse(op(code)) == Status::refused);
  }
}

TEST_CASE("a length over the limit is refused as soon as it is read") {
  const auto key = field("k");
  for (const int code : {0x01, 0x02, 0x03, 0x04, 0x08, 0x09}) {
    CAPTURE(code);
    CHECK(parse(op(code) + number(8192)) == Status::incomplete);
    CHECK(parse(op(code) + number(8193)) == Status::refused);
    CHECK(parse(op(code) + number(~0ULL)) == Status::refused);
  }
  constexpr std::uint64_t value = 8 * 1024 * 1024;
  for (const int code : {0x01, 0x02, 0x09}) {
    CAPTURE(code);
    CHECK(parse(op(code) + key + number(value)) == Status::incomplete);
    CHECK(parse(op(code) + key + number(value + 1)) == Status::refused);
  }
  CHECK(parse(op(0x02) + key + field("") + number(value + 1)) == Status::refused);
  for (const int code : {0x05, 0x06, 0x0a, 0x0b}) {
    CAPTURE(code);
    CHECK(parse(op(code) + number(131072)) == Status::incomplete);
    CHECK(parse(op(code) + number(131073)) == Status::refused);
    CHECK(parse(op(code) + number(1) + number(8193)) == Status::refused);
    CHECK(parse(op(code) + number(0)) == Status::complete);
  }
  CHECK(parse(op(0x0b) + number(1) + key + number(value)) == Status::incomplete);
  CHECK(parse(op(0x0b) + number(1) + key + number(value + 1)) == Status::refused);
}

TEST_CASE("values of a MULTI_SET may be longer than keys may") {
  const std::string input =
      op(0x0b) + number(2) + field("k1") + field(std::string(10'000, 'x')) + field("k2") + field("");
  RequestParser parser;
  Request request;
  std::size_t consumed = 0;
  REQUIRE(parser.next(input, request, consumed) == Status::complete);
  CHECK(consumed == input.size());
  REQUIRE(request.count == 2);
  ItemReader items(request.items);
  CHECK(items.next() == "k1");
  CHECK(items.next() == std::string(10'000, 'x'));
  CHECK(items.next() == "k2");
  CHECK(items.next().empty());
}

TEST_CASE("the parser says how many bytes it needs and never asks for too many") {
  for (const auto& exchange : captured_session()) {
    CAPTURE(exchange.name);
    RequestParser parser;
    Request request;
    std::size_t consumed = 0;
    std::size_t have = 0;
    for (int calls = 0;; ++calls) {
      REQUIRE(calls < 20);
      const auto status = parser.next(std::string_view(exchange.sent).substr(0, have), request, consumed);
      if (status == Status::complete) break;
      REQUIRE(status == Status::incomplete);
      REQUIRE(parser.needed() > have);
      REQUIRE(parser.needed() <= exchange.sent.size());
      have = parser.needed();
    }
    CHECK(have == exchange.sent.size());
    CHECK(consumed == exchange.sent.size());
  }
}

TEST_CASE("a request of very many keys that comes byte by byte is scanned once") {
  constexpr std::uint64_t count = 20000;
  std::string input = op(0x05) + number(count);
  for (std::uint64_t i = 0; i < count; ++i) input += field("k");
  RequestParser parser;
  Request request;
  std::size_t consumed = 0;
  // A scan from the start for each of these 180,000 bytes would take many seconds.
  for (std::size_t have = 0; have < input.size(); ++have) {
    if (parser.next(std::string_view(input).substr(0, have), request, consumed) != Status::incomplete) {
      FAIL("complete at " << have);
    }
  }
  REQUIRE(parser.next(input, request, consumed) == Status::complete);
  CHECK(consumed == input.size());
  CHECK(request.count == count);
}

TEST_CASE("a request over the limit of a whole one is refused") {
  std::string input = op(0x0b) + number(64);
  const auto value = field(std::string(8 * 1024 * 1024, 'v'));
  RequestParser parser;
  Request request;
  std::size_t consumed = 0;
  auto status = Status::incomplete;
  input.reserve(33 * value.size());
  for (int pair = 0; pair < 40 && status == Status::incomplete; ++pair) {
    input += field("k") + value;
    status = parser.next(input, request, consumed);
  }
  CHECK(status == Status::refused);
  CHECK(input.size() <= wire::max_message + value.size() + 16);
}
