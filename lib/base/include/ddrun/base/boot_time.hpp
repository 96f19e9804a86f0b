#pragma once

#include <sys/timerfd.h>
#include <time.h>

#include <cerrno>
#include <chrono>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// Since the machine's start, suspend included; cannot be set (CLOCK_BOOTTIME).
inline std::chrono::nanoseconds boot_time() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// A non-blocking timerfd of that clock, or of CLOCK_MONOTONIC where there is none. To be set relatively, which works
/// for both. Fails with errno set.
inline UniqueFd make_boot_timer() {
  UniqueFd timer(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer && errno == EINVAL) timer = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  return timer;
}

}  // namespace ddrun
