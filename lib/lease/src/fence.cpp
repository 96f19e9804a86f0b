#include "ddrun/lease/fence.hpp"

#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ddrun::lease {

namespace {

using boost::system::error_code;

timespec to_timespec(FenceClock::duration duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds.count());
  time.tv_nsec = static_cast<long>((duration - seconds).count());
  return time;
}

}  // namespace

FenceClock::time_point FenceClock::now() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

/// Outlives the fence while an operation is pending.
struct Fence::Timer : std::enable_shared_from_this<Timer> {
  Timer(const boost::asio::any_io_executor& executor, std::function<void()> on_expired_callback)
      : descriptor(executor), on_expired(std::move(on_expired_callback)) {}

  void wait() {
    descriptor.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const error_code& ec) {
                            if (ec || !self->on_expired) return;
                            std::uint64_t times = 0;
                            const bool expired = ::read(self->descriptor.native_handle(), &times, sizeof times) > 0;
                            const auto callback = self->on_expired;
                            self->wait();
                            if (expired) callback();
                          });
  }

  boost::asio::posix::stream_descriptor descriptor;
  std::function<void()> on_expired;
};

Result<std::unique_ptr<Fence>> Fence::make(const boost::asio::any_io_executor& executor,
                                           std::function<void()> on_expired) {
  int fd = ::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd < 0 && errno == EINVAL) fd = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd < 0) return fail_errno(Errc::unavailable, "no timer for the lease", errno);
  auto timer = std::make_shared<Timer>(executor, std::move(on_expired));
  error_code ec;
  timer->descriptor.assign(fd, ec);
  if (ec) {
    ::close(fd);
    return fail(Errc::unavailable, "no timer for the lease: " + ec.message(), ec);
  }
  timer->wait();
  return std::unique_ptr<Fence>(new Fence(std::move(timer)));
}

Fence::~Fence() {
  timer_->on_expired = nullptr;
  error_code ignored;
  timer_->descriptor.close(ignored);
}

void Fence::renewed(FenceClock::time_point sent, Milliseconds ttl) {
  until_ = std::max(until_.load(), sent + (ttl - fence_margin(ttl)));
  arm();
}

void Fence::drop() {
  until_ = FenceClock::time_point{};
  arm();
}

Milliseconds Fence::remaining() const {
  if (!is_held()) return Milliseconds{0};
  return std::chrono::duration_cast<Milliseconds>(until_.load() - FenceClock::now());
}

void Fence::arm() {
  itimerspec when{};
  const FenceClock::time_point until = until_;
  if (until != FenceClock::time_point{}) {
    // Not 0, which would disarm it. Relative, which works for both clocks.
    when.it_value = to_timespec(std::max<FenceClock::duration>(until - FenceClock::now(), std::chrono::nanoseconds(1)));
  }
  ::timerfd_settime(timer_->descriptor.native_handle(), 0, &when, nullptr);
}

}  // namespace ddrun::lease
