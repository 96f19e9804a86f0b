// LD_PRELOAD library that shifts CLOCK_REALTIME by the nanoseconds in the file $DDRUN_TEST_CLOCK (eight bytes, native
// order, read at each call). The kernel's clock is unchanged, so waits until an absolute CLOCK_REALTIME end at once or
// too late.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr std::int64_t second = 1'000'000'000;

const std::atomic<std::int64_t>* map_offset() {
  const char* path = std::getenv("DDRUN_TEST_CLOCK");
  if (path == nullptr) return nullptr;
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* mapped = ::mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<const std::atomic<std::int64_t>*>(mapped);
}

// A function static: time may be read before this library's globals are constructed.
std::int64_t offset() {
  static const std::atomic<std::int64_t>* const shared = map_offset();
  return shared == nullptr ? 0 : shared->load(std::memory_order_relaxed);
}

// Mapped at once, so that a test sees in /proc/PID/maps that it is.
[[maybe_unused]] const std::int64_t at_start = offset();

timespec shifted(clockid_t clock) {
  timespec now{};
  ::syscall(SYS_clock_gettime, clock, &now);
  const std::int64_t whole = now.tv_sec * second + now.tv_nsec + offset();
  now.tv_sec = whole / second;
  now.tv_nsec = whole % second;
  return now;
}

}  // namespace

extern "C" {
int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
    return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  }
  *now = shifted(clock);
  return 0;
}
int gettimeofday(timeval* now, void* zone) noexcept {
  (void)zone;
  const timespec at = shifted(CLOCK_REALTIME);
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* now) noexcept {
  const time_t at = shifted(CLOCK_REALTIME_COARSE).tv_sec;
  if (now != nullptr) *now = at;
  return at;
}
}
