// Frames of the control protocol, in either direction: valid ones, any bytes, and valid ones that were changed,
// repeated or dropped by an attacker.
//
// The input is a program that makes such a stream, which is decoded as a whole and in pieces, as by a connection.
// Checks: both give the same messages; with a key only sealed frames are accepted, in order; decoding and encoding are
// inverse.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codec.hpp"
#include "ddrun/base/bytes.hpp"
#include "frames.hpp"
#include "input.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::fuzz::Input;

namespace {

constexpr std::size_t most_bytes = 256 * 1024;

struct Taken {
  std::vector<std::string> frames;  // type and payload
  FrameOpener::Status end = FrameOpener::Status::incomplete;
  bool operator==(const Taken&) const = default;
};

/// Size of the frame at the start of `input`, as far as its length is known.
std::size_t whole_frame(std::string_view input, const std::optional<HmacKey>& key) {
  if (input.size() < sizeof(std::uint32_t)) return frame_head;
  return frame_head + bytes::load<std::uint32_t>(input.data()) + (key ? frame_tag : 0);
}

/// As a connection does: what is not a whole frame waits for more.
Taken take(std::string_view stream, const std::optional<HmacKey>& key, std::size_t max_size, bool crumbs) {
  Taken taken;
  FrameOpener opener(key);
  std::string in;
  for (std::size_t i = 0; !stream.empty(); ++i) {
    const auto piece = crumbs ? stream.substr(0, i % 37 + 1) : stream;
    stream.remove_prefix(piece.size());
    in += piece;
    std::string_view left = in;
    for (FrameOpener::Frame frame;;) {
      taken.end = opener.next(left, frame, max_size);
      if (taken.end != FrameOpener::Status::whole) break;
      DDRUN_FUZZ_CHECK(frame.size <= left.size());
      DDRUN_FUZZ_CHECK(frame.payload.size() <= max_size);
      DDRUN_FUZZ_CHECK(frame.size == whole_frame(left, key));
      taken.frames.push_back(std::string(1, static_cast<char>(frame.type)) + std::string(frame.payload));
      left.remove_prefix(frame.size);
    }
    if (taken.end != FrameOpener::Status::incomplete) return taken;
    DDRUN_FUZZ_CHECK(left.size() < whole_frame(left, key));
    in.erase(0, in.size() - left.size());
  }
  return taken;
}

template <class Message>
void check_message(const Result<Message>& decoded, std::uint8_t type, std::string_view payload) {
  if (!decoded) {
    DDRUN_FUZZ_CHECK((decoded.error().code == Errc::protocol || decoded.error().code == Errc::unsupported) &&
                     !decoded.error().message.empty());
    return;
  }
  std::string again;
  DDRUN_FUZZ_CHECK(encode(*decoded, again) == type);
  // Bytes behind the last field are all that may be lost.
  DDRUN_FUZZ_CHECK(payload.substr(0, again.size()) == again);
  auto shorter = *decoded;
  const std::size_t max_size = again.size() / 2;
  std::string shortened;
  const auto fits = encode(shorter, shortened, max_size);
  DDRUN_FUZZ_CHECK(!fits || *fits == type);
  DDRUN_FUZZ_CHECK(shortened.size() <= again.size());
  DDRUN_FUZZ_CHECK(fits.has_value() == (shortened.size() <= max_size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const auto flags = input.byte();
  const std::optional<HmacKey> key = (flags & 1) != 0 ? std::optional(HmacKey("a key")) : std::nullopt;
  const std::size_t max_size = (flags & 2) != 0 ? max_payload_before_join : max_payload;

  FrameSealer sealer(key);
  std::string stream, last;
  std::vector<std::string> honest;
  while (!input.empty() && stream.size() < most_bytes) {
    const auto what = input.byte();
    switch (what / 32) {
      case 0:
      case 1:
      case 2: {  // a frame
        std::string payload(input.bytes(what % 32 * 4));
        // Also as long as frames may be, and a little more.
        if (what / 32 == 2) payload.resize(payload.size() + (std::size_t{1} << what % 18), 'x');
        const auto type = input.byte();
        last.clear();
        if (!sealer.seal(type, payload, last)) break;
        honest.push_back(std::string(1, static_cast<char>(type)) + payload);
        stream += last;
        break;
      }
      case 3: stream += last; break;  // again
      case 4: stream += input.bytes(what % 32); break;
      case 5:  // changed
        if (!stream.empty()) {
          auto& byte = stream[stream.size() - 1 - input.byte() % stream.size()];
          byte = static_cast<char>(byte ^ (1 << what % 8));
        }
        break;
      case 6: stream.resize(stream.size() - std::min<std::size_t>(stream.size(), what % 32)); break;
      default: {  // left out, unless it comes again
        const auto payload = input.bytes(what % 32);
        last.clear();
        (void)sealer.seal(what, payload, last);
        honest.push_back(std::string(1, static_cast<char>(what)) + std::string(payload));
      }
    }
  }

  const auto taken = take(stream, key, max_size, false);
  DDRUN_FUZZ_CHECK(taken == take(stream, key, max_size, true));
  if (key) {
    DDRUN_FUZZ_CHECK(taken.frames.size() <= honest.size());
    for (std::size_t i = 0; i < taken.frames.size(); ++i) DDRUN_FUZZ_CHECK(taken.frames[i] == honest[i]);
  }
  for (const auto& frame : taken.frames) {
    const auto type = static_cast<std::uint8_t>(frame[0]);
    const auto payload = std::string_view(frame).substr(1);
    check_message(decode_from_agent(type, payload), type, payload);
    check_message(decode_from_coordinator(type, payload), type, payload);
  }
  return 0;
}
