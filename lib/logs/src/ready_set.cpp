#include "ready_set.hpp"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/io_context.hpp"

namespace ddrun::logs {

namespace {

/// Descriptors that are handled in one turn of the event loop, and the time after which the others wait for the next.
constexpr int max_events = 64;
constexpr Milliseconds max_turn{10};

}  // namespace

ReadySet::ReadySet(boost::asio::any_io_executor executor, std::function<void(void*)> on_ready)
    : epoll_(std::move(executor)), on_ready_(std::move(on_ready)), self_(std::make_shared<ReadySet*>(this)) {}

ReadySet::~ReadySet() { close(); }

Result<void> ReadySet::open() {
  const int err = assign_descriptor(epoll_, UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (err != 0) return fail_errno(Errc::unavailable, "cannot watch the workers' output", err);
  events_ = std::make_unique<epoll_event[]>(max_events);
  wait();
  return {};
}

Result<void> ReadySet::add(int fd, void* tag) {
  if (!epoll_.is_open()) TRY(open());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  if (::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return fail_errno(Errc::unavailable, "cannot watch a worker's output", errno);
  }
  return {};
}

void ReadySet::remove(int fd, void* tag) {
  if (!epoll_.is_open()) return;
  ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
  for (int i = next_; i < event_count_; ++i) {
    if (events_[i].data.ptr == tag) events_[i].data.ptr = nullptr;
  }
}

void ReadySet::change(int fd, void* tag, unsigned events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = tag;
  ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, fd, &event);
}

// EPOLLHUP cannot be masked; edge-triggered it is reported only once.
void ReadySet::pause(int fd, void* tag) { change(fd, tag, EPOLLET); }

void ReadySet::resume(int fd, void* tag) { change(fd, tag, EPOLLIN); }

void ReadySet::watch_edges(int fd, void* tag) { change(fd, tag, EPOLLIN | EPOLLET); }

void ReadySet::close() {
  *self_ = nullptr;
  event_count_ = 0;
  boost::system::error_code ignored;
  epoll_.close(ignored);
}

void ReadySet::wait() {
  // Level-triggered: descriptors that are still ready end the next wait at once.
  epoll_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = self_](const boost::system::error_code& failed) {
                      if (failed || *self == nullptr) return;
                      (*self)->dispatch_events();
                      if (*self != nullptr) (*self)->wait();
                    });
}

void ReadySet::dispatch_events() {
  const auto self = self_;
  if (next_ >= event_count_) {
    ++turns_;
    event_count_ = ::epoll_wait(epoll_.native_handle(), events_.get(), max_events, 0);
    next_ = 0;
  }
  for (const Deadline end = Clock::now() + max_turn; next_ < event_count_ && Clock::now() < end;) {
    void* tag = events_[next_++].data.ptr;
    if (tag != nullptr) on_ready_(tag);
    if (*self == nullptr) return;
  }
}

}  // namespace ddrun::logs
