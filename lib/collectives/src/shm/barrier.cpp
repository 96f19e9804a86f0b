#include "shm/barrier.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

using namespace std::chrono_literals;

// Waking a sleeper on another processor costs 15 to 40 µs, so spinning this long never wastes much.
constexpr std::chrono::nanoseconds max_spin = 40us;
// After a failed spin the peer probably needs this processor, so the next spin is half as long.
constexpr std::chrono::nanoseconds min_spin = 1us;
// Yielding reaches a peer on the same processor within a microsecond or two and costs other processors nothing.
constexpr int min_yields = 30;
constexpr std::chrono::nanoseconds yield_time = 100us;
// Time for one turn each of two ranks that alternate on a processor.
constexpr std::chrono::nanoseconds handoff_spin = 3us;

void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `word` changes, the deadline (absolute CLOCK_MONOTONIC, as steady_clock) or a spurious wakeup; the
/// caller checks again in any case.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline) {
  const auto since = deadline.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
  timespec until{};
  until.tv_sec = static_cast<time_t>(seconds.count());
  until.tv_nsec = static_cast<long>(std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count());
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

/// Numbered as in Line::processor.
std::int32_t current_processor() { return sched_getcpu() + 1; }

void record_processor(Line& line) {
  const std::int32_t processor = current_processor();
  // Waiting peers have cached the old value, so an unchanged store is not free.
  if (line.processor.load(std::memory_order_relaxed) == processor) return;
  line.processor.store(processor, std::memory_order_relaxed);
}

}  // namespace

void wake_all(WaitQueue& queue) {
  queue.wakeups.fetch_add(1);
  if (queue.sleepers.load() != 0) syscall(SYS_futex, &queue.wakeups, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void report_lost(Control& control, int rank) {
  std::uint32_t none = 0;
  control.lost.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
  wake_all(control.queue);
}

std::optional<Error> lost_rank(const Control& control) {
  const std::uint32_t lost = control.lost.load();
  if (lost == 0) return std::nullopt;
  return Error{Errc::connection_lost, concat("rank ", lost - 1, " is gone")};
}

ShmBarrier::ShmBarrier(Control& control, Line* lines, int rank, int size, bool oversubscribed)
    : control_(control),
      lines_(lines),
      rank_(rank),
      size_(size),
      oversubscribed_(oversubscribed),
      spin_time_(max_spin) {}

bool ShmBarrier::has_arrived(int rank) const { return line(rank, phase_).phase.load() == phase_; }

int ShmBarrier::find_missing() {
  while (first_missing_ < size_ && has_arrived(first_missing_)) ++first_missing_;
  return first_missing_;
}

bool ShmBarrier::all_arrived() {
  // The counter wraps around at 2^32; only the difference counts.
  if (oversubscribed_) return static_cast<std::int32_t>(control_.arrivals.load() - expected_arrivals()) >= 0;
  return find_missing() == size_;
}

bool ShmBarrier::spin(std::chrono::nanoseconds duration) {
  const auto until = Clock::now() + duration;
  do {
    for (int i = 0; i < 8; ++i) {
      if (all_arrived()) return true;
      cpu_relax();
    }
  } while (Clock::now() < until);
  return false;
}

bool ShmBarrier::must_yield() {
  const std::int32_t processor = current_processor();
  for (int rank = find_missing(); rank < size_; ++rank) {
    if (!has_arrived(rank) && line(rank, phase_ - 1).processor.load(std::memory_order_relaxed) == processor)
      return true;
  }
  return false;
}

bool ShmBarrier::spin_then_yield() {
  if (all_arrived()) return true;  // the last rank to arrive learns nothing about spinning
  if (!oversubscribed_) {
    if (spin(spin_time_)) {
      spin_time_ = std::min(2 * spin_time_, max_spin);
      return true;
    }
    spin_time_ = std::max(spin_time_ / 2, min_spin);
  }
  const auto until = Clock::now() + yield_time;
  for (int i = 0; i < min_yields || (!oversubscribed_ && Clock::now() < until); ++i) {
    if (all_arrived()) return true;
    // While all missing ranks run elsewhere, yielding to a rank that waits too would gain nothing.
    if (oversubscribed_ && !must_yield() && spin(handoff_spin)) return true;
    sched_yield();
  }
  return all_arrived();
}

Result<void> ShmBarrier::sleep(Deadline deadline) {
  // Sequentially consistent on both sides: either the arriving rank sees a sleeper, or the sleeper sees the arrival.
  control_.queue.sleepers.fetch_add(1);
  Result<void> result;
  while (true) {
    const std::uint32_t expected = control_.queue.wakeups.load();
    auto lost = lost_rank(control_);
    if (all_arrived()) break;
    if (lost) {
      result = tl::unexpected(std::move(*lost));
      break;
    }
    if (Clock::now() >= deadline) {
      result = timeout_error();
      break;
    }
    futex_wait(control_.queue.wakeups, expected, deadline);
  }
  control_.queue.sleepers.fetch_sub(1);
  return result;
}

Result<void> ShmBarrier::wait(Deadline deadline) {
  ++phase_;
  first_missing_ = 0;
  if (oversubscribed_) record_processor(line(rank_, phase_));
  line(rank_, phase_).phase.store(phase_);
  if (oversubscribed_) {
    if (control_.arrivals.fetch_add(1) + 1 == expected_arrivals()) {
      wake_all(control_.queue);
      return {};
    }
  } else if (control_.queue.sleepers.load() != 0) {
    wake_all(control_.queue);
  }
  if (spin_then_yield()) return {};
  return sleep(deadline);
}

tl::unexpected<Error> ShmBarrier::timeout_error() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_arrived(rank)) missing.push_back(rank);
  }
  return fail(Errc::timeout, describe_missing(missing));
}

