#include "coordinator_loop.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// For an agent to take what it was told last.
constexpr seconds time_to_be_told{5};
constexpr seconds time_to_stop{1};
/// As long as so many events wait, everybody is heard before anybody is found to be silent, for so long.
constexpr milliseconds longest_without_tick{100};

}  // namespace

Result<void> CoordinatorServer::Loop::start() {
  port_ = listeners_.front().at.port();
  if (auto opened = thread_.open("cannot start the coordinator"); !opened) return opened;
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (!thread_.watch(EPOLL_CTL_ADD, listeners_[i].fd.get(), EPOLLIN, first_listener_token + i)) {
      return fail_errno(Errc::unavailable, "cannot start the coordinator", errno);
    }
  }
  if (!options_.many_jobs) jobs_.try_emplace(std::string(), options_.coordinator);
  return thread_.start("ddrun-coord", [this] { run(); });
}

CoordinatorServer::Loop::~Loop() {
  if (!thread_.started()) return;
  thread_.ask([this] { stop(); });
  thread_.join();
}

CoordinatorServerStats CoordinatorServer::Loop::stats() {
  CoordinatorServerStats stats;
  thread_.ask([&] { stats = collect(); });
  return stats;
}

bool CoordinatorServer::Loop::wait_done(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return done_; };
  if (deadline != Deadline::max()) return is_done_.wait_until(lock, deadline, done);
  is_done_.wait(lock, done);
  return true;
}

CoordinatorServerStats CoordinatorServer::Loop::collect() const {
  CoordinatorServerStats stats = stats_;
  stats.jobs = jobs_.size();
  stats.agents = links_.size() - new_links_;
  stats.greeting = greeting();
  return stats;
}

void CoordinatorServer::Loop::notice(std::uint64_t number, const std::string& text) const {
  if (!options_.on_notice || !worth_telling(number)) return;
  options_.on_notice(number > all_told ? concat(text, " (number ", number, "; not all are shown)") : text);
}

void CoordinatorServer::Loop::run() {
  for (;;) {
    const int count = wait_for_events();
    for (int i = 0; i < count; ++i) on_event(events_[static_cast<std::size_t>(i)]);
    // Who has sent something is heard before anybody is found to be silent.
    if (count < static_cast<int>(events_.size()) || turn_ - last_tick_ > longest_without_tick) on_time();
    settle();
    check_done();
    if (stopping_ && (links_.empty() || now() >= stop_by_)) return;
  }
}

int CoordinatorServer::Loop::wait_for_events() {
  const auto before = Clock::now();
  // What this process did not get to do because it was stopped, in two places: here and since the last turn began.
  const auto gap = [this](Clock::duration late) {
    if (late > options_.coordinator.heartbeat_interval) skipped_ += late;
  };
  gap(before - turn_);
  turn_ = before;
  const auto deadline = next_deadline();
  int timeout = -1;
  if (deadline != Deadline::max()) {
    // Rounded up: a millisecond late rather than a turn for nothing.
    const auto left = std::chrono::ceil<milliseconds>(deadline - now());
    timeout = static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 60'000));
  }
  const int count = thread_.wait(events_, timeout);
  turn_ = Clock::now();
  if (timeout >= 0) gap(turn_ - before - milliseconds(timeout));
  return std::max(count, 0);
}

Deadline CoordinatorServer::Loop::next_deadline() const {
  Deadline first = Deadline::max();
  for (const auto& [name, job] : jobs_) {
    if (const auto wanted = job.coordinator.next_deadline()) first = std::min(first, *wanted);
  }
  if (greeting() > 0) first = std::min(first, to_join_by_.front().first);
  if (!to_leave_by_.empty()) first = std::min(first, to_leave_by_.front().first);
  if (done_by_ && !done_told_) first = std::min(first, *done_by_);
  if (stopping_) first = std::min(first, stop_by_);
  return first;
}

void CoordinatorServer::Loop::on_event(const epoll_event& event) {
  const std::uint64_t token = event.data.u64;
  if (token == EventThread::token) return thread_.answer();
  if (token < first_listener_token + listeners_.size()) return accept_from(listeners_[token - first_listener_token]);
  const LinkId id = token - token_of(0);
  if (const auto found = links_.find(id); found != links_.end()) return on_link(id, found->second, event.events);
  if (const auto found = newcomers_.find(id); found != newcomers_.end()) on_newcomer(id, found->second);
}

void CoordinatorServer::Loop::stop() {
  stopping_ = true;
  stop_by_ = now() + time_to_stop;
  // At once, even if a child that was just cloned still holds copies of the descriptors.
  for (auto& listener : listeners_) {
    thread_.forget(listener.fd.get());
    ::shutdown(listener.fd.get(), SHUT_RDWR);
  }
  while (!newcomers_.empty()) dismiss(newcomers_.begin()->first);
  for (auto& [id, link] : links_) hang_up(id, link);
}

void CoordinatorServer::Loop::on_time() {
  last_tick_ = turn_;
  while (!to_join_by_.empty() && to_join_by_.front().first <= now()) {
    const LinkId id = to_join_by_.front().second;
    to_join_by_.pop_front();
    if (newcomers_.contains(id)) {
      ++stats_.too_slow;
      dismiss(id);
    } else if (const auto found = links_.find(id);
               found != links_.end() && found->second.state == Link::State::new_here) {
      ++stats_.too_slow;
      lose(id, found->second, "");
    }
  }
  while (!to_leave_by_.empty() && to_leave_by_.front().first <= now()) {
    const LinkId id = to_leave_by_.front().second;
    to_leave_by_.pop_front();
    if (const auto found = links_.find(id); found != links_.end()) lose(id, found->second, "");
  }
  for (auto& [name, job] : jobs_) {
    const auto wanted = job.coordinator.next_deadline();
    if (!wanted || *wanted > now()) continue;
    job.coordinator.tick(now());
    carry_out(job.coordinator);
  }
  forget_jobs();
  if (out_of_descriptors_) {
    out_of_descriptors_ = false;
    listen(true);
  }
}

/// Sends what has gathered and forgets those that have gone, until neither brings about more of it.
void CoordinatorServer::Loop::settle() {
  while (!to_flush_.empty() || !gone_.empty()) {
    for (const LinkId id : std::exchange(to_flush_, {})) {
      const auto found = links_.find(id);
      if (found == links_.end()) continue;
      found->second.to_be_flushed = false;
      flush(id, found->second);
    }
    for (const LinkId id : std::exchange(gone_, {})) forget(id);
  }
  const bool room = greeting() < most_greeting && !out_of_descriptors_;
  if (room != listening_) listen(room);
}

void CoordinatorServer::Loop::check_done() {
  if (options_.many_jobs || done_told_) return;
  if (!jobs_.begin()->second.coordinator.done()) return;
  if (!done_by_) done_by_ = now() + time_to_be_told;
  const bool told = std::all_of(links_.begin(), links_.end(), [](const auto& entry) {
    return entry.second.state == Link::State::new_here || entry.second.out.empty();
  });
  if (!told && now() < *done_by_) return;
  done_told_ = true;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    is_done_.notify_all();
  }
  if (options_.on_done) options_.on_done();
}

}  // namespace ddrun::rendezvous
