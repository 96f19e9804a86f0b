#pragma once

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "agent_link.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"

// What the link's thread does for an owner whose thread may be blocked by a file or terminal.
namespace ddrun::rendezvous {

/// Kills this node's workers if the owner, which was ordered to stop them, has not done so in time.
class WorkerKiller : public std::enable_shared_from_this<WorkerKiller> {
 public:
  /// `kill` kills once, and returns true if there were any.
  WorkerKiller(boost::asio::io_context& context, std::function<bool()> kill)
      : timer_(context), kill_(std::move(kill)) {}

  void arm(Milliseconds grace, Clock::time_point since) {
    const auto at = since + grace + shutdown::owner_margin;
    if (kill_at_ && *kill_at_ <= at) return;
    kill_at_ = at;
    kill_at(at, max_kills);
  }
  void disarm() {
    kill_at_.reset();
    timer_.cancel();
  }

 private:
  static constexpr Milliseconds kill_interval{20};
  static constexpr int max_kills = 50;

  /// Repeated while there are any: a worker may fork while others are killed.
  void kill_at(Clock::time_point at, int times) {
    timer_.expires_at(at);
    timer_.async_wait([self = shared_from_this(), times](const boost::system::error_code& ec) {
      if (ec || !self->kill_at_) return;
      if (self->kill_() && times > 0) return self->kill_at(Clock::now() + kill_interval, times - 1);
      self->kill_at_.reset();  // another order may come
    });
  }

  boost::asio::steady_timer timer_;
  std::function<bool()> kill_;
  std::optional<Clock::time_point> kill_at_;
};

/// Measures how long the owner's thread has been blocked: a probe that it has not run yet shows it.
class StallProbe {
 public:
  explicit StallProbe(boost::asio::any_io_executor owner) : owner_(std::move(owner)) {}

  /// 0: it has run the last probe, and gets another one.
  Milliseconds measure() {
    const auto now = Clock::now();
    if (is_pending_->exchange(true)) return std::chrono::duration_cast<Milliseconds>(now - probed_at_);
    probed_at_ = now;
    boost::asio::post(owner_, [is_pending = is_pending_] { *is_pending = false; });
    return Milliseconds{0};
  }

 private:
  boost::asio::any_io_executor owner_;
  std::shared_ptr<std::atomic<bool>> is_pending_ = std::make_shared<std::atomic<bool>>(false);
  Clock::time_point probed_at_{};
};

/// Both, for a link on `context` whose owner is on `executor`. `kill_workers` as in RendezvousOptions.
inline void serve_blocked_owner(AgentLinkOptions& link, boost::asio::io_context& context,
                                const boost::asio::any_io_executor& executor, std::function<bool()> kill_workers,
                                Milliseconds grace, Milliseconds lost_sight_grace) {
  link.stalled = [probe = std::make_shared<StallProbe>(executor)] { return probe->measure(); };
  if (!kill_workers) return;
  const auto killer = std::make_shared<WorkerKiller>(context, std::move(kill_workers));
  link.on_stop_order = [killer, grace, lost_sight_grace](Grace order, Clock::time_point since) {
    const auto longest = order == Grace::none ? Milliseconds{0} : order == Grace::lost_sight ? lost_sight_grace : grace;
    killer->arm(longest, since);
  };
  link.on_workers_stopped = [killer] { killer->disarm(); };
}

}  // namespace ddrun::rendezvous
