#include "agent_link.hpp"

#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "codec.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/helper/host_lookup.hpp"
#include "session.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;

/// Everything that runs on the link's thread: the socket and the timers of Dialer and Session.
class AgentLink::Connection : public std::enable_shared_from_this<AgentLink::Connection> {
 public:
  using tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;

  Connection(asio::io_context& context, asio::any_io_executor owners_executor,
             std::weak_ptr<AgentLinkCallbacks> callbacks, AgentLinkOptions options)
      : context_(context),
        owners_executor_(asio::prefer(std::move(owners_executor), asio::execution::outstanding_work.tracked)),
        callbacks_(std::move(callbacks)),
        options_(std::move(options)),
        dialer_(options_) {}

  /// Called on the owner's thread: runs `what` on the link's.
  template <class Action>
  void post(Action what) {
    asio::post(context_, [self = shared_from_this(), what = std::move(what)]() mutable { what(*self); });
  }

  void start() { dial(dialer_.begin(Clock::now())); }
  void send(FromAgent message);
  void order_stop(Grace grace);
  void close(Milliseconds timeout);
  /// Closes at once and ends the thread.
  void abandon() {
    closed();
    context_.stop();
  }

 private:
  enum class Stage { open, closing, over };

  // What the dialer wants.
  void dial(const DialStep& step);
  void carry_out(const dial::LookUp& order);
  void carry_out(const dial::Connect& order);
  void carry_out(const dial::Pause& /*order*/) { end_attempt(); }
  void carry_out(const dial::Greet& order);
  void carry_out(FromAgent greeting);
  void carry_out(const dial::Open& /*order*/) {
    session_.open();
    write();
  }
  void carry_out(const dial::Watch& /*order*/) {}
  void carry_out(const LinkLoss& loss);
  void wake_at(Deadline due);

  // The connection.
  void read();
  void on_bytes(std::string_view bytes);
  void on_read_error(error_code ec);
  void take_frames();
  void on_message(const FromCoordinator& message);
  void send_now(FromAgent message);
  void send_answers();
  void send_directly(std::string_view bytes);
  void write();
  void end_attempt(bool keep_open = false);
  void closed();
  void note_workers();

  /// Posts a callback to the owner's thread, unless the link is destroyed by then.
  template <class Callback, class... Args>
  void notify(Callback AgentLinkCallbacks::*which, const Args&... args) {
    asio::post(owners_executor_, [weak = callbacks_, which, args...] {
      const auto callbacks = weak.lock();
      const auto callback = callbacks ? (*callbacks).*which : nullptr;  // copied: it may end the link
      if (callback) callback(args...);
    });
  }

  /// Binds a handler that is skipped if another attempt has begun, or the link ended, by then.
  template <class Action>
  auto in_attempt(Action action) {
    return [self = shared_from_this(), attempt = attempt_, action = std::move(action)](const auto&... args) {
      if (attempt == self->attempt_) action(args...);
    };
  }

  asio::io_context& context_;
  asio::any_io_executor owners_executor_;
  std::weak_ptr<AgentLinkCallbacks> callbacks_;
  AgentLinkOptions options_;
  Dialer dialer_;
  Session session_;
  PacedAnswers answers_;
  Stage stage_ = Stage::open;
  struct Workers {
    bool run = false;
    std::optional<Clock::time_point> lose_sight_at{};
    bool operator==(const Workers&) const = default;
  } workers_;
  std::uint64_t attempt_ = 0;  // callbacks of earlier attempts are ignored
  tcp::socket socket_{context_};
  asio::steady_timer timer_{context_};  // for the dialer, or for closing
  helper::Running lookup_;
  std::optional<AgentHandshake> handshake_;
  std::array<char, 16 * 1024> buffer_;
  error_code send_error_;
  bool is_waiting_to_write_ = false;
};

// ---- what the dialer wants

