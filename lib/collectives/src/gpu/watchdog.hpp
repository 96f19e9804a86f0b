#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// A thread that ends the owner's calls of a library that have no time limit of their own: at the call's deadline or on
/// an asynchronous error it aborts. It polls, so arm() and disarm() cost some ten nanoseconds each.
///
/// The owner's thread, which called start(), calls everything here; the actions run on the watchdog's thread. A
/// last action that does not return is left behind with its thread, so it holds what it uses by shared_ptr.
class Watchdog {
 public:
  using AsyncError = std::function<std::optional<Error>()>;
  using Action = std::function<void()>;

  /// `async_error` is called only between arm() and disarm(), never while the owner is in either; it must not block.
  /// `abort` is called at most once, last. Fails with `unavailable` if there can be no thread.
  [[nodiscard]] static Result<std::unique_ptr<Watchdog>> start(AsyncError async_error, Action abort);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  /// Before a call that may block. Not after an abort.
  void arm(Deadline deadline);
  /// After it. The cause if the watchdog has begun to abort: `timeout`, or what async_error() returned.
  [[nodiscard]] std::optional<Error> disarm();

  /// Runs `last` on the watchdog's thread, or waits for an abort that has begun. False if it has not returned within
  /// `limit`; it is then left behind.
  [[nodiscard]] bool end(Action last, Milliseconds limit);

 private:
  enum class State : unsigned char {
    idle,    ///< the owner is in no call
    armed,   ///< the owner is in a call
    ending,  ///< the last action is due or running
    ended,   ///< it has returned
  };
  struct Shared;

  explicit Watchdog(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void assert_owner() const;

  std::shared_ptr<Shared> shared_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::thread thread_;
};

}  // namespace ddrun::collectives
