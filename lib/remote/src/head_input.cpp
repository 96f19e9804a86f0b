#include "head_input.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>

namespace ddrun::remote {

void HeadInput::open() {
  opened_ = true;
  struct stat info {};
  const bool file = ::fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode);
  // A view of our own may be non-blocking. A file's position must stay the one that the shell knows.
  if (!file) input_ = UniqueFd(::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!input_) {
    if (auto copy = duplicate(STDIN_FILENO)) input_ = std::move(*copy);
  }
  UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (input_ && set && ::epoll_ctl(set.get(), EPOLL_CTL_ADD, input_.get(), &event) == 0) ready_.assign(set.release());
}

void HeadInput::want() {
  if (waiting_ || ended_) return;
  if (!opened_) open();
  if (!input_) return end();
  waiting_ = true;
  if (ready_.is_open()) {
    ready_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
      waiting_ = false;
      if (!ec) read_portion();
    });
  } else {
    boost::asio::post(executor_, [this] {
      waiting_ = false;
      read_portion();
    });
  }
}

void HeadInput::read_portion() {
  if (ended_) return;
  std::array<char, 32 << 10> chunk;  // NOLINT: written by read
  ssize_t n;
  do {
    n = ::recv(input_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == ENOTSOCK) n = ::read(input_.get(), chunk.data(), chunk.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return want();
  if (n <= 0) return end();
  on_bytes_({chunk.data(), static_cast<std::size_t>(n)});
}

void HeadInput::end() {
  if (ended_) return;
  stop();
  on_end_();
}

void HeadInput::stop() {
  ended_ = true;
  boost::system::error_code ignored;
  ready_.close(ignored);
}

}  // namespace ddrun::remote