void AgentLink::Connection::dial(const DialStep& step) {
  for (const auto& why : step.retries) notify(&AgentLinkCallbacks::on_retry, why);
  if (step.not_listening) notify(&AgentLinkCallbacks::on_not_listening);
  std::visit([this](const auto& order) { carry_out(order); }, step.next);
  wake_at(step.due);
}

void AgentLink::Connection::wake_at(Deadline due) {
  timer_.expires_at(due);
  timer_.async_wait(in_attempt([this](const error_code& ec) {
    if (ec) return;
    if (stage_ == Stage::closing) return closed();
    error_code not_connected;
    if (socket_.available(not_connected) > 0) dialer_.heard(Clock::now());  // and not read yet
    dial(dialer_.timed_out(Clock::now()));
  }));
}

void AgentLink::Connection::carry_out(const dial::LookUp& order) {
  end_attempt();
  lookup_ = helper::look_up_host(
      context_.get_executor(), order.host, order.timeout,
      [this, weak = weak_from_this(), attempt = attempt_](const Result<std::vector<std::string>>& addresses) {
        const auto alive = weak.lock();
        if (!alive || attempt != attempt_) return;
        if (addresses) notify(&AgentLinkCallbacks::on_resolved, *addresses);
        dial(dialer_.resolved(addresses, Clock::now()));
      });
}

void AgentLink::Connection::carry_out(const dial::Connect& order) {
  end_attempt();
  const auto failed = [this](const char* what, std::string_view where) {
    auto why = concat(what, where, ": ", std::generic_category().message(errno));
    asio::post(context_, in_attempt([this, why = std::move(why)] { dial(dialer_.failed(why, Clock::now())); }));
  };
  const auto to = SocketAddress::parse(order.to.host, order.to.port).value_or(SocketAddress());
  // Not by Asio, whose sockets lack O_CLOEXEC and would be inherited by workers.
  const int fd = ::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed("no socket can be made", "");
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  tcp::endpoint target;
  target.resize(to.size);
  std::memcpy(target.data(), to.get(), to.size);
  error_code ec;
  socket_.assign(target.protocol(), fd, ec);
  if (!ec) socket_.non_blocking(true, ec);
  if (ec) {
    if (!socket_.is_open()) ::close(fd);
    errno = ec.value();
    return failed("no socket can be used", "");
  }
  const auto from = SocketAddress::parse(order.from, 0).value_or(SocketAddress());
  if (!order.from.empty() && ::bind(fd, from.get(), from.size) != 0) return failed("cannot connect from ", order.from);
  socket_.async_connect(target, in_attempt([this, target](const error_code& result) {
                          const auto now = Clock::now();
                          // If no process listens on an ephemeral port, TCP can connect a socket to itself.
                          error_code unknown;
                          const bool is_own = !result && socket_.local_endpoint(unknown) == target;
                          if (is_own || result == asio::error::connection_refused) return dial(dialer_.refused(now));
                          dial(result ? dialer_.unreachable(result.message(), now) : dialer_.connected(now));
                        }));
}

void AgentLink::Connection::carry_out(const dial::Greet& /*order*/) {
  handshake_.emplace(options_.secret ? &*options_.secret : nullptr, random_nonce());
  send_directly(handshake_->begin());
  read();
}

void AgentLink::Connection::carry_out(FromAgent greeting) {
  session_.connect(handshake_->keys());
  handshake_.reset();
  if (auto* resume = std::get_if<Resume>(&greeting)) resume->received = session_.received();
  else session_.reset_received();
  send(std::move(greeting));
}

void AgentLink::Connection::carry_out(const LinkLoss& loss) {
  if (dialer_.is_member()) order_stop(loss.grace());
  // Closing the connection would report that the workers have ended: while they run it stays open, unused.
  end_attempt(dialer_.is_joined());
  stage_ = Stage::over;
  notify(&AgentLinkCallbacks::on_lost, loss);
}

// ---- the connection