Result<void> PeerWatch::start(Control& control, const std::vector<Peer>& peers) {
  for (const Peer& peer : peers) {
    if (peer.pid == getpid()) continue;
    Watched one{peer, UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0))), 0};
    const int error = one.pidfd ? 0 : errno;
    if (error != 0) {
      // Sandboxes answer EPERM where old kernels answer ENOSYS.
      const auto stat = error == ENOSYS || error == EPERM ? read_process_stat(peer.pid) : std::nullopt;
      if (!stat) return fail_errno(Errc::unavailable, concat("cannot watch rank ", peer.rank, " (pidfd_open)"), error);
      one.start_time = stat->start_time;
    }
    watched_.push_back(std::move(one));
    if (error != 0) break;
  }
  if (watched_.empty()) return {};
  stop_ = TRY(make_pipe());
  thread_ = TRY(start_thread_signals_blocked("peer-watch", [this, &control] { run(control); }));
  return {};
}

PeerWatch::~PeerWatch() {
  if (!thread_.joinable()) return;
  stop_.write.reset();
  thread_.join();
}

void PeerWatch::run(Control& control) {
  const auto has_exited = [](const Watched& one) {
    const auto stat = read_process_stat(one.peer.pid);
    return !stat || stat->start_time != one.start_time || stat->state == 'Z' || stat->state == 'X';
  };
  std::vector<pollfd> events{{stop_.read.get(), POLLIN, 0}};
  for (const Watched& one : watched_) events.push_back({one.pidfd.get(), POLLIN, 0});
  const int timeout = watched_.back().pidfd ? -1 : 100;
  while (true) {
    if (poll(events.data(), events.size(), timeout) < 0 && errno == EINTR) continue;
    if (events[0].revents != 0) return;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      const Watched& one = watched_[i];
      if (one.pidfd ? events[i + 1].revents != 0 : has_exited(one)) return report_lost(control, one.peer.rank);
    }
  }
}

}  // namespace ddrun::collectives
