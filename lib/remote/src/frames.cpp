#include "frames.hpp"

namespace ddrun::remote {

namespace {

void append_number(WipedString& to, std::size_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>((number >> static_cast<unsigned>(shift)) & 255U);
}

}  // namespace

void append_frame(WipedString& to, FrameType type, std::uint32_t host, std::string_view payload) {
  append_number(to, payload.size());
  append_number(to, host);
  to += static_cast<char>(type);
  to += payload;
}

std::uint32_t FrameReader::number(std::size_t at) const {
  std::uint32_t value = 0;
  for (std::size_t i = at; i < at + 4; ++i) value = value << 8U | static_cast<unsigned char>(partial_[i]);
  return value;
}

}  // namespace ddrun::remote
