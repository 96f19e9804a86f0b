#include "ddrun/store/resolve.hpp"

#include <netdb.h>

#include <algorithm>
#include <thread>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::store {

Result<std::vector<std::string>> resolve(std::string_view host) {
  if (host.empty()) return fail(Errc::invalid_argument, "the host name is empty; give a name or an IP address");
  if (host == "localhost") return std::vector<std::string>{"127.0.0.1", "::1"};
  if (SocketAddress::parse(host, 0)) return std::vector<std::string>{std::string(host)};

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(std::string(host).c_str(), nullptr, &hints, &found); error != 0) {
    const std::string why = error == EAI_SYSTEM ? std::error_code(errno, std::generic_category()).message()
                                                : std::string(::gai_strerror(error));
    return fail(Errc::unavailable, concat("cannot find the address of host '", host, "': ", why));
  }
  std::vector<std::string> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    char text[128];
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      addresses.emplace_back(text);
    }
  }
  ::freeaddrinfo(found);
  if (addresses.empty()) return fail(Errc::unavailable, concat("host '", host, "' has no IP address"));
  return addresses;
}

Result<std::unique_ptr<TcpClient>> connect_by_name(std::string_view host, std::uint16_t port, Deadline deadline) {
  if (host == "localhost" || host.empty() || SocketAddress::parse(host, port)) {
    if (host.empty()) return fail(Errc::invalid_argument, "the store's host is empty; give a name or an IP address");
    return TcpClient::connect(host, port, deadline);
  }
  constexpr std::chrono::seconds slice{1};
  for (;;) {
    Error last{Errc::timeout, concat("host '", host, "' has no usable address"), {}};
    if (auto addresses = resolve(host); !addresses) {
      last = std::move(addresses.error());
    } else {
      for (const auto& address : *addresses) {
        auto client = TcpClient::connect(address, port, std::min(deadline, Clock::now() + slice));
        if (client || client.error().code == Errc::protocol || client.error().code == Errc::invalid_argument) {
          return client;
        }
        last = std::move(client.error());
      }
    }
    // The name or its addresses may change while the job starts: resolve again.
    if (Clock::now() + slice >= deadline) return tl::unexpected(std::move(last));
    std::this_thread::sleep_for(slice / 4);
  }
}

}  // namespace ddrun::store