void AgentLink::Connection::read() {
  socket_.async_read_some(asio::buffer(buffer_), in_attempt([this](const error_code& ec, std::size_t got) {
                            if (ec) return on_read_error(ec);
                            const auto attempt = attempt_;
                            on_bytes({buffer_.data(), got});
                            if (attempt == attempt_) read();
                          }));
}

void AgentLink::Connection::on_bytes(std::string_view bytes) {
  const auto now = Clock::now();
  dialer_.heard(now);
  if (stage_ == Stage::closing) return;
  if (handshake_) {
    std::string reply;
    const auto state = handshake_->feed(bytes, reply);
    if (state == HandshakeState::in_progress || state == HandshakeState::done) send_directly(reply);
    const auto step = dialer_.shook_hands(state, handshake_->peer_version(), now);
    if (step) dial(*step);
    if (state != HandshakeState::done) return;
  }
  session_.receive(bytes);
  take_frames();
  note_workers();
}

void AgentLink::Connection::on_read_error(error_code ec) {
  if (stage_ == Stage::closing) return closed();
  // The kernel reports a reset once, to either direction. (A broken pipe is reported after an orderly close, too.)
  if (ec == asio::error::eof && send_error_ && send_error_ != asio::error::broken_pipe) ec = send_error_;
  const bool in_order = ec == asio::error::eof;
  dial(dialer_.hung_up(in_order ? "connection closed" : ec.message(), in_order, Clock::now()));
}

void AgentLink::Connection::take_frames() {
  for (const auto attempt = attempt_; attempt == attempt_ && stage_ != Stage::closing;) {
    FrameOpener::Frame frame;
    switch (session_.next(frame)) {
      case FrameOpener::Status::incomplete: return;
      case FrameOpener::Status::whole: break;
      case FrameOpener::Status::too_long: return dial(dialer_.unusable("a message is longer than any may be"));
      case FrameOpener::Status::wrong_tag: return dial(dialer_.unusable("a message was changed on its way"));
    }
    const auto message = decode_from_coordinator(frame.type, frame.payload);
    if (message) on_message(*message);
    // A message of an unknown type is of a later version.
    else if (message.error().code != Errc::unsupported || !dialer_.is_joined())
      return dial(dialer_.unusable(concat("it sent ", message.error().message)));
  }
}

void AgentLink::Connection::on_message(const FromCoordinator& message) {
  if (const auto* ping = std::get_if<Ping>(&message)) {
    if (!dialer_.is_joined()) return;
    if (!session_.confirm(ping->received)) {
      return dial(dialer_.unusable(concat("it has heard ", ping->received, " messages, it says")));
    }
    if (const auto step = dialer_.pinged(*ping, Clock::now())) dial(*step);
    send_answers();
    const auto stalled_ms = static_cast<std::uint32_t>(std::min<std::int64_t>(options_.stalled().count(), UINT32_MAX));
    return send(Pong{ping->number, stalled_ms, session_.received()});
  }
  const auto* resumed = std::get_if<Resumed>(&message);
  if (resumed != nullptr && !session_.confirm(resumed->received)) return dial(dialer_.unusable("it says RESUMED"));
  const auto attempt = attempt_;
  if (const auto step = dialer_.received(message, Clock::now())) dial(*step);
  if (resumed != nullptr || attempt != attempt_) return;
  notify(&AgentLinkCallbacks::on_message, message);
  if (const auto grace = ordered_stop(message)) order_stop(*grace);
}

/// The next round of those who have lost this agent may begin soon after it should have noticed that.
void AgentLink::Connection::order_stop(Grace grace) {
  const auto now = Clock::now();
  const bool lost_sight = grace == Grace::lost_sight;
  options_.on_stop_order(grace, lost_sight ? std::min(now, dialer_.loses_sight_at().value_or(now)) : now);
}

