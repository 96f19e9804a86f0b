#include "stdin_feed.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace ddrun::agent {

StdinFeed::StdinFeed(boost::asio::any_io_executor executor) : executor_(std::move(executor)), readable_(executor_) {
  struct stat info {};
  seekable_ = ::fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode);
}

Result<UniqueFd> StdinFeed::open() {
  if (seekable_) {
    const off_t offset = ::lseek(STDIN_FILENO, 0, SEEK_CUR);
    UniqueFd own(::open("/proc/self/fd/0", O_RDONLY | O_CLOEXEC));
    if (own) {
      ::lseek(own.get(), offset, SEEK_SET);
      return own;
    }
    seekable_ = false;
  }
  auto pipe = make_pipe();
  if (!pipe) return tl::unexpected(pipe.error());
  // Only our end: the worker expects to block.
  ::fcntl(pipe->write.get(), F_SETFL, O_NONBLOCK);
  readers_.emplace_back(executor_, pipe->write.release());
  return std::move(pipe->read);
}

void StdinFeed::start() {
  if (readers_.empty()) return;
  if (!input_ && !at_end_) at_end_ = !open_input();
  if (at_end_) {
    stop();
    return;
  }
  wait_for_input();
}

void StdinFeed::stop() {
  ++generation_;
  readers_.clear();
  chunk_.clear();
}

bool StdinFeed::open_input() {
  // stdin is shared with whoever started us, such as the user's shell: that reads must not block may be set only on a
  // view of our own. Where none can be had (sockets, a terminal of another user) nothing is set.
  input_ = UniqueFd(::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!input_) {
    auto copy = duplicate(STDIN_FILENO);
    if (!copy) return false;
    input_ = std::move(*copy);
  }
  // Asio sets non-blocking whatever it is to wait for. So it gets an epoll set with stdin in it.
  UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  boost::system::error_code ec;
  // It refuses what is always ready, such as /dev/null.
  if (!set || ::epoll_ctl(set.get(), EPOLL_CTL_ADD, input_.get(), &event) != 0) return false;
  readable_.assign(set.get(), ec);
  if (ec) return false;
  (void)set.release();
  return true;
}

void StdinFeed::wait_for_input() {
  if (waiting_) return;
  waiting_ = true;
  readable_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    waiting_ = false;
    if (ec || readers_.empty()) return;
    take_input();
  });
}

void StdinFeed::take_input() {
  chunk_.resize(64 << 10);
  ssize_t n;
  do {
    n = ::recv(input_.get(), chunk_.data(), chunk_.size(), MSG_DONTWAIT);
    if (n < 0 && errno == ENOTSOCK) n = ::read(input_.get(), chunk_.data(), chunk_.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) {
    chunk_.clear();
    wait_for_input();
    return;
  }
  if (n <= 0) {
    at_end_ = true;
    boost::system::error_code ec;
    readable_.close(ec);
    input_.reset();
    stop();
    return;
  }
  chunk_.resize(static_cast<std::size_t>(n));
  pending_ = readers_.size();
  for (auto& reader : readers_) reader.done = 0;
  for (auto reader = readers_.begin(); reader != readers_.end();) push(reader++);
}

void StdinFeed::push(std::list<Reader>::iterator reader) {
  while (reader->done < chunk_.size()) {
    const ssize_t n = ::write(reader->pipe.native_handle(), chunk_.data() + reader->done, chunk_.size() - reader->done);
    if (n >= 0) {
      reader->done += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      reader->pipe.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                              [this, reader, generation = generation_](const boost::system::error_code& ec) {
                                if (!ec && generation == generation_) push(reader);
                              });
      return;
    } else if (errno != EINTR) {
      readers_.erase(reader);  // it reads no more
      break;
    }
  }
  one_is_done();
}

void StdinFeed::one_is_done() {
  if (--pending_ > 0) return;
  chunk_.clear();
  if (!readers_.empty()) wait_for_input();
}

}  // namespace ddrun::agent
