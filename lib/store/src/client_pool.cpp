#include "client_pool.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::store {

/// The one that must go first, else any.
std::unique_ptr<ClientConnection> TcpClient::Pool::next_idle() {
  auto it = std::find_if(idle_.begin(), idle_.end(), [](const auto& idle) { return idle->unconfirmed(); });
  if (it == idle_.end()) it = idle_.end() - 1;
  auto connection = std::move(*it);
  idle_.erase(it);
  return connection;
}

Result<TcpClient::Pool::Lease> TcpClient::Pool::take(Deadline deadline) {
  // Cancelling wakes nobody here, since a signal handler may not: look again after this time.
  constexpr std::chrono::milliseconds look_again{20};
  std::unique_lock lock(mutex_);
  if (user_ == std::thread::id()) user_ = std::this_thread::get_id();
  shared_ = shared_ || user_ != std::this_thread::get_id();
  for (;;) {
    if (cancelled_.load(std::memory_order_acquire)) return cancelled();
    if (lost_) return tl::unexpected(*lost_);
    const bool all_free_or_blocked = static_cast<int>(idle_.size()) + blocked_ == open_;
    // One that is in use for a moment may be the one that must go first.
    if (all_free_or_blocked) {
      if (!idle_.empty()) return Lease(*this, next_idle());
      break;
    }
    const auto now = Clock::now();
    if (now >= deadline) {
      return fail(Errc::timeout,
                  concat("other threads kept the client of the store at ", name_, " busy until the deadline"));
    }
    changed_.wait_until(lock, std::min(deadline, now + look_again));
  }
  ++open_;
  lock.unlock();
  auto connection = ClientConnection::open({&server_, 1}, deadline, cancel_event_.get());
  if (connection) return Lease(*this, std::move(*connection));
  lock.lock();
  --open_;
  changed_.notify_all();
  return tl::unexpected(std::move(connection.error()));
}

void TcpClient::Pool::give_back(std::unique_ptr<ClientConnection> connection, bool blocked) {
  const std::lock_guard lock(mutex_);
  if (blocked) --blocked_;
  if (!connection->broken()) {
    idle_.push_back(std::move(connection));
  } else {
    --open_;
    if (options_.reconnect == Reconnect::never && !lost_ && !cancelled_) {
      lost_ = Error{Errc::connection_lost, concat("the connection to the store at ", name_, " was lost before"), {}};
    }
  }
  changed_.notify_all();
}

void TcpClient::Pool::set_blocked(int change) {
  const std::lock_guard lock(mutex_);
  blocked_ += change;
  changed_.notify_all();
}

}  // namespace ddrun::store
