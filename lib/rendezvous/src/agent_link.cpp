#include "ddrun/rendezvous/agent_link.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <cerrno>

#include "agent_link_impl.hpp"
#include "codec.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;

void AgentLink::Impl::read() {
  socket_.async_read_some(asio::buffer(buffer_),
                          [self = shared_from_this(), attempt = attempt_](const error_code& ec, std::size_t got) {
                            if (attempt != self->attempt_) return;
                            if (ec) return self->on_end(ec);
                            self->on_bytes({self->buffer_.data(), got});
                            if (attempt == self->attempt_) self->read();
                          });
}

void AgentLink::Impl::on_bytes(std::string_view bytes) {
  heard_ = Clock::now();
  if (stage_ == Stage::closing) return;
  if (stage_ == Stage::greeting) {
    on_greeting(bytes);
    if (stage_ != Stage::joining) return;
  }
  if (!bytes.empty()) take_frames(bytes);
}

void AgentLink::Impl::on_greeting(std::string_view& bytes) {
  const auto where = target_text();
  switch (handshake_->feed(bytes, out_)) {
    case Greeting::going_on: return write();
    case Greeting::done: break;
    case Greeting::stranger:
      return attempt_failed(concat("what listens on ", where, " is not ddrun: give the coordinator's port"),
                            Errc::protocol);
    case Greeting::other_version:
      return attempt_failed(concat("the coordinator on ", where, " speaks version ", handshake_->peer_version(),
                                   " of ddrun's protocol, and this ddrun version ", protocol_version,
                                   ": start the same ddrun on all machines"),
                            Errc::protocol);
    case Greeting::needs_secret:
      return attempt_failed(concat("the coordinator on ", where,
                                   " asks for a secret and this ddrun has none: give it "
                                   "the job's with --secret-file or DDRUN_SECRET, without --insecure"),
                            Errc::invalid_argument);
    case Greeting::needs_none:
      return attempt_failed(concat("the coordinator on ", where,
                                   " was started with --insecure and this ddrun has a "
                                   "secret: start all of them with --insecure, or none"),
                            Errc::invalid_argument);
    case Greeting::busy:
      return attempt_failed(concat("the coordinator on ", where, " has too many connections to greet at once"));
    case Greeting::turned_away:
      return attempt_failed(concat("the coordinator on ", where,
                                   " turned this ddrun away because it has "
                                   "another secret: give all agents the same one (--secret-file or DDRUN_SECRET)"),
                            Errc::invalid_argument);
    case Greeting::wrong_secret:
      return attempt_failed(concat("the coordinator on ", where,
                                   " does not know this job's secret: give all agents the "
                                   "same one (--secret-file or DDRUN_SECRET), or check who listens there"),
                            Errc::invalid_argument);
  }
  keys_.emplace(handshake_->keys());
  stage_ = Stage::joining;
  after(Clock::duration::max(), [this] {
    attempt_failed(concat("the coordinator on ", target_text(), " does not say whether this ddrun may take part"));
  });
  put(options_.join);
}

void AgentLink::Impl::on_end(const error_code& ec) {
  const std::string how = ec == asio::error::eof ? "connection closed" : ec.message();
  switch (stage_) {
    case Stage::closing: return closed();
    case Stage::joined:
      return lost(Errc::connection_lost,
                  concat("the connection to the coordinator", coordinator_host_.empty() ? "" : " on ",
                         coordinator_host_, " (", target_text(), ") broke: ", how));
    case Stage::greeting:
      // Once it has answered it is a coordinator, which does not wait long for what comes then.
      if (handshake_->peer_version() != protocol_version) {
        return attempt_failed(concat(target_text(), " hung up before it answered: ", how));
      }
      [[fallthrough]];
    default: return attempt_failed(concat("the coordinator on ", target_text(), " hung up before it let us in: ", how));
  }
}

