#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "ddrun/base/proc.hpp"
#include "ddrun/cluster/machine.hpp"

namespace ddrun::cluster {

Machine this_machine() {
  Machine machine;
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) machine.host_name = name.data();
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr) continue;
      const int family = each->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      std::array<char, NI_MAXHOST> text{};
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(each->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
        machine.addresses.emplace_back(text.data());
      }
    }
    ::freeifaddrs(list);
  }
  machine.pid = ::getpid();
  return machine;
}

std::optional<std::string> read_text_file(const std::string& path) { return read_small_file(path, 16U << 20U); }

}  // namespace ddrun::cluster
