#include "frames.hpp"

#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun::rendezvous;
using namespace ddrun::test;
using Status = FrameOpener::Status;

namespace {

const HmacKey key("a key for frames");

std::string frame(FrameSealer& sealer, std::uint8_t type, std::string_view payload) {
  std::string out;
  REQUIRE(sealer.seal(type, payload, out));
  return out;
}

}  // namespace

TEST_CASE("frames come out in order, however they were cut") {
  for (const bool sealed : {true, false}) {
    const std::optional<HmacKey> used = sealed ? std::optional(key) : std::nullopt;
    FrameSealer sealer(used);
    std::string bytes = frame(sealer, 8, "first");
    bytes += frame(sealer, 1, "");
    bytes += frame(sealer, 255, std::string(1000, 'x'));
    for (std::size_t step = 1; step < 60; ++step) {
      FrameOpener opener(used);
      std::string input;
      std::vector<std::string> payloads;
      for (std::size_t begin = 0; begin < bytes.size(); begin += step) {
        input += bytes.substr(begin, step);
        for (FrameOpener::Frame out; opener.next(input, out) == Status::whole; input.erase(0, out.size)) {
          payloads.emplace_back(out.payload);
        }
      }
      REQUIRE(payloads.size() == 3);
      CHECK(payloads[0] == "first");
      CHECK(payloads[1].empty());
      CHECK(payloads[2] == std::string(1000, 'x'));
      CHECK(input.empty());
    }
  }
}

TEST_CASE("a frame has the layout of PROTOCOL.md") {
  FrameSealer open(std::nullopt);
  CHECK(hex(frame(open, 8, "abcd")) ==
        "04000000"
        "08"
        "61626364");
  FrameSealer sealer(key);
  (void)frame(sealer, 1, "");
  const auto second = frame(sealer, 8, "abcd");
  const auto tag = key.sign({number(1), unhex("04000000 08 61626364")});
  CHECK(second == unhex("04000000 08 61626364") + std::string(view(tag).substr(0, 16)));
}

TEST_CASE("a flipped bit anywhere in a frame is noticed") {
  FrameSealer sealer(key);
  const auto good = frame(sealer, 3, "payload");
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    // A larger length waits for more bytes, which cannot have the right tag either.
    bad += std::string(64 * 1024, 'z');
    FrameOpener opener(key);
    FrameOpener::Frame out;
    CAPTURE(bit);
    const auto status = opener.next(bad, out);
    if (bit >= 16 && bit < 32) {
      // Announced lengths beyond the input: some are too long, the others are incomplete.
      CHECK((status == Status::too_long || status == Status::incomplete || status == Status::wrong_tag));
    } else {
      CHECK(status == Status::wrong_tag);
    }
  }
}

TEST_CASE("frames cannot be repeated, left out, exchanged or sent back") {
  FrameSealer sealer(key);
  const auto first = frame(sealer, 1, "first");
  const auto second = frame(sealer, 2, "second");
  FrameOpener::Frame out;
  {
    FrameOpener opener(key);
    REQUIRE(opener.next(first, out) == Status::whole);
    CHECK(opener.next(first, out) == Status::wrong_tag);
  }
  {
    FrameOpener opener(key);
    CHECK(opener.next(second, out) == Status::wrong_tag);
  }
  FrameOpener other_direction(HmacKey("the key of the other direction"));
  CHECK(other_direction.next(first, out) == Status::wrong_tag);
  FrameOpener without(std::nullopt);
  CHECK(without.next(first, out) == Status::whole);
  CHECK(without.next(std::string_view(first).substr(out.size), out) != Status::whole);  // its tag is no frame
}

TEST_CASE("a frame that is too long is refused by its first four bytes") {
  FrameOpener opener(key);
  FrameOpener::Frame out;
  CHECK(opener.next(unhex("01 00 40 00"), out) == Status::too_long);
  CHECK(opener.next(unhex("00 00 40 00"), out) == Status::incomplete);
  CHECK(opener.next(unhex("01 00 01 00"), out, max_payload_before_join) == Status::too_long);
  CHECK(opener.next(unhex("00 00 01 00"), out, max_payload_before_join) == Status::incomplete);

  FrameSealer sealer(key);
  std::string bytes = "before";
  CHECK_FALSE(sealer.seal(5, std::string(max_payload + 1, 'x'), bytes));
  CHECK(bytes == "before");
  REQUIRE(sealer.seal(5, std::string(max_payload, 'x'), bytes));
  CHECK(opener.next(std::string_view(bytes).substr(6), out) == Status::whole);
}
