#include "random_id.hpp"

#include <sys/random.h>

#include "ddrun/base/duration.hpp"

namespace ddrun::rendezvous {

std::string random_id() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    for (auto& byte : bytes)
      byte = static_cast<unsigned char>(Clock::now().time_since_epoch().count() >> (&byte - bytes));
  }
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string text;
  constexpr char digits[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

}  // namespace ddrun::rendezvous
