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

/// Starts a thread with all signals blocked from its first instruction. `name` (15 characters at most) is its name in
/// ps and /proc. Fails with `unavailable` if no thread can be created.
[[nodiscard]] Result<std::thread> start_thread_signals_blocked(const char* name, std::function<void()> run);

/// A server thread on level-triggered epoll(7). Other threads run functions on it by call(), so that its data need no
/// lock. The owner writes the event loop.
class EventThread {
 public:
  /// The token of the event for a pending call(); the owner then calls run_pending_call().
  static constexpr std::uint64_t wakeup_token = 0;

  /// Call once, first. Fails with `unavailable`; the message is `what` and the text of errno.
  [[nodiscard]] Result<void> open(const char* what);
  /// `name` as for start_thread_signals_blocked(). The thread ends when `run` returns.
  [[nodiscard]] Result<void> start(const char* name, std::function<void()> run);
  /// True from start() to join().
  [[nodiscard]] bool started() const { return thread_.joinable(); }
  void join() { thread_.join(); }

  /// Called by other threads: runs `what` on the thread and blocks until it has returned. Concurrent calls are
  /// serialised. Before start() it runs on the caller's, which has to be the only one.
  void call(const std::function<void()>& what);

  // Only on the thread, or before start().

  /// `operation`: EPOLL_CTL_ADD, MOD or DEL; false with errno on failure. `token` must not be wakeup_token.
  [[nodiscard]] bool watch(int operation, int fd, std::uint32_t events, std::uint64_t token) const;
  void forget(int fd) const;
  /// Blocks for at most `timeout` milliseconds; -1: without limit. Returns as epoll_wait(2).
  [[nodiscard]] int wait(std::span<epoll_event> events, int timeout) const;
  void run_pending_call();
  /// Becomes readable when wait() would return an event; borrowed.
  [[nodiscard]] int descriptor() const { return epoll_.get(); }

 private:
  UniqueFd epoll_;
  UniqueFd wakeup_;
  std::thread thread_;
  std::mutex call_mutex_;  ///< serialises call()
  std::mutex mutex_;       ///< protects the members below
  const std::function<void()>* pending_ = nullptr;
  std::condition_variable done_;
};

}  // namespace ddrun
