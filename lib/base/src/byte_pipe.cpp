#include "ddrun/base/byte_pipe.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <limits>
#include <utility>

#include "ddrun/base/io_context.hpp"

namespace ddrun {

namespace {

using boost::asio::posix::stream_descriptor;

void close_descriptor(stream_descriptor& fd) {
  boost::system::error_code ignored;
  fd.close(ignored);
}

}  // namespace

int ByteWriter::open(UniqueFd fd) {
  struct stat info {};
  is_socket_ = ::fstat(fd.get(), &info) == 0 && S_ISSOCK(info.st_mode);
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  const int err = assign_descriptor(fd_, std::move(fd));
  if (err == 0 || !on_broken_) return err;
  boost::asio::post(fd_.get_executor(), [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) on_broken_();
  });
  return err;
}

void ByteWriter::write(std::string_view bytes) {
  if (!fd_.is_open() || finishing_) return;
  queue_.append(bytes);
  if (!waiting_) flush();
}

void ByteWriter::flush() {
  while (written_ < queue_.size()) {
    const std::string_view rest = std::string_view(queue_).substr(written_);
    const ssize_t n = is_socket_ ? ::send(fd_.native_handle(), rest.data(), rest.size(), MSG_NOSIGNAL)
                                 : ::write(fd_.native_handle(), rest.data(), rest.size());
    if (n >= 0) {
      written_ += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      if (written_ > queue_.size() / 2) {
        WipedString(queue_, written_).swap(queue_);
        written_ = 0;
      }
      waiting_ = true;
      fd_.async_wait(stream_descriptor::wait_write,
                     [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& ec) {
                       if (alive.expired()) return;
                       waiting_ = false;
                       if (ec) return;
                       flush();
                       if (!alive.expired() && queue_.empty() && on_empty_) on_empty_();
                     });
      return;
    } else if (errno != EINTR) {
      close();
      if (on_broken_) on_broken_();
      return;
    }
  }
  forget();
  if (finishing_) close_descriptor(fd_);
}

void ByteWriter::finish() {
  finishing_ = true;
  if (fd_.is_open() && queue_.empty()) close_descriptor(fd_);
}

void ByteWriter::close() {
  close_descriptor(fd_);
  forget();
}

void ByteWriter::forget() {
  ::explicit_bzero(queue_.data(), queue_.size());
  queue_.clear();
  written_ = 0;
  if (queue_.capacity() > 1U << 20U) WipedString().swap(queue_);
}

int ByteReader::open(UniqueFd fd, std::function<void(std::string_view)> on_bytes, std::function<void()> on_end) {
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  on_bytes_ = std::move(on_bytes);
  on_end_ = std::move(on_end);
  const int err = assign_descriptor(fd_, std::move(fd));
  if (err == 0) return wait(), 0;
  boost::asio::post(fd_.get_executor(), [this, alive = std::weak_ptr(alive_)] {
    if (!alive.expired()) on_end_();
  });
  return err;
}

void ByteReader::pause(bool paused) {
  paused_ = paused;
  wait();
}

void ByteReader::wait() {
  if (waiting_ || paused_ || !fd_.is_open()) return;
  waiting_ = true;
  fd_.async_wait(stream_descriptor::wait_read,
                 [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& ec) {
                   if (alive.expired()) return;
                   waiting_ = false;
                   if (ec || paused_) return;
                   const Read read = read_some(8);  // bounded, so that other handlers run
                   if (read == Read::again) return wait();
                   if (read == Read::gone) return;
                   close_descriptor(fd_);
                   on_end_();
                 });
}

ByteReader::Read ByteReader::read_some(int rounds) {
  std::array<char, 64 << 10> chunk;  // NOLINT: written by read
  const std::weak_ptr alive(alive_);
  for (int round = 0; round < rounds && !paused_; ++round) {
    const ssize_t n = ::read(fd_.native_handle(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Read::again;
    if (n <= 0) return Read::end;
    on_bytes_({chunk.data(), static_cast<std::size_t>(n)});
    ::explicit_bzero(chunk.data(), static_cast<std::size_t>(n));
    if (alive.expired() || !fd_.is_open()) return Read::gone;
  }
  return Read::again;
}

void ByteReader::catch_up() {
  // A writer that goes on must not hold the caller: a pipe holds 1 MiB at most, which is 16 reads.
  if (fd_.is_open()) (void)read_some(32);
}

void ByteReader::drain() {
  paused_ = false;
  if (!fd_.is_open()) return;
  if (read_some(std::numeric_limits<int>::max()) != Read::gone) close_descriptor(fd_);
}

void ByteReader::close() { close_descriptor(fd_); }

}  // namespace ddrun
