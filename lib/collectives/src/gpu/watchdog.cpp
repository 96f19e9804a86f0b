#include "gpu/watchdog.hpp"

#include <cassert>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "ddrun/base/event_thread.hpp"

namespace ddrun::collectives {

namespace {

/// How late an abort may be. Often enough for deadlines of seconds, too rare to disturb a measurement.
constexpr Milliseconds watchdog_interval{50};

}  // namespace

/// Everything is guarded by the mutex. The last action runs without it.
struct Watchdog::Shared {
  void run();

  AsyncError async_error;
  Action abort;
  std::mutex mutex{};
  std::condition_variable changed{};
  State state = State::idle;
  Deadline deadline{};
  std::optional<Error> cause{};
  Action last{};
};

void Watchdog::Shared::run() {
  std::unique_lock lock(mutex);
  while (state != State::ending) {
    changed.wait_for(lock, watchdog_interval);
    if (state != State::armed) continue;
    // An exited peer explains a late call, so it is looked for first.
    cause = async_error();
    if (!cause && Clock::now() >= deadline) cause = Error{Errc::timeout, "a call did not return in time"};
    if (!cause) continue;
    last = abort;
    state = State::ending;
  }
  lock.unlock();
  if (last) last();
  lock.lock();
  state = State::ended;
  changed.notify_all();
}

Result<std::unique_ptr<Watchdog>> Watchdog::start(AsyncError async_error, Action abort) {
  const std::shared_ptr<Shared> shared(new Shared{std::move(async_error), std::move(abort)});
  std::unique_ptr<Watchdog> made(new Watchdog(shared));
  made->thread_ = TRY(start_thread_signals_blocked("nccl-watchdog", [shared] { shared->run(); }));
  return made;
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  const bool is_stuck = shared_->state == State::ending;
  if (shared_->state == State::idle) shared_->state = State::ending;
  shared_->async_error = nullptr;
  shared_->changed.notify_all();
  lock.unlock();
  if (is_stuck) thread_.detach();
  else thread_.join();
}

void Watchdog::assert_owner() const { assert(std::this_thread::get_id() == owner_); }

void Watchdog::arm(Deadline deadline) {
  assert_owner();
  const std::lock_guard lock(shared_->mutex);
  assert(shared_->state == State::idle);
  shared_->deadline = deadline;
  shared_->state = State::armed;
}

std::optional<Error> Watchdog::disarm() {
  assert_owner();
  const std::lock_guard lock(shared_->mutex);
  if (shared_->state != State::armed) return shared_->cause;
  shared_->state = State::idle;
  return std::nullopt;
}

bool Watchdog::end(Action last, Milliseconds limit) {
  assert_owner();
  std::unique_lock lock(shared_->mutex);
  assert(shared_->state != State::armed);
  if (shared_->state == State::idle) {
    shared_->last = std::move(last);
    shared_->state = State::ending;
    shared_->changed.notify_all();
  }
  return shared_->changed.wait_for(lock, limit, [&] { return shared_->state == State::ended; });
}

}  // namespace ddrun::collectives
