#include "disk_writer.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "ddrun/base/event_thread.hpp"

namespace ddrun::remote {

namespace {

/// At the end a disk that hangs may come back.
constexpr std::chrono::seconds disk_patience{60};

}  // namespace

/// What the thread does.
struct DiskWriter::Work {
  Work(UniqueFd from_pipe, UniqueFd last_bell, int to_file)
      : pipe(std::move(from_pipe)), last(std::move(last_bell)), file(to_file) {}

  void run();
  /// False when there is nothing to read and will not be: the last was announced before.
  [[nodiscard]] bool wait() const;
  /// The bytes that the disk did not take.
  std::size_t put(std::string_view bytes);

  const UniqueFd pipe;
  const UniqueFd last;  ///< readable once all is in the pipe; an end-of-file would need all views of it to be closed
  const int file;
  bool in_lost_line = false;  ///< the thread's: what is left of a line of which a part is lost is left out too
  std::mutex mutex;           ///< of what follows
  std::condition_variable changed;
  std::uint64_t rounds = 0;
  int error = 0;  ///< of the last bytes that were lost
  bool done = false;
};

std::size_t DiskWriter::Work::put(std::string_view bytes) {
  if (in_lost_line) {
    const std::size_t end = bytes.find('\n');
    in_lost_line = end == std::string_view::npos;
    bytes.remove_prefix(in_lost_line ? bytes.size() : end + 1);
  }
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n >= 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    else if (errno != EINTR) break;
  }
  if (!bytes.empty()) in_lost_line = bytes.back() != '\n';
  return bytes.size();
}

bool DiskWriter::Work::wait() const {
  std::array<pollfd, 2> events{{{pipe.get(), POLLIN, 0}, {last.get(), POLLIN, 0}}};
  while (::poll(events.data(), events.size(), -1) < 0) {
    if (errno != EINTR && errno != ENOMEM) return false;
  }
  return (events[0].revents & POLLIN) != 0;
}

void DiskWriter::Work::run() {
  std::array<char, 64 << 10> chunk;  // NOLINT: written by read
  while (wait()) {
    const ssize_t n = ::read(pipe.get(), chunk.data(), chunk.size());
    const bool lost = n > 0 && put({chunk.data(), static_cast<std::size_t>(n)}) > 0;
    const int why = errno;
    const std::scoped_lock lock(mutex);
    if (lost) error = why;
    ++rounds;
    changed.notify_all();
  }
  const std::scoped_lock lock(mutex);
  done = true;
  changed.notify_all();
}

std::unique_ptr<DiskWriter> DiskWriter::start(int file) {
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
  auto pipe = make_pipe();
  UniqueFd last(::eventfd(0, EFD_CLOEXEC));
  if (!pipe || !last) return nullptr;
  auto work = std::make_shared<Work>(std::move(pipe->read), std::move(last), file);
  auto thread = start_quiet_thread("ddrun-disk", [work] { work->run(); });
  if (!thread) return nullptr;
  thread->detach();
  return std::unique_ptr<DiskWriter>(new DiskWriter(std::move(pipe->write), std::move(work)));
}

DiskWriter::~DiskWriter() = default;

std::string DiskWriter::finish() {
  const std::uint64_t one = 1;
  (void)!::write(work_->last.get(), &one, sizeof one);
  std::unique_lock lock(work_->mutex);
  while (!work_->done) {
    const std::uint64_t before = work_->rounds;
    if (!work_->changed.wait_for(lock, disk_patience, [&] { return work_->done || work_->rounds != before; })) {
      return "the disk takes nothing";
    }
  }
  return work_->error == 0 ? std::string() : std::strerror(work_->error);
}

}  // namespace ddrun::remote
