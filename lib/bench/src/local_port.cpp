#include "local_port.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::bench {

namespace {

using namespace std::chrono_literals;

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Result<Name> name_of(const std::string& job) {
  Name name;
  name.address.sun_family = AF_UNIX;
  const std::string text = concat("ddrun-allreduce/", geteuid(), '/', job);
  // The zero byte in front makes it abstract.
  if (text.size() + 1 > sizeof(name.address.sun_path)) {
    return fail(Errc::invalid_argument, concat("'", job, "' is too long for a job's name"));
  }
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

bool is_same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

bool wait_readable(int fd, Deadline deadline) {
  while (true) {
    const int left = poll_timeout(deadline);
    pollfd one{fd, POLLIN, 0};
    const int ready = poll(&one, 1, left);
    if (ready > 0) return true;
    if (left == 0 || (ready < 0 && errno != EINTR)) return false;
  }
}

/// As much as a message of this protocol is: it comes in one piece. False if it does not.
template <class Message>
bool receive(int fd, Message& message, Deadline deadline) {
  return wait_readable(fd, deadline) && recv(fd, &message, sizeof(message), MSG_DONTWAIT) == sizeof(message);
}

UniqueFd make_socket() { return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

}  // namespace

Result<PortTeller> PortTeller::open(const std::string& job) {
  const auto name = name_of(job);
  if (!name) return tl::unexpected(name.error());
  UniqueFd listener = make_socket();
  if (!listener || bind(listener.get(), name->get(), name->length) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    return fail_errno(Errc::unavailable, concat("no rendezvous with the other ranks of job ", job, " on this machine"),
                      errno);
  }
  return PortTeller(std::move(listener));
}

Result<void> PortTeller::tell(std::uint16_t port, int size, Deadline deadline) const {
  std::vector<int> missing;
  for (int rank = 1; rank < size; ++rank) missing.push_back(rank);
  while (!missing.empty() && wait_readable(listener_.get(), deadline)) {
    const UniqueFd caller(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    int rank = 0;
    // One that says nothing must not take all the time of those behind it.
    if (!caller || !is_same_user(caller.get()) || !receive(caller.get(), rank, std::min(deadline, Clock::now() + 2s)) ||
        send(caller.get(), &port, sizeof(port), MSG_NOSIGNAL) != sizeof(port)) {
      continue;
    }
    std::erase(missing, rank);
  }
  if (missing.empty()) return {};
  return fail(Errc::timeout, concat(name_ranks(missing), " did not come in time"));
}

Result<std::uint16_t> ask_port(const std::string& job, int rank, Deadline deadline) {
  const auto name = name_of(job);
  if (!name) return tl::unexpected(name.error());
  do {
    const UniqueFd fd = make_socket();
    if (!fd) return fail_errno(Errc::unavailable, "cannot make a local socket", errno);
    if (connect(fd.get(), name->get(), name->length) == 0) {
      if (!is_same_user(fd.get())) {
        return fail(Errc::unavailable, concat("another user pretends to be rank 0 of job ", job, " on this machine"));
      }
      std::uint16_t port = 0;
      if (send(fd.get(), &rank, sizeof(rank), MSG_NOSIGNAL) == sizeof(rank) && receive(fd.get(), port, deadline)) {
        return port;
      }
    }
    // No system call tells when a name comes into being.
    const timespec pause{0, 5'000'000};
    nanosleep(&pause, nullptr);
  } while (Clock::now() < deadline);
  return fail(Errc::timeout, "rank 0 did not come in time");
}

namespace {

bool has(pid_t id, const std::string& entry) {
  // Unreadable: of another user, so no wrapper of ours.
  const auto environment = read_small_file(concat("/proc/", id, "/environ"), 16U << 20U);
  if (!environment) return false;
  const std::vector<std::string> entries = split(*environment, '\0');
  return std::find(entries.begin(), entries.end(), entry) != entries.end();
}

}  // namespace

std::string launcher_process(const std::string& variable, const std::string& value) {
  const std::string entry = concat(variable, '=', value);
  const auto parent_of = [](pid_t id) {
    const auto stat = read_process_stat(id);
    return stat ? stat->parent : 0;
  };
  pid_t id = parent_of(getpid());
  while (id > 1 && has(id, entry)) id = parent_of(id);
  const auto stat = id > 0 ? read_process_stat(id) : std::nullopt;
  return stat ? concat(id, '.', stat->born) : std::string();
}

}  // namespace ddrun::bench
