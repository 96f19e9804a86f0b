#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// Polls `done`, such as the state of a GPU's work. Spins at first, as most waits are short, then sleeps up to half a
/// millisecond. Calls `cancel_check` about once a millisecond; an error from it ends the wait. They return Result<bool>
/// and Result<void>. Fails with `timeout`, naming `what`.
template <class Done, class CancelCheck>
[[nodiscard]] Result<void> wait_until(Done done, CancelCheck cancel_check, Deadline deadline, const std::string& what) {
  using std::chrono::microseconds;
  constexpr microseconds spin_time{200};
  constexpr microseconds max_pause{500};
  constexpr microseconds cancel_check_interval{1000};
  const auto start = Clock::now();
  auto next_cancel_check = start + cancel_check_interval;
  microseconds pause{10};
  while (true) {
    const Result<bool> is_done = done();
    if (!is_done) return tl::unexpected(is_done.error());
    if (*is_done) return {};
    const auto now = Clock::now();
    if (now >= deadline) return fail(Errc::timeout, what + " did not end in time");
    if (now >= next_cancel_check) {
      if (Result<void> proceed = cancel_check(); !proceed) return proceed;
      next_cancel_check = now + cancel_check_interval;
    }
    if (now - start < spin_time) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, max_pause);
  }
}

}  // namespace ddrun::collectives
