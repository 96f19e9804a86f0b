#include "protocol.hpp"

#include <tuple>
#include <vector>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::remote;

namespace {

using Seen = std::tuple<FrameType, std::uint32_t, std::string>;

/// The frames of a reader that gets `bytes` in chunks of `portion` bytes.
std::vector<Seen> read_in(std::string_view bytes, std::size_t portion) {
  std::vector<Seen> seen;
  FrameReader reader;
  for (std::size_t at = 0; at < bytes.size(); at += portion) {
    REQUIRE(reader.feed(bytes.substr(at, portion), [&](const Frame& frame) {
      seen.emplace_back(frame.type, frame.host, std::string(frame.payload));
    }));
  }
  return seen;
}

}  // namespace

TEST_CASE("Frames come out as they went in, however the stream is cut") {
  const std::vector<Seen> sent{{FrameType::start, 0, "{}"},
                               {FrameType::ping, 7, ""},
                               {FrameType::out, this_host, std::string("a\0\xff\nb", 5)},
                               {FrameType::err, 65536, std::string(100'000, 'x')}};
  WipedString bytes;
  for (const auto& [type, host, payload] : sent) append_frame(bytes, type, host, payload);
  for (const std::size_t portion : {1U, 2U, 9U, 10U, 4096U, 1U << 20U}) CHECK(read_in(bytes, portion) == sent);
}

TEST_CASE("A frame that is too long is refused before it is stored") {
  WipedString bytes;
  append_frame(bytes, FrameType::out, 1, "");
  bytes[0] = '\x7f';
  FrameReader reader;
  const auto read = reader.feed(bytes, [](const Frame&) { FAIL("it was handed out"); });
  REQUIRE_FALSE(read);
  CHECK(read.error().code == Errc::protocol);
}
