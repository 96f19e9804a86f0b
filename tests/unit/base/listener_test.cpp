#include "ddrun/base/listener.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <utility>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

/// Called before the next listen(), where another process could run.
std::function<void()> before_listen;

bool set(int fd, int option) {
  const int on = 1;
  return ::setsockopt(fd, SOL_SOCKET, option, &on, sizeof on) == 0;
}

/// Another program that tries to take the port; no descriptor if it fails.
UniqueFd take_port(const SocketAddress& at, bool as_another_user) {
  constexpr uid_t nobody = 65534;
  const uid_t before = ::geteuid();
  if (as_another_user) REQUIRE(::seteuid(nobody) == 0);
  UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (as_another_user) REQUIRE(::seteuid(before) == 0);
  REQUIRE(set(fd.get(), SO_REUSEADDR));
  if (as_another_user) REQUIRE(set(fd.get(), SO_REUSEPORT));
  if (::bind(fd.get(), at.get(), at.size) != 0 || ::listen(fd.get(), 1) != 0) fd.reset();
  return fd;
}

UniqueFd connected(const SocketAddress& to) {
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), to.get(), to.size) == 0);
  return fd;
}

bool waits(const Listener& listener) {
  pollfd caller{listener.fd.get(), POLLIN, 0};
  return ::poll(&caller, 1, 0) == 1;
}

}  // namespace

extern "C" int listen(int fd, int backlog) noexcept {
  if (auto now = std::exchange(before_listen, nullptr)) now();
  return static_cast<int>(::syscall(SYS_listen, fd, backlog));
}

TEST_CASE("a restarting listener drops pending connections and keeps its port") {
  const bool another_user = ::geteuid() == 0 && GENERATE(true, false);
  const std::string address = GENERATE("127.0.0.1", "0.0.0.0", "::1", "::");
  CAPTURE(another_user, address);
  auto listeners = open_listeners({address}, 0);
  if (!listeners && address.find(':') != std::string::npos) skip("no IPv6 here");
  REQUIRE(listeners);
  Listener& listener = listeners->front();
  auto target = *SocketAddress::parse(listener.at.family() == AF_INET ? "127.0.0.1" : "::1", listener.at.port());

  // Open connections share the port.
  const UniqueFd served = connected(target);
  REQUIRE(waits(listener));
  const UniqueFd accepted(::accept(listener.fd.get(), nullptr, nullptr));
  REQUIRE(accepted);
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    const UniqueFd old = connected(target);
    REQUIRE(waits(listener));
    UniqueFd stranger;
    bool tried = false;
    before_listen = [&] {
      stranger = take_port(listener.at, another_user);
      tried = true;
    };
    const auto restarted = listener.restart();
    INFO((restarted ? "" : restarted.error().message));
    REQUIRE(restarted);
    CHECK(tried);
    CHECK_FALSE(stranger);
    CHECK_FALSE(waits(listener));
    CHECK_FALSE(take_port(listener.at, false));
    const UniqueFd later = connected(target);
    CHECK(waits(listener));
    const UniqueFd taken(::accept(listener.fd.get(), nullptr, nullptr));
    CHECK(taken);
  }
}
