#include "disk_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "ddrun/base/event_thread.hpp"

namespace ddrun::remote {

static void read_into(int pipe, int file) {
  std::array<char, 32 << 10> chunk;  // NOLINT: written by read
  for (;;) {
    const ssize_t n = ::read(file, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || !write_all(pipe, chunk.data(), static_cast<std::size_t>(n))) return;
  }
}

bool is_file(int fd) {
  struct statx info {};
  return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) == 0 && S_ISREG(info.stx_mode);
}

Result<UniqueFd> read_by_thread(int file) {
  auto pipe = make_pipe();
  if (!pipe) return tl::unexpected(std::move(pipe.error()));
  // Not both ends: the thread waits for room.
  if (::fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail_errno(Errc::unavailable, "cannot change a pipe", errno);
  }
  auto end = std::make_shared<UniqueFd>(std::move(pipe->write));
  auto thread = start_quiet_thread("ddrun-input", [end, file] {
    read_into(end->get(), file);
    end->reset();
  });
  if (!thread) return tl::unexpected(std::move(thread.error()));
  thread->detach();
  return std::move(pipe->read);
}

}  // namespace ddrun::remote
