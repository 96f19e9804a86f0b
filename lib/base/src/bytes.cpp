#include "ddrun/base/bytes.hpp"

#include <sys/random.h>

#include <cerrno>

namespace ddrun {

Result<void> fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
    else if (got == 0 || errno != EINTR) {
      return fail_errno(Errc::unavailable, "the kernel gave no random bytes", got == 0 ? EIO : errno);
    }
  }
  return {};
}

}  // namespace ddrun
