#include "system_call.hpp"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

namespace {

/// What the first argument is.
enum class First { nothing, descriptor, poll_set };

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
    {SYS_connect, "connects", First::descriptor},
    {SYS_ppoll, "waits for", First::poll_set},
    {SYS_pselect6, "waits for events (select)"},
    {SYS_epoll_pwait, "waits for events (epoll)"},
    {SYS_wait4, "waits for a child process"},
    {SYS_waitid, "waits for a child process"},
    {SYS_rt_sigtimedwait, "waits for a signal"},
    {SYS_rt_sigsuspend, "waits for a signal"},
    {SYS_openat, "opens a file"},
    {SYS_newfstatat, "looks up a file"},
    {SYS_close, "closes", First::descriptor},
    {SYS_munmap, "unmaps memory"},
#ifdef SYS_poll
    {SYS_poll, "waits for", First::poll_set},
    {SYS_select, "waits for events (select)"},
    {SYS_epoll_wait, "waits for events (epoll)"},
    {SYS_pause, "waits for a signal"},
    {SYS_open, "opens a file"},
    {SYS_stat, "looks up a file"},
    {SYS_vfork, "waits for a child process to execute a program"},
#endif
};

template <class T>
std::optional<T> number_in(std::string_view text, int base) {
  T value{};
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "10.0.0.2:4711" from "0200000A:1267": words of the address as the machine stores them, the port as a number.
std::string read_address(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto port = colon == std::string_view::npos ? std::nullopt : number_in<unsigned>(text.substr(colon + 1), 16);
  if (!port || (colon != 8 && colon != 32)) return {};
  std::array<std::uint32_t, 4> words{};
  for (std::size_t i = 0; i < colon / 8; ++i)
    words[i] = number_in<std::uint32_t>(text.substr(i * 8, 8), 16).value_or(0);
  if (*port == 0 && std::all_of(words.begin(), words.end(), [](std::uint32_t word) { return word == 0; })) return {};
  const bool mapped = colon == 32 && words[0] == 0 && words[1] == 0 && words[2] == htonl(0xffff);
  const bool is_v6 = colon == 32 && !mapped;
  char address[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(is_v6 ? AF_INET6 : AF_INET, mapped ? words.data() + 3 : words.data(), address, sizeof address);
  return is_v6 ? concat("[", address, "]:", *port) : concat(address, ":", *port);
}

bool is_socket(std::string_view link) { return link.starts_with("socket:["); }

std::string link_of(pid_t pid, std::uint64_t fd) {
  char path[PATH_MAX];
  const ssize_t size = ::readlink(concat("/proc/", pid, "/fd/", static_cast<int>(fd)).c_str(), path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : std::string();
}

/// "/mnt/x", "10.0.0.2:4711", "a pipe", "a Unix socket".
std::string describe_descriptor(const std::string& link, pid_t pid) {
  constexpr std::size_t max_table = std::size_t{4} << 20U;
  if (link.empty()) return "a descriptor";
  if (link.starts_with("pipe:")) return "a pipe";
  if (!is_socket(link)) return link;
  const std::string_view inode = std::string_view(link).substr(8, link.size() - 9);
  for (const char* table : {"tcp", "tcp6"}) {
    const auto text = read_small_file(concat("/proc/", pid, "/net/", table), max_table);
    if (std::string peer = text ? find_tcp_peer(*text, inode) : std::string(); !peer.empty()) return peer;
  }
  return "a socket";
}

/// The descriptor that a poll is about if it is only one.
std::optional<int> only_polled(const SystemCall& call, const Memory* memory) {
  if (memory == nullptr || call.arguments[1] != 1) return std::nullopt;
  const auto polled = memory->get<struct pollfd>(call.arguments[0]);
  return polled ? std::optional(polled->fd) : std::nullopt;
}

}  // namespace

std::optional<SystemCall> parse_system_call(std::string_view line) {
  const std::vector<std::string> words = split(line, ' ');
  SystemCall call;
  const std::size_t whole = 3 + call.arguments.size();
  constexpr std::size_t without_arguments = 3;  // "-1 SP PC"
  const auto number = number_in<long>(words[0], 10);
  if (!number || (words.size() != whole && words.size() != without_arguments)) return std::nullopt;
  call.number = *number;
  const auto word = [&](std::size_t at) { return number_in<std::uint64_t>(words[at], 16).value_or(0); };
  for (std::size_t i = 0; i < call.arguments.size() && words.size() == whole; ++i) call.arguments[i] = word(i + 1);
  call.stack_pointer = word(words.size() - 2);
  call.program_counter = word(words.size() - 1);
  return call;
}

std::string find_tcp_peer(std::string_view table, std::string_view inode) {
  const std::string word = concat(" ", inode, " ");
  for (std::size_t at = table.find(word); at != std::string_view::npos; at = table.find(word, at + 1)) {
    const std::size_t begin = table.rfind('\n', at) + 1;
    std::vector<std::string> words = split(table.substr(begin, table.find('\n', at) - begin), ' ');
    std::erase(words, "");
    constexpr std::size_t own_at = 1;
    constexpr std::size_t peer_at = 2;
    constexpr std::size_t inode_at = 9;
    if (words.size() <= inode_at || words[inode_at] != inode) continue;
    if (std::string peer = read_address(words[peer_at]); !peer.empty()) return peer;
    const std::string own = read_address(words[own_at]);
    return own.empty() ? own : "*" + own.substr(own.rfind(':'));
  }
  return {};
}

Activity describe_system_call(const SystemCall& call, pid_t pid, const Memory* memory) {
  const auto* known = std::find_if(std::begin(known_calls), std::end(known_calls),
                                   [&](const Known& one) { return one.number == call.number; });
  if (call.number < 0) return {"is in the kernel", false, false};
  if (known == std::end(known_calls)) return {concat("is in system call ", call.number), false, false};
  Activity activity{std::string(known->text), false, call.number == SYS_wait4 || call.number == SYS_waitid};
  std::optional<std::uint64_t> fd;
  if (known->first == First::descriptor) fd = call.arguments[0];
  if (known->first == First::poll_set) fd = only_polled(call, memory);
  if (fd) {
    const std::string link = link_of(pid, *fd);
    activity.on_socket = is_socket(link);
    activity.text += " " + describe_descriptor(link, pid);
  } else if (known->first == First::poll_set) {
    activity.text += " events (poll)";
  }
  return activity;
}

}  // namespace ddrun::inspect