void AgentLink::Connection::note_workers() {
  const Workers workers{dialer_.has_workers(), dialer_.loses_sight_at()};
  if (std::exchange(workers_, workers) == workers) return;
  options_.on_workers(workers.run, workers.lose_sight_at, dialer_.heartbeat());
}

void AgentLink::Connection::send_answers() {
  while (auto part = answers_.next(session_)) send_now(std::move(*part));
}

void AgentLink::Connection::send(FromAgent message) {
  const auto* const answer = std::get_if<Stacks>(&message);
  if (answer == nullptr) return send_now(std::move(message));
  answers_.add(*answer);
  send_answers();
}

/// Kept until this agent is in the session. Dropped if it is too long even when shortened.
void AgentLink::Connection::send_now(FromAgent message) {
  if (std::holds_alternative<Stopped>(message)) {
    dialer_.workers_ended();
    note_workers();
    options_.on_workers_stopped();
  }
  std::string payload;
  const auto type = encode(message, payload, max_payload);
  if (!type || stage_ != Stage::open) return;
  session_.send(*type, payload);
  write();
}

/// For the handshake, whose few bytes fit into the send buffer of a new connection.
void AgentLink::Connection::send_directly(std::string_view bytes) {
  if (!send_error_) socket_.send(asio::buffer(bytes), MSG_NOSIGNAL | MSG_DONTWAIT, send_error_);
}

