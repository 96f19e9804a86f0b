#include "connection.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace ddrun::store {

namespace {

/// A batch of replies is sent when it has this many bytes, if not earlier by the end of the input.
constexpr std::size_t full_batch = 1024 * 1024;
/// Buffers that grew beyond this are given back when they are empty.
constexpr std::size_t kept_capacity = 64 * 1024;

void clear(std::string& buffer) {
  if (buffer.capacity() > kept_capacity) {
    std::string().swap(buffer);
  } else {
    buffer.clear();
  }
}

/// Bytes taken by the system, 0 if it takes none now, -1 if the connection is broken.
ssize_t send_some(int fd, std::string_view bytes) {
  for (;;) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

}  // namespace

bool Connection::on_readable() {
  char* const buffer = shared_->buffer.get();
  const ssize_t got = ::recv(fd_.get(), buffer, ServerShared::buffer_size, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (got == 0) return false;
  const std::string_view input(buffer, static_cast<std::size_t>(got));
  if (pending_.empty()) return serve(input);
  pending_.append(input);
  return pending_.size() < session_.needed() || serve(pending_);
}

/// Carries out what is whole in `input`, which is all that came and was not carried out yet (`pending_` or new).
bool Connection::serve(std::string_view input) {
  std::string& replies = shared_->replies;
  for (;;) {
    replies.clear();
    const auto progress = session_.handle(input, replies, full_batch);
    input.remove_prefix(progress.consumed);
    if (!send_replies() || progress.close) return false;
    stopped_early_ = progress.paused;
    if (!progress.paused || has_unsent()) break;
  }
  keep(input);
  if (replies.capacity() > 2 * full_batch) std::string().swap(replies);
  return true;
}

void Connection::keep(std::string_view rest) {
  if (rest.empty()) {
    clear(pending_);
  } else if (pending_.empty()) {
    pending_.assign(rest);
  } else {
    pending_.erase(0, pending_.size() - rest.size());
  }
}

bool Connection::send_replies() {
  std::string& replies = shared_->replies;
  if (replies.empty()) return true;
  if (has_unsent()) {
    out_.append(replies);
    return true;
  }
  const ssize_t sent = send_some(fd_.get(), replies);
  if (sent < 0) return false;
  if (static_cast<std::size_t>(sent) < replies.size()) out_.assign(replies, static_cast<std::size_t>(sent));
  return true;
}

bool Connection::flush() {
  if (out_.empty()) return true;
  const ssize_t sent = send_some(fd_.get(), std::string_view(out_).substr(out_begin_));
  if (sent < 0) return false;
  out_begin_ += static_cast<std::size_t>(sent);
  if (out_begin_ == out_.size()) {
    clear(out_);
    out_begin_ = 0;
  }
  return true;
}

bool Connection::on_writable() {
  if (!flush()) return false;
  if (has_unsent() || !stopped_early_) return true;
  return serve(pending_);
}

void Connection::keys_exist() {
  out_.push_back(wire::wait_stopped);
  shared_->woken.push_back(this);
}

void Connection::close() {
  if (!fd_) return;
  ::shutdown(fd_.get(), SHUT_RDWR);
  fd_.reset();
  shared_->space.cancel(*this);
}

}  // namespace ddrun::store
