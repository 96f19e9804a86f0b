#include "byte_pipe.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <array>

namespace ddrun::remote {

namespace {

using boost::asio::posix::stream_descriptor;

void close_descriptor(stream_descriptor& fd) {
  boost::system::error_code ignored;
  fd.close(ignored);
}

}  // namespace

void ByteWriter::open(UniqueFd fd) {
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  fd_.assign(fd.release());
}

void ByteWriter::write(std::string_view bytes) {
  if (!fd_.is_open() || finishing_) return;
  queue_.append(bytes);
  if (!waiting_) flush();
}

void ByteWriter::flush() {
  while (written_ < queue_.size()) {
    const ssize_t n = ::write(fd_.native_handle(), queue_.data() + written_, queue_.size() - written_);
    if (n >= 0) {
      written_ += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN) {
      if (written_ > queue_.size() / 2) {
        WipedString(queue_, written_).swap(queue_);
        written_ = 0;
      }
      waiting_ = true;
      fd_.async_wait(stream_descriptor::wait_write, [this](const boost::system::error_code& ec) {
        waiting_ = false;
        if (ec) return;
        flush();
        if (queue_.empty() && on_empty_) on_empty_();
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

void ByteReader::open(UniqueFd fd, std::function<void(std::string_view)> on_bytes, std::function<void()> on_end) {
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  fd_.assign(fd.release());
  on_bytes_ = std::move(on_bytes);
  on_end_ = std::move(on_end);
  wait();
}

void ByteReader::pause(bool paused) {
  paused_ = paused;
  wait();
}

void ByteReader::wait() {
  if (waiting_ || paused_ || !fd_.is_open()) return;
  waiting_ = true;
  fd_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    waiting_ = false;
    if (ec || paused_) return;
    if (!read_some()) {
      close_descriptor(fd_);
      on_end_();
      return;
    }
    wait();
  });
}

bool ByteReader::read_some() {
  std::array<char, 64 << 10> chunk;  // NOLINT: written by read
  // Not for ever: others want to be heard too.
  for (int round = 0; round < 8 && !paused_ && fd_.is_open(); ++round) {
    const ssize_t n = ::read(fd_.native_handle(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    on_bytes_({chunk.data(), static_cast<std::size_t>(n)});
    ::explicit_bzero(chunk.data(), static_cast<std::size_t>(n));
  }
  return true;
}

void ByteReader::drain() {
  paused_ = false;
  std::array<char, 64 << 10> chunk;  // NOLINT: written by read
  while (fd_.is_open()) {
    const ssize_t n = ::read(fd_.native_handle(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    on_bytes_({chunk.data(), static_cast<std::size_t>(n)});
  }
  close_descriptor(fd_);
}

}  // namespace ddrun::remote