void AgentLink::Connection::write() {
  // After an error only reading is possible.
  while (!send_error_ && !is_waiting_to_write_ && !session_.unsent().empty()) {
    // Directly, without a detour through the event loop, for lower latency.
    error_code ec;
    const std::size_t sent = socket_.send(asio::buffer(session_.unsent()), MSG_NOSIGNAL | MSG_DONTWAIT, ec);
    if (!ec) {
      session_.sent(sent);
    } else if (ec != asio::error::would_block && ec != asio::error::try_again) {
      send_error_ = ec;  // the first error distinguishes a reset from an orderly close
    } else {
      is_waiting_to_write_ = true;
      socket_.async_wait(tcp::socket::wait_write, in_attempt([this](const error_code& wait) {
                           if (wait) return;
                           is_waiting_to_write_ = false;
                           write();
                         }));
    }
  }
  if (stage_ != Stage::closing || send_error_ || !session_.unsent().empty()) return;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

/// No more input or output.
void AgentLink::Connection::end_attempt(bool keep_open) {
  ++attempt_;
  timer_.cancel();
  lookup_.reset();
  handshake_.reset();
  session_.disconnect();
  is_waiting_to_write_ = false;
  send_error_ = {};
  if (keep_open || !socket_.is_open()) return;
  // Takes effect even if a child in the middle of clone() holds a copy of the descriptor.
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void AgentLink::Connection::close(Milliseconds timeout) {
  if (stage_ != Stage::open || !dialer_.is_joined()) return closed();
  stage_ = Stage::closing;
  wake_at(Clock::now() + timeout);
  write();
}

void AgentLink::Connection::closed() {
  end_attempt();
  stage_ = Stage::over;
  notify(&AgentLinkCallbacks::on_closed);
}

// ---- public class

AgentLink::AgentLink(asio::any_io_executor executor, std::unique_ptr<asio::io_context> context,
                     AgentLinkOptions options, AgentLinkCallbacks callbacks)
    : callbacks_(std::make_shared<AgentLinkCallbacks>(std::move(callbacks))),
      context_(std::move(context)),
      connection_(std::make_shared<Connection>(*context_, std::move(executor), callbacks_, std::move(options))) {}

AgentLink::~AgentLink() {
  callbacks_.reset();
  if (!thread_.joinable()) return;
  connection_->post([](Connection& connection) { connection.abandon(); });
  thread_.join();
  connection_.reset();  // pending handlers hold it, too
}

Result<void> AgentLink::start() {
  thread_ = TRY(start_thread_signals_blocked("ddrun-link", [context = context_.get()] {
    const auto work = asio::make_work_guard(*context);
    context->run();
  }));
  connection_->post([](Connection& connection) { connection.start(); });
  return {};
}

void AgentLink::send(FromAgent message) {
  connection_->post(
      [message = std::move(message)](Connection& connection) mutable { connection.send(std::move(message)); });
}

void AgentLink::order_stop() {
  connection_->post([](Connection& connection) { connection.order_stop(Grace::whole); });
}

void AgentLink::close(std::function<void()> on_closed, Milliseconds timeout) {
  *callbacks_ = {};
  callbacks_->on_closed = std::move(on_closed);
  if (!thread_.joinable()) return connection_->close(timeout);  // never started
  connection_->post([timeout](Connection& connection) { connection.close(timeout); });
}

namespace {

/// Kills this node's workers if the owner, which was ordered to stop them, has not done so in time.
class WorkerKiller : public std::enable_shared_from_this<WorkerKiller> {
 public:
  /// `kill` kills once, and returns true if there were any.
  WorkerKiller(boost::asio::io_context& context, std::function<bool()> kill)
      : timer_(context), kill_(std::move(kill)) {}

  void arm(Milliseconds grace, Clock::time_point since) {
    const auto at = since + grace + shutdown::owner_margin;
    if (kill_at_ && *kill_at_ <= at) return;
    kill_at_ = at;
    kill_at(at, max_kills);
  }
  void disarm() {
    kill_at_.reset();
    timer_.cancel();
  }

 private:
  static constexpr Milliseconds kill_interval{20};
  static constexpr int max_kills = 50;

  /// Repeated while there are any: a worker may fork while others are killed.
  void kill_at(Clock::time_point at, int times) {
    timer_.expires_at(at);
    timer_.async_wait([self = shared_from_this(), times](const boost::system::error_code& ec) {
      if (ec || !self->kill_at_) return;
      if (self->kill_() && times > 0) return self->kill_at(Clock::now() + kill_interval, times - 1);
      self->kill_at_.reset();  // another order may come
    });
  }

  boost::asio::steady_timer timer_;
  std::function<bool()> kill_;
  std::optional<Clock::time_point> kill_at_;
};

/// Measures how long the owner's thread has been blocked: a probe that it has not run yet shows it.
class StallProbe {
 public:
  explicit StallProbe(boost::asio::any_io_executor owner) : owner_(std::move(owner)) {}

  /// 0: it has run the last probe, and gets another one.
  Milliseconds measure() {
    const auto now = Clock::now();
    if (is_pending_->exchange(true)) return std::chrono::duration_cast<Milliseconds>(now - probed_at_);
    probed_at_ = now;
    boost::asio::post(owner_, [is_pending = is_pending_] { *is_pending = false; });
    return Milliseconds{0};
  }

 private:
  boost::asio::any_io_executor owner_;
  std::shared_ptr<std::atomic<bool>> is_pending_ = std::make_shared<std::atomic<bool>>(false);
  Clock::time_point probed_at_{};
};

}  // namespace

void serve_blocked_owner(AgentLinkOptions& link, boost::asio::io_context& context,
                         const boost::asio::any_io_executor& executor, std::function<bool()> kill_workers,
                         Milliseconds grace, Milliseconds lost_sight_grace) {
  link.stalled = [probe = std::make_shared<StallProbe>(executor)] { return probe->measure(); };
  if (!kill_workers) return;
  const auto killer = std::make_shared<WorkerKiller>(context, std::move(kill_workers));
  link.on_stop_order = [killer, grace, lost_sight_grace](Grace order, Clock::time_point since) {
    const auto longest = order == Grace::none ? Milliseconds{0} : order == Grace::lost_sight ? lost_sight_grace : grace;
    killer->arm(longest, since);
  };
  link.on_workers_stopped = [killer] { killer->disarm(); };
}

}  // namespace ddrun::rendezvous
