#include "system_call.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

TEST_CASE("a line of /proc/PID/syscall") {
  const auto call = parse_system_call("7 0x7ffd1 0x1 0xffffffff 0x0 0x0 0x8 0x7ffd0 0x7f12");
  REQUIRE(call);
  CHECK(call->number == 7);
  CHECK(call->arguments == std::array<std::uint64_t, 6>{0x7ffd1, 1, 0xffffffff, 0, 0, 8});
  CHECK(call->stack_pointer == 0x7ffd0);
  CHECK(call->program_counter == 0x7f12);
  CHECK_FALSE(parse_system_call("running"));
  CHECK_FALSE(parse_system_call(""));
  CHECK(parse_system_call("-1 0x7ffd0 0x7f12")->number == -1);
  CHECK(parse_system_call("-1 0x7ffd0 0x7f12")->program_counter == 0x7f12);
}

TEST_CASE("a system call in words") {
  int ends[2] = {};
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  const UniqueFd file(::dup(0));
  const auto describe = [](long number, std::uint64_t first = 0, std::uint64_t second = 0) {
    return describe_system_call({number, {first, second}}, ::getpid(), nullptr);
  };
  CHECK(describe(SYS_clock_nanosleep).text == "sleeps");
  CHECK(describe(SYS_read, static_cast<std::uint64_t>(out.get())).text == "reads a pipe");
  CHECK(describe(SYS_read, 9999).text == "reads a descriptor");
  CHECK(describe(SYS_wait4).awaits_child);
  CHECK(describe(SYS_getpid).text == concat("is in system call ", SYS_getpid));
  CHECK(describe(-1).text == "is in the kernel");
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  const Activity receives = describe(SYS_recvfrom, static_cast<std::uint64_t>(socket.get()));
  CHECK(receives.text == "receives from a socket");
  CHECK(receives.on_socket);
}

TEST_CASE("the peer of a socket in the kernel's tables") {
  const std::string tcp =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
      "   0: 0100007F:733D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 "
      "0\n"
      "   1: 0100007F:8E0C 0200000A:1267 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 "
      "-1\n";
  CHECK(find_tcp_peer(tcp, "4711") == "*:29501");
  CHECK(find_tcp_peer(tcp, "4712") == "10.0.0.2:4711");
  CHECK(find_tcp_peer(tcp, "471").empty());
  CHECK(find_tcp_peer(tcp, "0").empty());
  const std::string tcp6 =
      "   0: 00000000000000000000000001000000:733D 00000000000000000000000001000000:1267 01 0:0 0:0 0 0 0 13 1\n"
      "   1: 0000000000000000FFFF00000100007F:733D 0000000000000000FFFF00000200000A:1267 01 0:0 0:0 0 0 0 14 1\n";
  CHECK(find_tcp_peer(tcp6, "13") == "[::1]:4711");
  CHECK(find_tcp_peer(tcp6, "14") == "10.0.0.2:4711");
}