void AgentLink::Impl::take_frames(std::string_view bytes) {
  const bool gathered = !in_.empty();
  if (gathered) {
    in_.append(bytes);
    bytes = in_;
  }
  const auto self = shared_from_this();
  const auto attempt = attempt_;
  const auto broken = [this](const std::string& why) {
    lost(Errc::protocol, concat("the connection to the coordinator on ", target_text(), " cannot be used: ", why));
  };
  for (;;) {
    FrameOpener::Frame frame;
    const auto status = keys_->opener.next(bytes, frame);
    if (status == FrameOpener::Status::incomplete) break;
    if (status == FrameOpener::Status::too_long) return broken("a message is longer than any may be");
    if (status == FrameOpener::Status::wrong_tag) return broken("a message was changed on its way");
    const auto message = decode_from_coordinator(frame.type, frame.payload);
    if (!message) return broken(concat("it sent ", message.error().message));
    bytes.remove_prefix(frame.size);
    on_message(*message);
    if (attempt != attempt_ || stage_ == Stage::closing) return;
  }
  if (bytes.empty()) {
    in_.clear();
    if (in_.capacity() > buffer_.size()) std::string().swap(in_);
  } else if (gathered) {
    in_.erase(0, in_.size() - bytes.size());
  } else {
    in_.assign(bytes);
  }
}

void AgentLink::Impl::on_message(const FromCoordinator& message) {
  if (const auto* refused = std::get_if<Refused>(&message); refused != nullptr && elsewhere(*refused)) return;
  if (stage_ == Stage::joining) {
    stage_ = Stage::joined;
    timer_.cancel();
    for (auto& waiting : std::exchange(queued_, {})) put(std::move(waiting));
  }
  if (const auto* ping = std::get_if<Ping>(&message)) return put(Pong{ping->number});
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    coordinator_host_ = welcome->coordinator_host;
    heartbeat_ = Milliseconds(std::clamp<std::uint32_t>(welcome->heartbeat_ms, 1, 3'600'000));
    patience_ = heartbeat_ * std::int64_t{std::clamp<std::uint32_t>(welcome->heartbeat_misses, 1, 1'000'000)};
    watch_for_silence();
  }
  const auto on_message = callbacks_.on_message;  // which may end this object
  if (on_message) on_message(message);
}

/// Another job has its coordinator here; ours may be at one of the other places.
bool AgentLink::Impl::elsewhere(const Refused& refused) {
  if (refused.kind != RefusalKind::other_job) return false;
  const auto left =
      std::count_if(candidates_.begin(), candidates_.end(), [](const auto& one) { return !one.for_good; });
  if (left < 2) return false;
  attempt_failed(refused.why, Errc::invalid_argument);
  return true;
}

void AgentLink::Impl::send(FromAgent message) {
  switch (stage_) {
    case Stage::joined: return put(std::move(message));
    case Stage::closing:
    case Stage::over: return;
    default: queued_.push_back(std::move(message));
  }
}

void AgentLink::Impl::put(FromAgent message) {
  auto type = encode(message, payload_);
  if (payload_.size() > most_in_frame) {
    shorten(message, most_in_frame);
    type = encode(message, payload_);
  }
  // One that is too long even so, such as a join with millions of settings, the coordinator is not to be bothered with.
  if (keys_->sealer.seal(type, payload_, out_)) write();
}

void AgentLink::Impl::write() {
  if (!sending_.empty() || out_.empty() || !socket_.is_open()) return on_written();
  // At once, as far as it goes: the way through the event loop would come later than it needs to.
  error_code ec;
  const std::size_t sent = socket_.send(asio::buffer(out_), MSG_NOSIGNAL | MSG_DONTWAIT, ec);
  if (!ec && sent == out_.size()) {
    out_.clear();
    return on_written();
  }
  if (!ec) out_.erase(0, sent);
  if (ec && ec != asio::error::would_block && ec != asio::error::try_again) return;  // reading will tell
  sending_.swap(out_);
  // The rest, whole; what comes meanwhile waits in out_.
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this(), attempt = attempt_](const error_code& wait) {
    if (attempt != self->attempt_ || wait) return;
    self->sending_.append(self->out_);
    self->out_.swap(self->sending_);
    self->sending_.clear();
    self->write();
  });
}

