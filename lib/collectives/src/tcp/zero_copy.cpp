#include "tcp/zero_copy.hpp"

#include <sys/socket.h>
// After <sys/socket.h>, and after <time.h>: it uses both.
#include <linux/errqueue.h>
#include <netinet/in.h>

#include <array>
#include <cstring>

namespace ddrun::collectives {

namespace {

/// Below that, keeping book of pages costs more than copying (the document above: about 10 KiB for one send).
constexpr std::size_t kLeast = 64 << 10;
constexpr std::size_t kTail = 16 << 10;

}  // namespace

std::size_t ZeroCopySends::share(int fd, std::size_t bytes) {
  if (wish_ == ZeroCopy::never || bytes < kLeast) return 0;
  if (!asked_) {
    asked_ = true;
    const int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) != 0) wish_ = ZeroCopy::never;
    if (wish_ == ZeroCopy::never) return 0;
  }
  return bytes - kTail;
}

void ZeroCopySends::collect(int fd) {
  while (pending()) {
    alignas(cmsghdr) std::array<char, 256> control{};
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
      const bool v4 = one->cmsg_level == SOL_IP && one->cmsg_type == IP_RECVERR;
      const bool v6 = one->cmsg_level == SOL_IPV6 && one->cmsg_type == IPV6_RECVERR;
      if (!v4 && !v6) continue;
      sock_extended_err said{};
      std::memcpy(&said, CMSG_DATA(one), sizeof(said));
      if (said.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      // Sends number ee_info to ee_data.
      done_ += said.ee_data - said.ee_info + 1;
      if ((said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0 && wish_ == ZeroCopy::where_it_works) {
        wish_ = ZeroCopy::never;
      }
    }
  }
}

}  // namespace ddrun::collectives
