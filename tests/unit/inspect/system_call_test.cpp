#include "system_call.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/ports.hpp"

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
    TcpTables tables;
    return describe_system_call({number, {first, second}}, ::getpid(), nullptr, tables, true);
  };
  CHECK(describe(SYS_clock_nanosleep).text == "sleeps");
  CHECK(describe(SYS_read, static_cast<std::uint64_t>(out.get())).text == "reads a pipe");
  CHECK(describe(SYS_read, static_cast<std::uint64_t>(out.get())).pipe == link_of(::getpid(), out.get()));
  for (const long other : {SYS_write, SYS_close, SYS_ioctl})
    CHECK(describe(other, static_cast<std::uint64_t>(in.get())).pipe.empty());
  CHECK(describe(SYS_read, 9999).text == "reads a descriptor");
  CHECK(describe(SYS_wait4, 4711).awaits_child);
  CHECK(describe(SYS_wait4, 4711).child == 4711);
  CHECK(describe(SYS_wait4, ~std::uint64_t{0}).child == 0);
  CHECK(describe(SYS_waitid, P_PID, 4711).child == 4711);
  CHECK(describe(SYS_waitid, P_ALL, 4711).child == 0);
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
      "-1\n"
      "   2: 0100007F:8E0C 0200000A:1268 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n"
      "   3: 0100007F:8E0C\n"
      "   4: : : 01 0:0 0:0 0 0 0 4713 1\n";
  CHECK(parse_tcp_table(tcp) == TcpTable{{"4711", {"*:29501", ""}}, {"4712", {"127.0.0.1:36364", "10.0.0.2:4711"}}});
  const std::string tcp6 =
      "   0: 00000000000000000000000001000000:733D 00000000000000000000000001000000:1267 01 0:0 0:0 0 0 0 13 1\n"
      "   1: 0000000000000000FFFF00000100007F:733D 0000000000000000FFFF00000200000A:1267 01 0:0 0:0 0 0 0 14 1\n";
  CHECK(parse_tcp_table(tcp6) ==
        TcpTable{{"13", {"[::1]:29501", "[::1]:4711"}}, {"14", {"127.0.0.1:29501", "10.0.0.2:4711"}}});
}

TEST_CASE("of a set of descriptors the peers of its TCP connections are known") {
  const auto memory = ProcessMemory::open(::getpid());
  REQUIRE(memory);
  const test::Loopback loopback;
  const int listener = loopback.listener.get(), client = loopback.client.get();
  const std::string peer = concat("127.0.0.1:", loopback.port);
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  const auto describe = [&](long number, std::uint64_t first, std::uint64_t second) {
    TcpTables tables;
    return describe_system_call({number, {first, second}}, ::getpid(), &*memory, tables, true);
  };
  const auto epoll_wait = [&] { return describe(SYS_epoll_pwait, static_cast<std::uint64_t>(epoll.get()), 0); };
  CHECK(epoll_wait().text == "waits for events (epoll)");
  REQUIRE(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener, &event) == 0);
  CHECK(epoll_wait().text == "waits for events (epoll)");
  CHECK_FALSE(epoll_wait().on_socket);
  REQUIRE(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, client, &event) == 0);
  const pollfd polled[] = {{listener, POLLIN, 0}, {client, POLLIN, 0}};
  for (const Activity& activity : {epoll_wait(), describe(SYS_ppoll, reinterpret_cast<std::uint64_t>(&polled), 2)}) {
    CHECK(activity.text == "waits for " + peer + " and 1 more");
    CHECK(activity.on_socket);
    CHECK(activity.peers == std::vector{peer});
  }
  std::vector<pollfd> many(100, polled[1]);
  const Activity activity = describe(SYS_ppoll, reinterpret_cast<std::uint64_t>(many.data()), many.size());
  CHECK(activity.peers.back().empty());
}

TEST_CASE("a call that SIGCONT has restarted is told by its arguments") {
  int ends[2] = {};
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  const pollfd polled{out.get(), POLLIN, 0};
  const timespec time{};
  const auto memory = ProcessMemory::open(::getpid());
  REQUIRE(memory);
  TcpTables tables;
  const auto describe = [&](std::uint64_t first, std::uint64_t second, std::uint64_t third) {
    return describe_system_call({SYS_restart_syscall, {first, second, third}}, ::getpid(), &*memory, tables, true).text;
  };
  const auto address = [](const auto& what) { return reinterpret_cast<std::uint64_t>(&what); };
  CHECK(describe(CLOCK_REALTIME, 0, address(time)) == "sleeps");
  CHECK(describe(CLOCK_BOOTTIME, 0, address(time)) == "sleeps");
  CHECK(describe(address(time), address(time), 0) == "sleeps");
  CHECK(describe(address(time), 0, 0) == "sleeps");
  CHECK(describe(0, 0, 5000) == "sleeps");  // poll without descriptors
  for (const unsigned operation : {128U, 137U, 128U + 256U, 137U + 256U}) {
    CHECK(describe(address(time), operation, 2) == "waits for another thread (futex)");
  }
#ifdef SYS_poll
  CHECK(describe(address(polled), 1, 5000) == "waits for a pipe");
  CHECK(describe(address(polled), 3, 5000) == "waits for events (poll)");
#endif
}
