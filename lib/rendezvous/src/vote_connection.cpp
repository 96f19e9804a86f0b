#include "vote_connection.hpp"

#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "vote_messages.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

/// A peer for which so many bytes wait does not read.
constexpr std::size_t most_unsent = 1024 * 1024;

template <class Side>
VoteConnection::Greeter greeter_of(const HmacKey* secret) {
  const auto side = std::make_shared<Side>(secret, random_nonce());
  VoteConnection::Greeter greeter;
  if constexpr (requires { side->begin(); }) greeter.begin = side->begin();
  greeter.feed = [side](std::string_view& bytes, std::string& out) { return side->feed(bytes, out); };
  greeter.keys = [side] { return side->keys(); };
  greeter.peer_version = [side] { return side->peer_version(); };
  return greeter;
}

}  // namespace

VoteConnection::Greeter VoteConnection::agents(const HmacKey* secret) { return greeter_of<AgentHandshake>(secret); }
VoteConnection::Greeter VoteConnection::voters(const HmacKey* secret) {
  return greeter_of<CoordinatorHandshake>(secret);
}

VoteConnection::VoteConnection(asio::ip::tcp::socket socket, Greeter greeter, Callbacks callbacks)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      greeter_(std::move(greeter)),
      callbacks_(std::move(callbacks)) {}

void VoteConnection::start(Clock::duration greet_within) {
  timer_.expires_after(greet_within);
  timer_.async_wait([weak = weak_from_this()](const error_code& ec) {
    const auto self = weak.lock();
    if (!ec && self && !self->ready()) self->end("it does not answer ddrun's greeting", false);
  });
  out_ = greeter_.begin;
  write();
  read();
}

void VoteConnection::send(std::uint8_t type, std::string_view payload) {
  if (closed_ || !ready()) return;
  if (out_.size() > most_unsent) {
    return asio::post(socket_.get_executor(), [self = shared_from_this()] { self->end("it does not read", false); });
  }
  sealer_->seal(type, payload, out_);
  write();
}

void VoteConnection::end_if_silent_for(Clock::duration silence) {
  timer_.expires_at(heard_ + silence);
  timer_.async_wait([weak = weak_from_this(), silence](const error_code& ec) {
    const auto self = weak.lock();
    if (ec || !self || self->closed_) return;
    if (Clock::now() >= self->heard_ + silence) self->end("nothing was heard from it", false);
    else self->end_if_silent_for(silence);
  });
}

void VoteConnection::close(bool abruptly) {
  if (std::exchange(closed_, true)) return;
  callbacks_ = {};
  timer_.cancel();
  error_code ignored;
  if (abruptly) {
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  } else if (!out_.empty() && under_way_.empty()) {
    // The last word, as far as the system takes it.
    socket_.write_some(asio::buffer(out_), ignored);
  }
  socket_.close(ignored);
}

void VoteConnection::read() {
  socket_.async_read_some(asio::buffer(buffer_), [self = shared_from_this()](const error_code& ec, std::size_t got) {
    if (self->closed_) return;
    if (ec) return self->end(ec == asio::error::eof ? "it hung up" : ec.message(), ec == asio::error::eof);
    self->heard_ = Clock::now();
    self->on_bytes({self->buffer_.data(), got});
    if (!self->closed_) self->read();
  });
}

void VoteConnection::on_bytes(std::string_view bytes) {
  if (!ready()) {
    while (!bytes.empty()) {
      const Greeting said = greeter_.feed(bytes, out_);
      if (said == Greeting::going_on) continue;
      if (said != Greeting::done) return end("", false, said);
      auto keys = greeter_.keys();
      sealer_.emplace(std::move(keys.sealer));
      opener_.emplace(std::move(keys.opener));
      timer_.cancel();
      break;
    }
    write();
    if (!ready()) return;
    if (callbacks_.on_ready) callbacks_.on_ready();
    if (closed_) return;
  }
  in_.append(bytes);
  take_frames();
}

void VoteConnection::take_frames() {
  const auto self = shared_from_this();
  std::size_t taken = 0;
  for (;;) {
    FrameOpener::Frame frame;
    const auto status = opener_->next(std::string_view(in_).substr(taken), frame, max_vote_payload);
    if (status == FrameOpener::Status::incomplete) break;
    if (status != FrameOpener::Status::whole) return end("it sent what cannot be used", false);
    taken += frame.size;
    if (callbacks_.on_frame) callbacks_.on_frame(frame.type, frame.payload);
    if (closed_) return;
  }
  in_.erase(0, taken);
}

void VoteConnection::write() {
  if (closed_ || out_.empty() || !under_way_.empty()) return;
  under_way_ = std::exchange(out_, {});
  asio::async_write(socket_, asio::buffer(under_way_), [self = shared_from_this()](const error_code& ec, std::size_t) {
    self->under_way_.clear();
    // A broken one shows when it is read.
    if (!ec) self->write();
  });
}

void VoteConnection::end(const std::string& why, bool in_order, std::optional<Greeting> greeting) {
  if (closed_) return;
  const auto self = shared_from_this();
  const auto on_end = std::exchange(callbacks_.on_end, nullptr);
  close(!in_order && !greeting);  // the other side is to read why it was turned away
  if (on_end) on_end(why, in_order, greeting);
}

}  // namespace ddrun::rendezvous
