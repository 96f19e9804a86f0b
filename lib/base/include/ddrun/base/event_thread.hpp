#pragma once

#include <sys/epoll.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// A thread that no signal of the process ever lands on, not even in its first moment, called `name` (15 letters at
/// most) in what shows threads. Fails with `unavailable` where the system has no more threads to give.
[[nodiscard]] Result<std::thread> start_thread_signals_blocked(const char* name, std::function<void()> run);

/// A thread of a server: it waits for events of descriptors, level-triggered, by epoll(7), and in between does what
/// other threads ask of it, so that what it works on needs no lock. The loop itself is its owner's.
class EventThread {
 public:
  /// Of the event that says that a thread asks for something; the owner hands it to answer().
  static constexpr std::uint64_t wakeup_token = 0;

  /// Once, before anything else. Fails with errno's words after `what`, as `unavailable`.
  [[nodiscard]] Result<void> open(const char* what);
  /// `name` as for start_thread_signals_blocked(). `run` returns when the thread is to end.
  [[nodiscard]] Result<void> start(const char* name, std::function<void()> run);
  /// Whether the thread runs and is to be joined.
  [[nodiscard]] bool started() const { return thread_.joinable(); }
  void join() { thread_.join(); }

  /// For other threads: `what` is done by the thread before this returns. One after the other.
  void call(const std::function<void()>& what);

  // On the thread, or before it starts.

  /// EPOLL_CTL_ADD, MOD or DEL; false and errno if it fails. `token` must not be that above.
  [[nodiscard]] bool watch(int operation, int fd, std::uint32_t events, std::uint64_t token) const;
  void forget(int fd) const;
  /// Blocks for `timeout` milliseconds at most; -1: without end. How many of `events` are filled, -1 and errno if none
  /// could be.
  [[nodiscard]] int wait(std::span<epoll_event> events, int timeout) const;
  void run_pending_call();

 private:
  UniqueFd epoll_;
  UniqueFd wakeup_;
  std::thread thread_;
  std::mutex call_mutex_;  ///< one at a time
  std::mutex mutex_;       ///< of what follows
  const std::function<void()>* pending_ = nullptr;
  std::condition_variable done_;
};

}  // namespace ddrun
