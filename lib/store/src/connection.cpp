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
bool Connection::make_room(std::size_t more) {
  const std::size_t wanted = pending_.size() + more;
  if (wanted <= pending_.capacity()) return true;
  const std::size_t next = std::max(wanted, 2 * pending_.capacity());  // as a string grows
  if (!shared_->state.has_room(next - pending_.capacity())) return refuse("an unfinished request");
  pending_.reserve(next);
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

/// Counts the memory of the buffers; false if it exceeds the limit.
bool Connection::within_limits() {
  // Short strings need no heap memory.
  const auto heap = [](const std::string& buffer) {
    return buffer.capacity() > std::string().capacity() ? buffer.capacity() : 0;
  };
  const std::size_t now = heap(pending_) + heap(out_);
  if (now == buffered_) return true;
  ServerState& state = shared_->state;
  const bool grown = now > buffered_;
  state.buffered += now;
  state.buffered -= buffered_;
  buffered_ = now;
  return !grown || state.has_room(0) || refuse("replies that are not read");
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
  const ssize_t sent = send_some(replies);
  if (sent < 0) return false;
  // In front of notifications that requests of other connections have caused since.
  out_.insert(0, replies.substr(static_cast<std::size_t>(sent)));
  return within_limits();
}

bool Connection::flush() {
  if (out_.empty()) return true;
  if (too_many_unread_) {
    ++shared_->state.refused;
    shared_->state.refusal_reason =
        concat("it watches keys and does not read the notifications; ", max_unread_bytes, " bytes are unread");
    return false;
  }
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

/// Buffer for unsolicited output: the replies if this connection's batch is being executed, else `out_`.
std::string& Connection::output_buffer() {
  if (shared_->current == this) return shared_->replies;
  shared_->woken.push_back(this);
  return out_;
}

void Connection::on_keys_exist() { output_buffer().push_back(wire::wait_stopped); }

void Connection::on_key_changed(KeyChange change, std::string_view key, std::string_view before, std::string_view now) {
  too_many_unread_ = out_.size() > max_unread_bytes;
  std::string& to = output_buffer();
  if (!too_many_unread_) append_change(to, change, key, before, now);
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
}

}  // namespace ddrun::store
