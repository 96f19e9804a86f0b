#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::test {

/// A free loopback port that no other process gets by chance: below the ephemeral range, and each test program uses its
/// own block of ports.
inline int free_port() {
  constexpr int first = 10'000, of_each_program = 16, programs = 1'400;
  static int taken = 0;
  for (int tried = 0; tried < of_each_program; ++tried) {
    const int port = first + ::getpid() % programs * of_each_program + taken++ % of_each_program;
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // As a listener sets it: connections in TIME_WAIT keep a port busy for a minute.
    const int yes = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) return port;
  }
  throw std::runtime_error("no free port in the block of this test program");
}

/// A listening socket, and a connection to it that is not accepted yet.
struct Loopback {
  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd client{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port = 0;

  Loopback() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    if (::bind(listener.get(), address, size) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), address, &size) != 0 || ::connect(client.get(), address, size) != 0) {
      throw std::runtime_error("no connection over the loopback can be made");
    }
    port = ntohs(at.sin_port);
  }
};

}  // namespace ddrun::test
