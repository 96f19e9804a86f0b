#include "frames.hpp"

#include "ddrun/base/bytes.hpp"

namespace ddrun::rendezvous {

using bytes::load;
using bytes::put;

namespace {

Digest sign(const HmacKey& key, std::uint64_t sequence, std::string_view head_and_payload) {
  return key.sign({{reinterpret_cast<const char*>(&sequence), sizeof sequence}, head_and_payload});
}

}  // namespace

bool FrameSealer::seal(std::uint8_t type, std::string_view payload, std::string& out) {
  if (payload.size() > max_payload) return false;
  const std::size_t begin = out.size();
  put(out, static_cast<std::uint32_t>(payload.size()));
  put(out, type);
  out.append(payload);
  if (key_) {
    const Digest digest = sign(*key_, sequence_, std::string_view(out).substr(begin));
    out.append(view(digest).substr(0, frame_tag));
  }
  ++sequence_;
  return true;
}

FrameOpener::Status FrameOpener::next(std::string_view input, Frame& frame, std::size_t max_size) {
  if (input.size() < sizeof(std::uint32_t)) return Status::incomplete;
  const std::size_t size = load<std::uint32_t>(input.data());
  if (size > max_size) return Status::too_long;
  if (input.size() < frame_head + size + tag_size()) return Status::incomplete;
  const auto head_and_payload = input.substr(0, frame_head + size);
  if (key_) {
    const Digest digest = sign(*key_, sequence_, head_and_payload);
    if (!equal_in_constant_time(view(digest).substr(0, frame_tag), input.substr(frame_head + size, frame_tag))) {
      return Status::wrong_tag;
    }
  }
  ++sequence_;
  frame.type = load<std::uint8_t>(input.data() + sizeof(std::uint32_t));
  frame.payload = head_and_payload.substr(frame_head);
  frame.size = frame_head + size + tag_size();
  return Status::whole;
}

}  // namespace ddrun::rendezvous
