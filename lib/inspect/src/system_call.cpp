#include "system_call.hpp"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <set>
#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/inspect/port_user.hpp"

namespace ddrun::inspect {

namespace {

/// What the first argument is.
enum class First { nothing, descriptor, poll_set, epoll };

struct Known {
  long number;
  std::string_view text;  ///< what the thread does; for a descriptor its name follows
  First first = First::nothing;
};

constexpr Known known_calls[] = {
    {SYS_futex, "waits for another thread (futex)"},
    {SYS_clock_nanosleep, "sleeps"},
    {SYS_nanosleep, "sleeps"},
    {SYS_read, "reads", First::descriptor},
    {SYS_readv, "reads", First::descriptor},
    {SYS_pread64, "reads", First::descriptor},
    {SYS_preadv, "reads", First::descriptor},
    {SYS_write, "writes", First::descriptor},
    {SYS_writev, "writes", First::descriptor},
    {SYS_pwrite64, "writes", First::descriptor},
    {SYS_fsync, "syncs", First::descriptor},
    {SYS_fdatasync, "syncs", First::descriptor},
    {SYS_flock, "waits for the lock of", First::descriptor},
    {SYS_fcntl, "waits for a lock of", First::descriptor},
    {SYS_ioctl, "is in the driver of", First::descriptor},
    {SYS_recvfrom, "receives from", First::descriptor},
    {SYS_recvmsg, "receives from", First::descriptor},
    {SYS_sendto, "sends to", First::descriptor},
    {SYS_sendmsg, "sends to", First::descriptor},
    {SYS_accept, "waits for a connection to", First::descriptor},
    {SYS_accept4, "waits for a connection to", First::descriptor},
    {SYS_connect, "connects to", First::descriptor},
    {SYS_ppoll, "waits for events (poll)", First::poll_set},
    {SYS_pselect6, "waits for events (select)"},
    {SYS_epoll_pwait, "waits for events (epoll)", First::epoll},
    {SYS_wait4, "waits for a child process"},
    {SYS_waitid, "waits for a child process"},
    {SYS_rt_sigtimedwait, "waits for a signal"},
    {SYS_rt_sigsuspend, "waits for a signal"},
    {SYS_openat, "opens a file"},
    {SYS_newfstatat, "looks up a file"},
    {SYS_close, "closes", First::descriptor},
    {SYS_munmap, "unmaps memory"},
#ifdef SYS_poll
    {SYS_poll, "waits for events (poll)", First::poll_set},
    {SYS_select, "waits for events (select)"},
    {SYS_epoll_wait, "waits for events (epoll)", First::epoll},
    {SYS_pause, "waits for a signal"},
    {SYS_open, "opens a file"},
    {SYS_stat, "looks up a file"},
    {SYS_vfork, "waits for a child process to execute a program"},
#endif
};

/// "10.0.0.2:4711" from "0200000A:1267": words of the address as the machine stores them, the port as a number.
std::string read_address(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto port = colon == std::string_view::npos ? std::nullopt : whole_number<unsigned>(text.substr(colon + 1), 16);
  if (!port || (colon != 8 && colon != 32)) return {};
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < colon / 8; ++i)
    words[i] = whole_number<std::uint32_t>(text.substr(i * 8, 8), 16).value_or(0);
  if (*port == 0 && std::all_of(words.begin(), words.end(), [](std::uint32_t word) { return word == 0; })) return {};
  const bool mapped = colon == 32 && words[0] == 0 && words[1] == 0 && words[2] == htonl(0xffff);
  const bool is_v6 = colon == 32 && !mapped;
  char address[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(is_v6 ? AF_INET6 : AF_INET, mapped ? words.data() + 3 : words.data(), address, sizeof address);
  return is_v6 ? concat("[", address, "]:", *port) : concat(address, ":", *port);
}

constexpr std::size_t max_watched = 32;  ///< descriptors of a set

struct TcpLine {
  std::string own, peer, inode;
};
/// Empty for a socket of no process, as in TIME_WAIT.
TcpLine read_tcp_line(const std::string& line) {
  std::vector<std::string> words = split(line, ' ');
  std::erase(words, "");
  return words.size() < 10 || words[9] == "0" ? TcpLine{} : TcpLine{words[1], words[2], words[9]};
}

/// The inode of "socket:[4711]"; empty for another link.
std::string_view socket_inode(std::string_view link) {
  constexpr std::string_view prefix = "socket:[";
  return link.starts_with(prefix) ? link.substr(prefix.size(), link.size() - prefix.size() - 1) : std::string_view();
}

/// Those that the call is about, of many the first.
std::vector<int> descriptors_of(const SystemCall& call, First first, pid_t pid, const Memory* memory) {
  std::vector<int> fds;
  if (first == First::descriptor) fds.push_back(static_cast<int>(call.arguments[0]));
  for (std::size_t i = 0; first == First::poll_set && i < std::min<std::size_t>(call.arguments[1], max_watched); ++i) {
    const auto polled = memory ? memory->get<struct pollfd>(call.arguments[0] + i * sizeof(pollfd)) : std::nullopt;
    if (polled) fds.push_back(polled->fd);
  }
  if (first != First::epoll) return fds;
  const auto info = read_small_file(concat("/proc/", pid, "/fdinfo/", static_cast<int>(call.arguments[0])));
  for (const std::string& line : split(info.value_or(""), '\n')) {
    constexpr std::string_view prefix = "tfd:";
    const std::string_view rest = std::string_view(line).substr(std::min(line.size(), prefix.size()));
    const std::size_t begin = rest.find_first_not_of(' ');
    if (!line.starts_with(prefix) || begin == rest.npos || fds.size() == max_watched) continue;
    const auto fd = whole_number<int>(rest.substr(begin, rest.find(' ', begin) - begin));
    if (fd) fds.push_back(*fd);
  }
  return fds;
}

/// restart_syscall(2) goes on after SIGSTOP and SIGCONT with the arguments of one of these calls; which one is no
/// longer known. Clocks have small numbers, a poll small ones where a futex has its operation and a sleep a pointer.
long interrupted_call(const SystemCall& call) {
  constexpr std::uint64_t max_small = 4096;  // nothing is mapped below
  constexpr std::uint64_t futex_flags = 128 | 256;
  const std::uint64_t operation = call.arguments[1] & ~futex_flags;
  if (call.arguments[0] < max_small || call.arguments[1] >= max_small) return SYS_clock_nanosleep;
  if (operation != call.arguments[1] && (operation == 0 || operation == 9)) return SYS_futex;  // FUTEX_WAIT(_BITSET)
#ifdef SYS_poll
  if (call.arguments[1] != 0) return SYS_poll;
#endif
  return SYS_clock_nanosleep;
}

}  // namespace

std::string read_link(const std::string& link) {
  char path[PATH_MAX];
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : std::string();
}

std::optional<SystemCall> parse_system_call(std::string_view line) {
  const std::vector<std::string> words = split(line, ' ');
  SystemCall call;
  const std::size_t whole = 3 + call.arguments.size();
  constexpr std::size_t without_arguments = 3;  // "-1 SP PC"
  const auto number = whole_number<long>(words[0]);
  if (!number || (words.size() != whole && words.size() != without_arguments)) return std::nullopt;
  call.number = *number;
  const auto word = [&](std::size_t at) {
    const std::size_t prefix = words[at].starts_with("0x") ? 2 : 0;
    return whole_number<std::uint64_t>(words[at].substr(prefix), 16).value_or(0);
  };
  for (std::size_t i = 0; i < call.arguments.size() && words.size() == whole; ++i) call.arguments[i] = word(i + 1);
  call.stack_pointer = word(words.size() - 2);
  call.program_counter = word(words.size() - 1);
  return call;
}

TcpTable parse_tcp_table(std::string_view text) {
  TcpTable table;
  for (const std::string& line : split(text, '\n')) {
    const TcpLine socket = read_tcp_line(line);
    std::string own = read_address(socket.own);
    std::string peer = read_address(socket.peer);
    if (peer.empty() && !own.empty()) own = "*" + own.substr(own.rfind(':'));
    if (!own.empty()) table.emplace(socket.inode, TcpSocket{std::move(own), std::move(peer)});
  }
  return table;
}

std::set<std::string> sockets_at(int port, bool only_listening) {
  char needle[8];
  ::snprintf(needle, sizeof needle, ":%04X ", static_cast<unsigned>(port) & 0xffffU);
  std::set<std::string> inodes;
  for (const char* table : {"tcp", "tcp6"}) {
    // Thousands may be in TIME_WAIT: their lines are not split.
    const std::size_t peer_size = std::string_view(table) == "tcp" ? 14 : 38;
    const auto waits = [](std::string_view rest) { return rest.starts_with("06 "); };
    const std::string all = read_small_file(concat("/proc/self/net/", table), TcpTables::max_bytes).value_or("");
    const std::string_view text = all;
    for (std::size_t at = text.find(needle); at != std::string_view::npos; at = text.find(needle, at + 1)) {
      const std::string_view rest = text.substr(at + 6);
      if (waits(rest) || (rest.size() > peer_size && waits(rest.substr(peer_size)))) continue;
      const std::size_t begin = text.rfind('\n', at) + 1;
      const TcpLine socket = read_tcp_line(std::string(text.substr(begin, text.find('\n', at) - begin)));
      const bool is_own = read_address(socket.own).ends_with(concat(":", port));
      if (is_own && (!only_listening || read_address(socket.peer).empty())) inodes.insert(socket.inode);
    }
  }
  return inodes;
}

pid_t find_holder(const std::set<std::string>& sockets, std::vector<pid_t> processes) {
  if (sockets.empty()) return 0;
  const bool all = processes.empty();
  for (const std::string& name : all ? names_in("/proc") : std::vector<std::string>()) {
    if (const auto pid = whole_number<pid_t>(name)) processes.push_back(*pid);
  }
  for (const pid_t pid : processes) {
    for (const std::string& fd : names_in(concat("/proc/", pid, "/fd"))) {
      const std::string link = read_link(concat("/proc/", pid, "/fd/", fd));
      if (sockets.contains(std::string(socket_inode(link)))) return pid;
    }
  }
  return 0;
}

const TcpSocket* TcpTables::find(pid_t pid, std::string_view link) {
  const std::string_view inode = socket_inode(link);
  if (inode.empty()) return nullptr;
  const auto [entry, is_new] = tables_.try_emplace(read_link(concat("/proc/", pid, "/ns/net")));
  TcpTable& table = entry->second;
  for (const char* name : {"tcp", "tcp6"}) {
    if (!is_new) break;
    const auto text = read_small_file(concat("/proc/", pid, "/net/", name), limit_);
    if (text) table.merge(parse_tcp_table(*text));
    // A machine may be without IPv6.
    are_whole_ = are_whole_ && (text ? text->size() < limit_ : std::string_view(name) == "tcp6");
  }
  const auto found = table.find(std::string(inode));
  return found != table.end() ? &found->second : nullptr;
}

std::string link_of(pid_t pid, int fd) { return read_link(concat("/proc/", pid, "/fd/", fd)); }

namespace {

/// If some are TCP connections.
void describe_set(Activity& activity, const std::vector<int>& fds, pid_t pid, TcpTables& tables) {
  for (const int fd : fds) {
    const TcpSocket* const socket = tables.find(pid, link_of(pid, fd));
    if (socket != nullptr && !socket->peer.empty()) activity.peers.push_back(socket->peer);
  }
  if (activity.peers.empty()) return;
  activity.on_socket = true;
  activity.text = concat("waits for ", activity.peers.front());
  if (fds.size() > 1) activity.text += concat(" and ", fds.size() - 1, " more");
  if (fds.size() == max_watched) activity.peers.emplace_back();
}

}  // namespace

Activity describe_system_call(SystemCall call, pid_t pid, const Memory* memory, TcpTables& tables, bool with_sets) {
  if (call.number == SYS_restart_syscall) call.number = interrupted_call(call);
  const auto* known = std::ranges::find(known_calls, call.number, &Known::number);
  if (call.number < 0) return {"is in the kernel"};
  if (known == std::end(known_calls)) return {concat("is in system call ", call.number)};
  Activity activity{std::string(known->text)};
  activity.on_futex = call.number == SYS_futex;
  activity.awaits_child = call.number == SYS_wait4 || call.number == SYS_waitid;
  if (call.number == SYS_wait4) activity.child = std::max(static_cast<int>(call.arguments[0]), 0);
  if (call.number == SYS_waitid && call.arguments[0] == P_PID) activity.child = static_cast<int>(call.arguments[1]);
  const bool is_set = known->first == First::epoll || (known->first == First::poll_set && call.arguments[1] > 1);
  if (known->first == First::epoll && !with_sets) return activity;
  const auto fds = descriptors_of(call, known->first, pid, memory);
  if (fds.empty()) return activity;
  activity.of_several = is_set;
  const std::string link = link_of(pid, fds.front());
  const bool is_pipe = link.starts_with("pipe:");
  if (is_pipe && (known->text == "reads" || known->first == First::poll_set)) activity.pipe = link;
  if (is_set) {
    if (with_sets) describe_set(activity, fds, pid, tables);
    return activity;
  }
  // "/mnt/x", "10.0.0.2:4711", "a pipe"
  activity.on_socket = !socket_inode(link).empty();
  std::string name = link.empty() ? "a descriptor" : is_pipe ? "a pipe" : activity.on_socket ? "a socket" : link;
  if (const TcpSocket* const socket = tables.find(pid, link)) {
    name = socket->peer.empty() ? socket->own : socket->peer;
    if (!socket->peer.empty()) activity.peers = {socket->peer};
  }
  activity.text = concat(known->first == First::poll_set ? "waits for" : known->text, " ", name);
  return activity;
}

}  // namespace ddrun::inspect
