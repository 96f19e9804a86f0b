#pragma once

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker_streams.hpp"

namespace ddrun::logs {

/// Waits until workers' streams are at their end and the consoles' queues are empty. Used on the executor's thread
/// only; never blocks. No callback comes after its destruction.
class FlushWait {
 public:
  /// Both are borrowed.
  FlushWait(boost::asio::any_io_executor executor, const Consoles& consoles, WorkerStreams& streams)
      : consoles_(consoles), streams_(streams), timer_(std::move(executor)) {}

  /// Calls `done`, never from within, once the queues are empty and, `for_attempt`, all streams are closed.
  void add(bool for_attempt, std::function<void()> done) {
    waiters_.push_back({for_attempt, std::move(done)});
    for (const auto& console : consoles_) {
      console->release();
      console->flush_now();
    }
    check();
    if (waiters_.empty()) return;
    if (aborted_) return abort();
    if (timeout_) watch_progress();
  }

  /// To be called when a queue has run empty and when the last stream is closed.
  void check() {
    if (waiters_.empty() || !queues_empty()) return;
    for (Waiter& waiter : std::exchange(waiters_, {})) {
      if (!waiter.for_attempt || streams_.open_count() == 0) finish(std::move(waiter));
      else waiters_.push_back(std::move(waiter));
    }
  }

  /// Bounds the waits: abort() when no console has taken a byte for `timeout`.
  void set_timeout(Milliseconds timeout) {
    if (std::exchange(timeout_, timeout) || waiters_.empty()) return;
    watch_progress();
  }

  /// Ends these waits and all later ones.
  void abort() {
    aborted_ = true;
    timer_.cancel();
    if (std::ranges::any_of(waiters_, &Waiter::for_attempt)) streams_.close_all();
    for (Waiter& waiter : std::exchange(waiters_, {})) finish(std::move(waiter));
  }

  /// Drops what waits without a callback.
  void cancel() {
    waiters_.clear();
    timer_.cancel();
  }

  [[nodiscard]] bool is_waiting() const { return !waiters_.empty(); }
  [[nodiscard]] bool queues_empty() const {
    return std::ranges::all_of(consoles_, [](const auto& console) { return console->console().queued() == 0; });
  }

 private:
  struct Waiter {
    bool for_attempt;
    std::function<void()> done;
  };

  [[nodiscard]] std::uint64_t written_bytes() const {
    std::uint64_t total = 0;
    for (const auto& console : consoles_) total += console->console().written_bytes();
    return total;
  }

  /// The timeout begins again with each byte written: a slow reader gets everything.
  void watch_progress() {
    timer_.expires_after(*timeout_);
    timer_.async_wait([this, alive = std::weak_ptr(alive_), before = written_bytes()](const auto& cancelled) {
      if (cancelled || alive.expired() || waiters_.empty()) return;
      if (written_bytes() == before) abort();
      else watch_progress();
    });
  }

  void finish(Waiter waiter) {
    boost::asio::post(timer_.get_executor(), [alive = std::weak_ptr(alive_), done = std::move(waiter.done)] {
      if (!alive.expired()) done();
    });
  }

  const Consoles& consoles_;
  WorkerStreams& streams_;
  boost::asio::steady_timer timer_;
  std::vector<Waiter> waiters_;
  std::optional<Milliseconds> timeout_;
  bool aborted_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ddrun::logs
