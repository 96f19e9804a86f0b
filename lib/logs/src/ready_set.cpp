#include "ready_set.hpp"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utility>

namespace ddrun::logs {

namespace {

/// So many descriptors have their turn before the event loop looks at other things.
constexpr int turn = 64;

}  // namespace

ReadySet::ReadySet(boost::asio::any_io_executor executor, std::function<void(void*)> on_ready)
    : epoll_(std::move(executor)), on_ready_(std::move(on_ready)), self_(std::make_shared<ReadySet*>(this)) {}

ReadySet::~ReadySet() { close(); }

Result<void> ReadySet::open() {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) return fail_errno(Errc::unavailable, "cannot watch the workers' output", errno);
  boost::system::error_code ec;
  epoll_.assign(fd, ec);
  if (ec) {
    ::close(fd);
    return fail_errno(Errc::unavailable, "cannot watch the workers' output", ec.value());
  }
  events_ = std::make_unique<epoll_event[]>(turn);
  wait();
  return {};
}

Result<void> ReadySet::add(int fd, void* who) {
  if (!epoll_.is_open()) {
    if (auto opened = open(); !opened) return opened;
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = who;
  if (::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return fail_errno(Errc::unavailable, "cannot watch a worker's output", errno);
  }
  return {};
}

void ReadySet::remove(int fd, void* who) {
  if (!epoll_.is_open()) return;
  ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
  for (int i = next_; i < taken_; ++i) {
    if (events_[i].data.ptr == who) events_[i].data.ptr = nullptr;
  }
}

void ReadySet::change(int fd, void* who, unsigned events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = who;
  ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, fd, &event);
}

// The end of a pipe is told whether it was asked for or not, but by an edge only once.
void ReadySet::pause(int fd, void* who) { change(fd, who, EPOLLET); }

void ReadySet::resume(int fd, void* who) { change(fd, who, EPOLLIN); }

void ReadySet::only_changes(int fd, void* who) { change(fd, who, EPOLLIN | EPOLLET); }

void ReadySet::close() {
  *self_ = nullptr;
  taken_ = 0;
  boost::system::error_code ignored;
  epoll_.close(ignored);
}

void ReadySet::wait() {
  // Each wait looks at the set anew: what was left over in the last turn ends it at once.
  epoll_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = self_](const boost::system::error_code& failed) {
                      if (failed || *self == nullptr) return;
                      (*self)->take_events();
                      if (*self != nullptr) (*self)->wait();
                    });
}

void ReadySet::take_events() {
  const auto self = self_;
  ++turns_;
  taken_ = ::epoll_wait(epoll_.native_handle(), events_.get(), turn, 0);
  for (next_ = 0; next_ < taken_;) {
    void* who = events_[next_++].data.ptr;
    if (who != nullptr) on_ready_(who);
    if (*self == nullptr) return;
  }
  taken_ = 0;
}

}  // namespace ddrun::logs
