#include "protocol.hpp"

#include <utility>
#include <vector>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::remote;

namespace {

using Seen = std::pair<FrameType, std::string>;

/// The frames of a reader that gets `bytes` in chunks of `portion` bytes.
std::vector<Seen> read_in(std::string_view bytes, std::size_t portion) {
  std::vector<Seen> seen;
  FrameReader reader;
  for (std::size_t at = 0; at < bytes.size(); at += portion) {
    REQUIRE(reader.feed(bytes.substr(at, portion),
                        [&](const Frame& frame) { seen.emplace_back(frame.type, std::string(frame.payload)); }));
  }
  return seen;
}

}  // namespace

TEST_CASE("Frames come out as they went in, however the stream is cut") {
  const std::vector<Seen> sent{{FrameType::start, "{}"},
                               {FrameType::alive, ""},
                               {FrameType::out, std::string("a\0\xff\nb", 5)},
                               {FrameType::err, std::string(100'000, 'x')}};
  WipedString bytes;
  for (const auto& [type, payload] : sent) append_frame(bytes, type, payload);
  for (const std::size_t portion : {1U, 2U, 5U, 6U, 4096U, 1U << 20U}) CHECK(read_in(bytes, portion) == sent);
}

TEST_CASE("The number of a question and its text are found again") {
  for (const std::string& text : {std::string(), std::string("a\0\xff\n", 4)}) {
    const std::string payload = numbered(0x80000001U, text);
    CHECK(decode_numbered(payload) == std::pair(0x80000001U, std::string_view(text)));
  }
  for (const char* wrong : {"", "abc"}) CHECK(decode_numbered(wrong).first == 0);
}

TEST_CASE("A frame that is too long is refused before it is stored") {
  WipedString bytes;
  append_frame(bytes, FrameType::out, "");
  bytes[0] = '\x7f';
  FrameReader reader;
  const auto read = reader.feed(bytes, [](const Frame&) { FAIL("it was handed out"); });
  REQUIRE_FALSE(read);
  CHECK(read.error().code == Errc::protocol);
}