void AgentLink::Impl::on_written() {
  if (stage_ != Stage::closing || !sending_.empty() || !out_.empty()) return;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

/// Looks again when the time since the last word would be too long. A look that itself comes late says that this
/// process did not run, and that what the coordinator has said may still wait to be read.
void AgentLink::Impl::watch_for_silence() {
  const auto due = heard_ + patience_;
  silence_.expires_at(due);
  silence_.async_wait([self = shared_from_this(), attempt = attempt_, due](const error_code& ec) {
    if (ec || attempt != self->attempt_ || self->stage_ != Stage::joined) return;
    const auto now = Clock::now();
    if (now - due > self->heartbeat_) self->heard_ = now - self->patience_ + self->heartbeat_;
    if (self->heard_ + self->patience_ > now) return self->watch_for_silence();
    self->lost(Errc::connection_lost, concat("nothing was heard from the coordinator on ", self->coordinator_host_,
                                             " (", self->target_text(), ") for ", format_duration(self->patience_)));
  });
}

void AgentLink::Impl::lost(Errc code, const std::string& why) {
  hang_up();
  stage_ = Stage::over;
  later([this, code, why] {
    const auto on_lost = std::exchange(callbacks_, {}).on_lost;
    if (on_lost) on_lost(Error{code, why, {}});
  });
}

/// Ends the attempt in hand.
void AgentLink::Impl::hang_up() {
  ++attempt_;
  error_code ignored;
  timer_.cancel();
  silence_.cancel();
  lookup_->cancel();
  if (socket_.is_open()) {
    // At once, even if a child that was just cloned still holds a copy of the descriptor.
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }
  handshake_.reset();
  keys_.reset();
  in_.clear();
  out_.clear();
  sending_.clear();
}

void AgentLink::Impl::close(std::function<void()> on_closed, Milliseconds patience) {
  callbacks_ = {};
  on_closed_ = std::move(on_closed);
  if (stage_ != Stage::joined) return closed();
  stage_ = Stage::closing;
  options_.connect_by = Deadline::max();
  after(patience, [this] { closed(); });
  write();
}

void AgentLink::Impl::closed() {
  hang_up();
  stage_ = Stage::over;
  later([this] {
    const auto on_closed = std::exchange(on_closed_, {});
    if (on_closed) on_closed();
  });
}

void AgentLink::Impl::abandon() {
  callbacks_ = {};
  on_closed_ = {};
  hang_up();
  stage_ = Stage::over;
}

std::string AgentLink::Impl::local_address() const {
  error_code ec;
  const auto endpoint = socket_.local_endpoint(ec);
  return ec ? std::string() : address_text(endpoint);
}

std::string AgentLink::Impl::peer_address() const {
  error_code ec;
  const auto endpoint = socket_.remote_endpoint(ec);
  return ec ? std::string() : address_text(endpoint);
}

AgentLink::AgentLink(asio::any_io_executor executor, AgentLinkOptions options, AgentLinkCallbacks callbacks)
    : impl_(std::make_shared<Impl>(std::move(executor), std::move(options), std::move(callbacks))) {}
AgentLink::~AgentLink() { impl_->abandon(); }

void AgentLink::start() { impl_->start(); }
void AgentLink::send(FromAgent message) { impl_->send(std::move(message)); }
void AgentLink::close(std::function<void()> on_closed, Milliseconds patience) {
  impl_->close(std::move(on_closed), patience);
}
std::string AgentLink::local_address() const { return impl_->local_address(); }
std::string AgentLink::peer_address() const { return impl_->peer_address(); }
std::string AgentLink::coordinator() const { return impl_->coordinator(); }

}  // namespace ddrun::rendezvous
