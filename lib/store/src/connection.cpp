#include "connection.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "ddrun/base/listener.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::store {

namespace {

/// A batch of replies is sent when it has this many bytes, if not earlier by the end of the input.
constexpr std::size_t max_reply_batch = 1024 * 1024;
/// A client that watches keys is disconnected when it has more unread notifications than this.
constexpr std::size_t max_unread_bytes = 64 * 1024 * 1024;

}  // namespace

bool Connection::on_readable() { return receive() && within_limits(); }

bool Connection::receive() {
  char* const buffer = shared_->buffer.get();
  const ssize_t got = ::recv(fd_.get(), buffer, ServerShared::buffer_size, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (got == 0) return false;
  shared_->bytes_in += static_cast<std::size_t>(got);
  const std::string_view input(buffer, static_cast<std::size_t>(got));
  if (pending_.empty()) return serve(input);
  if (!make_room(input.size())) return false;
  pending_.append(input);
  return pending_.size() < session_.needed() || serve(pending_);
}

/// Returns the bytes sent, 0 if the socket is full, -1 if the connection is broken.
ssize_t Connection::send_some(std::string_view bytes) {
  for (;;) {
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      shared_->bytes_out += static_cast<std::size_t>(sent);
      return sent;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
    if (errno != EINTR) return -1;
  }
}

/// Reserves `more` bytes for an incomplete request. Grows with the bytes received, not with the length that the client
/// announces.
bool Connection::make_room(std::size_t more) { return grow(pending_, more) || refuse("an unfinished request"); }

/// Reserves and counts `more` bytes in one of the two buffers; false if they exceed the limit.
bool Connection::grow(std::string& buffer, std::size_t more) {
  const std::size_t wanted = buffer.size() + more;
  if (wanted <= buffer.capacity()) return true;
  const std::size_t next = std::max(wanted, 2 * buffer.capacity());  // as a string grows
  if (!shared_->state.has_room(next - buffer.capacity())) return false;
  buffer.reserve(next);
  count_buffers();
  return true;
}

bool Connection::refuse(const char* what) {
  ServerState& state = shared_->state;
  ++state.refused;
  state.refusal_reason =
      concat(what, ", ", pending_.size() + out_.size(), " bytes, for which there is no room: ", state.memory(), " of ",
             state.memory_limit, " bytes are used");
  return false;
}

/// Counts the memory of the buffers; true if it has grown.
bool Connection::count_buffers() {
  // Short strings need no heap memory.
  const auto heap = [](const std::string& buffer) {
    return buffer.capacity() > std::string().capacity() ? buffer.capacity() : 0;
  };
  const std::size_t now = heap(pending_) + heap(out_);
  const std::size_t before = std::exchange(buffered_, now);
  shared_->state.buffered += now;
  shared_->state.buffered -= before;
  return now > before;
}

bool Connection::within_limits() {
  return !count_buffers() || shared_->state.has_room(0) || refuse("replies that are not read");
}

/// Executes the complete requests in `input`, which is `pending_` or new input.
bool Connection::serve(std::string_view input) {
  std::string& replies = shared_->replies;
  for (;;) {
    replies.clear();
    shared_->current = this;
    const auto progress = session_.handle(input, replies, max_reply_batch);
    shared_->current = nullptr;
    input.remove_prefix(progress.consumed);
    if (!send_replies(progress.close || progress.paused) || progress.close) return false;
    stopped_early_ = progress.paused;
    if (!progress.paused || has_unsent()) break;
  }
  keep_unparsed(input);
  if (replies.capacity() > 2 * max_reply_batch) std::string().swap(replies);
  return true;
}

void Connection::keep_unparsed(std::string_view rest) {
  if (rest.empty()) {
    empty_buffer(pending_);
  } else if (pending_.empty()) {
    pending_.assign(rest);
  } else {
    pending_.erase(0, pending_.size() - rest.size());
  }
}

/// At once, or, if the replies are short, together with those of other connections.
bool Connection::send_replies(bool at_once) {
  std::string& replies = shared_->replies;
  if (has_unsent()) {  // notifications that requests of others have caused
    out_.append(replies);
    return !at_once || flush();
  }
  if (replies.empty()) return true;
  if (!at_once && replies.size() <= Outbox::max_batched_bytes) {
    Outbox& outbox = shared_->outbox;
    outbox.items.push_back({this, outbox.bytes.size(), replies.size()});
    outbox.bytes.append(replies);
    return true;
  }
  const ssize_t sent = send_some(replies);
  if (sent < 0) return false;
  if (static_cast<std::size_t>(sent) < replies.size()) out_.assign(replies, static_cast<std::size_t>(sent));
  return true;
}

bool Connection::deliver(std::string_view replies) {
  // In front of what requests of other connections have caused since, and sent together with it.
  const ssize_t sent = woken_ ? 0 : send_some(replies);
  if (sent < 0) return false;
  out_.insert(0, replies.substr(static_cast<std::size_t>(sent)));
  return within_limits();
}

bool Connection::flush() {
  woken_ = false;
  if (lost_bytes_ != 0) {
    ServerState& state = shared_->state;
    ++state.refused;
    state.refusal_reason =
        concat("it watches keys, and there is no room for a notification of ", lost_bytes_, " bytes: ", out_.size(),
               " bytes are unread, and ", state.memory(), " of ", state.memory_limit, " bytes are used");
    return false;
  }
  if (out_.empty()) return true;
  const ssize_t sent = send_some(std::string_view(out_).substr(out_begin_));
  if (sent < 0) return false;
  out_begin_ += static_cast<std::size_t>(sent);
  if (out_begin_ == out_.size()) {
    empty_buffer(out_);
    out_begin_ = 0;
  }
  return within_limits();
}

bool Connection::on_writable() {
  if (!flush()) return false;
  if (has_unsent() || !stopped_early_) return true;
  return serve(pending_) && within_limits();
}

/// Has its unsolicited output flushed after this batch of events.
void Connection::wake() {
  if (!std::exchange(woken_, true)) shared_->woken.push_back(this);
}

void Connection::on_keys_exist() {
  if (shared_->current == this) return shared_->replies.push_back(wire::wait_stopped);
  out_.push_back(wire::wait_stopped);
  wake();
}

void Connection::on_key_changed(KeyChange change, std::string_view key, std::string_view before, std::string_view now) {
  // Its own change: among the replies of the present batch, which has a bound.
  if (shared_->current == this) return append_change(shared_->replies, change, key, before, now);
  wake();
  if (lost_bytes_ != 0) return;
  const std::size_t size = change_size(key, before, now);
  // Twice: the changed value, which is not counted yet, has to fit too. One byte more: the end of a wait may follow.
  const bool fits = out_.size() <= max_unread_bytes && shared_->state.has_room(2 * size) && grow(out_, size + 1);
  if (fits) append_change(out_, change, key, before, now);
  else lost_bytes_ = size;
}

void Connection::leave() {
  shared_->state.space.leave(*this);
  shared_->state.buffered -= std::exchange(buffered_, 0);
}

void Connection::close() {
  if (!fd_) return;
  ::shutdown(fd_.get(), SHUT_RDWR);
  fd_.reset();
  leave();
  // Not counted from here on, while the object lives to the end of the batch of events.
  std::string().swap(pending_);
  std::string().swap(out_);
}

}  // namespace ddrun::store
