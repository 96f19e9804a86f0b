#include "node_process.hpp"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "frames.hpp"

namespace ddrun::remote {

namespace {

bool read_all(int fd, char* to, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::read(fd, to, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

/// A text behind its size; nothing if the relay has hung up.
std::optional<std::string> read_text(int fd) {
  std::uint32_t size = 0;
  if (!read_all(fd, reinterpret_cast<char*>(&size), sizeof size)) return std::nullopt;  // NOLINT: from this machine
  std::string text(size, '\0');
  if (!read_all(fd, text.data(), text.size())) return std::nullopt;
  return text;
}

/// In the child: waits for its part of the job; nothing if the job ended before it began.
std::optional<Bootstrap> read_bootstrap(int fd) {
  const auto text = read_text(fd);
  if (!text) return std::nullopt;
  auto bootstrap = bootstrap_from_json(*text);
  if (!bootstrap) {
    say_error(bootstrap.error().message);
    return std::nullopt;
  }
  return std::move(*bootstrap);
}

}  // namespace

// One of several hosts is to be missed by the others, not to end the job for all as if the user had said so: a ddrun
// whose first process is killed stops its workers in order and says nothing more to the coordinator.
int signal_for_lost(const Bootstrap& part) { return part.node_count > 1 ? SIGKILL : part.ending_signal; }

Result<NodeProcess> fork_node(const std::function<int(const Bootstrap&, const Home&)>& node_main) {
  auto in = make_pipe();
  auto out = make_pipe();
  auto err = make_pipe();
  auto events = make_pipe();
  auto report = make_pipe();
  std::array<int, 2> pair{};
  if (!in || !out || !err || !events || !report ||
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return fail_errno(Errc::unavailable, "cannot start", errno);
  }
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return fail_errno(Errc::unavailable, "cannot start", errno);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(exit_codes::launcher_failed);
    ::dup2(in->read.get(), STDIN_FILENO);
    ::dup2(out->write.get(), STDOUT_FILENO);
    ::dup2(err->write.get(), STDERR_FILENO);
    for (UniqueFd* fd :
         {&in->read, &in->write, &out->read, &out->write, &err->read, &err->write, &events->read, &report->read, &ours})
      fd->reset();
    const auto bootstrap = read_bootstrap(theirs.get());
    if (bootstrap) ::prctl(PR_SET_PDEATHSIG, signal_for_lost(*bootstrap));
    const Home home(std::move(theirs), std::move(events->write), std::move(report->write));
    ::_exit(bootstrap ? node_main(*bootstrap, home) : exit_codes::launcher_failed);
  }
  return NodeProcess{child,
                     std::move(in->write),
                     std::move(out->read),
                     std::move(err->read),
                     std::move(events->read),
                     std::move(report->read),
                     std::move(ours)};
}

void Home::coordinator_listens(std::uint16_t port) const {
  WipedString bytes;
  append_frame(bytes, FrameType::listening, this_host, std::to_string(port));
  write_all(control_.get(), bytes.data(), bytes.size());
}

std::string Home::read_secret() const { return read_text(control_.get()).value_or(""); }

std::string Home::events_path() const { return concat("/dev/fd/", events_.get()); }
std::string Home::report_path() const { return concat("/dev/fd/", report_.get()); }

}  // namespace ddrun::remote
