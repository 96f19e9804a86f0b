#include "agent_link.hpp"

#include <netinet/tcp.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/helper/host_lookup.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "handshake.hpp"
#include "heartbeat.hpp"
#include "session.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr Milliseconds max_pause{1000};
/// Connections that are refused for this long, without any other reply, mean that the coordinator's process has ended:
/// refusals by a device on the path are shorter.
constexpr Milliseconds refused_timeout{500};
/// Covers the retransmission of a lost SYN after 1 s and after 2 s more.
constexpr std::chrono::seconds connect_timeout{5};
constexpr std::chrono::seconds handshake_timeout{5};
constexpr std::chrono::seconds lookup_timeout{10};

}  // namespace

/// The owner's callbacks; used on the owner's thread only.
struct AgentLink::Owner {
  AgentLinkCallbacks callbacks;
  std::function<void()> on_closed;
};

/// Everything that runs on the link's thread.
class AgentLink::Connection : public std::enable_shared_from_this<AgentLink::Connection> {
 public:
  using tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;

  Connection(asio::io_context& context, boost::asio::any_io_executor owners_executor, std::weak_ptr<Owner> owner,
             AgentLinkOptions options)
      : context_(context),
        owners_executor_(asio::prefer(std::move(owners_executor), asio::execution::outstanding_work.tracked)),
        owner_(std::move(owner)),
        options_(std::move(options)) {
    for (auto& endpoint : options_.coordinators) candidates_.push_back({std::move(endpoint), {}, {}});
  }

  /// Called on the owner's thread: runs `what` on the link's.
  template <class Action>
  void post(Action what) {
    asio::post(context_, [self = shared_from_this(), what = std::move(what)]() mutable { what(*self); });
  }

  void start() {
    stage_ = Stage::searching;
    later([this] { begin_pass(); });
  }
  void send(FromAgent message);
  void close(Milliseconds timeout);
  /// Closes at once and ends the thread.
  void abandon();

 private:
  enum class Stage {
    idle,
    searching,   ///< for an address, or waiting for the next attempt
    connecting,  ///< to target_
    handshaking,
    joining,  ///< JOIN or RESUME was sent
    joined,
    closing,
    over,
  };
  /// A possible address of the coordinator, and the result of the last attempt.
  struct Candidate {
    Endpoint endpoint;
    std::string last_error;
    std::optional<Errc> permanent_error;  ///< retrying is pointless
  };

  // Search.
  void begin_pass();
  void next_candidate();
  void next_target();
  void end_pass();
  void connect(const tcp::endpoint& target);
  void on_connected();
  void attempt_failed(const std::string& why, std::optional<Errc> permanent_error = std::nullopt);
  void give_up();
  [[nodiscard]] bool is_not_listening() const {
    return refused_since_ && Clock::now() - *refused_since_ >= refused_timeout;
  }
  [[nodiscard]] Candidate& candidate() { return candidates_[candidate_]; }
  [[nodiscard]] const Candidate& candidate() const { return candidates_[candidate_]; }
  [[nodiscard]] std::string candidate_text() const;
  [[nodiscard]] std::string target_text() const;
  [[nodiscard]] static std::string address_text(const tcp::endpoint& endpoint);

  // Connection.
  void read();
  void on_bytes(std::string_view bytes);
  void on_handshake_bytes(std::string_view& bytes);
  void on_read_error(error_code ec);
  void take_frames();
  void on_message(const FromCoordinator& message);
  [[nodiscard]] bool should_try_elsewhere(const Refused& refused);
  [[nodiscard]] bool is_stale(const Welcome& welcome);
  void reply_to_ping(const Ping& ping);
  void order_stop(bool at_once) {
    if (options_.on_stop_order) options_.on_stop_order(at_once);
  }
  void enqueue(FromAgent message);
  void send_directly(std::string_view bytes);
  void write();
  void watch_silence();
  void lost(Errc code, const std::string& why, bool unreachable = false);
  void close_socket();
  void reset_attempt();
  void closed();

  // Resuming a broken connection.
  void begin_resuming(const std::string& how);
  void resume_attempt_failed(const std::string& why, std::optional<Errc> permanent_error);
  void on_resumed(const Resumed& resumed);

  /// Posts to the owner's thread, unless the owner is destroyed by then.
  template <class Action>
  void post_to_owner(Action action) {
    asio::post(owners_executor_, [owner = owner_, action = std::move(action)] {
      if (const auto alive = owner.lock()) action(*alive);
    });
  }

  /// Posts `action`, unless another attempt has begun, or the link ended, by then.
  template <class Action>
  void later(Action action) {
    asio::post(context_, [self = shared_from_this(), attempt = attempt_, action] {
      if (attempt == self->attempt_) action();
    });
  }
  template <class Action>
  void after(Clock::duration pause, Action action) {
    timer_.expires_after(std::min<Clock::duration>(pause, options_.connect_by - Clock::now()));
    timer_.async_wait([self = shared_from_this(), attempt = attempt_, action](const error_code& ec) {
      if (!ec && attempt == self->attempt_) action();
    });
  }

  asio::io_context& context_;
  asio::any_io_executor owners_executor_;
  std::weak_ptr<Owner> owner_;
  AgentLinkOptions options_;
  tcp::socket socket_{context_};
  asio::steady_timer timer_{context_};    // of the current attempt, or the pause before the next one
  asio::steady_timer silence_{context_};  // heartbeat timeout
  helper::Running lookup_;
  std::vector<Candidate> candidates_;
  std::size_t candidate_ = 0;
  std::vector<tcp::endpoint> targets_;  // untried addresses of the candidate, next one last
  tcp::endpoint target_;
  /// Short, as agents are often started some milliseconds before the coordinator listens.
  static constexpr Milliseconds first_pause{2};
  Milliseconds pause_ = first_pause;
  std::uint64_t attempt_ = 0;  // callbacks of earlier attempts are ignored
  Stage stage_ = Stage::idle;

  std::optional<AgentHandshake> handshake_;
  std::array<char, 16 * 1024> buffer_;
  std::string payload_;
  error_code send_error_;
  bool is_waiting_to_write_ = false;
  std::string coordinator_host_;
  Milliseconds heartbeat_{0};  // 0: unknown
  Clock::duration heartbeat_timeout_{};
  Clock::time_point last_heard_{};

  // The session, which outlives connections.
  Session session_;
  std::string session_token_;
  bool resuming_ = false;
  std::string break_reason_;
  Clock::time_point resume_by_{};
  std::optional<Clock::time_point> refused_since_;  // connection refused
  std::optional<Clock::time_point> taken_since_;    // node rank or id in use
};

// ---- search, until there is a connection

void AgentLink::Connection::begin_pass() {
  if (Clock::now() >= options_.connect_by) return give_up();
  candidate_ = 0;
  next_candidate();
}

void AgentLink::Connection::next_candidate() {
  while (candidate_ < candidates_.size() && candidate().permanent_error) ++candidate_;
  if (candidate_ == candidates_.size()) return end_pass();
  const auto& [host, port] = candidate().endpoint;
  error_code ec;
  std::vector<std::string> literals;
  if (host == "localhost") literals = {"127.0.0.1", "::1"};
  else if (const auto address = asio::ip::make_address(host, ec); !ec) literals = {address.to_string()};
  const auto found = [this](const std::vector<std::string>& addresses) {
    targets_.clear();
    for (auto text = addresses.rbegin(); text != addresses.rend(); ++text) {
      error_code bad;
      const auto address = asio::ip::make_address(*text, bad);
      if (!bad) targets_.emplace_back(address, candidate().endpoint.port);
    }
    next_target();
  };
  if (!literals.empty()) return found(literals);
  stage_ = Stage::searching;
  const auto timeout = std::min<Clock::duration>(lookup_timeout, options_.connect_by - Clock::now());
  lookup_ = helper::look_up_host(
      context_.get_executor(), host, timeout,
      [this, self = weak_from_this(), attempt = attempt_, found](const Result<std::vector<std::string>>& addresses) {
        const auto alive = self.lock();
        if (!alive || attempt != attempt_) return;
        if (addresses) {
          post_to_owner([addresses = *addresses](const Owner& owner) {
            const auto on_resolved = owner.callbacks.on_resolved;  // the callback may end the link
            if (on_resolved) on_resolved(addresses);
          });
          return found(*addresses);
        }
        targets_.clear();
        attempt_failed(addresses.error().message);
      });
}

void AgentLink::Connection::next_target() {
  if (targets_.empty() || candidate().permanent_error) {
    ++candidate_;
    return next_candidate();
  }
  if (Clock::now() >= options_.connect_by) return give_up();
  target_ = targets_.back();
  targets_.pop_back();
  connect(target_);
}

void AgentLink::Connection::end_pass() {
  const bool all_permanent = std::all_of(candidates_.begin(), candidates_.end(),
                                         [](const auto& one) { return one.permanent_error.has_value(); });
  const bool not_listening = is_not_listening();
  if (all_permanent || (options_.was_reachable && not_listening)) return give_up();
  if (not_listening) {
    post_to_owner([](const Owner& owner) {
      const auto on_not_listening = owner.callbacks.on_not_listening;  // the callback may end the link
      if (on_not_listening) on_not_listening();
    });
  }
  stage_ = Stage::searching;
  after(pause_, [this] { begin_pass(); });
  pause_ = std::min(2 * pause_, max_pause);
}

/// As configured: "node0:29400".
std::string AgentLink::Connection::candidate_text() const {
  return host_port_text(candidate().endpoint.host, candidate().endpoint.port);
}

std::string AgentLink::Connection::address_text(const tcp::endpoint& endpoint) {
  const auto address = IpAddress::parse(endpoint.address().to_string());
  return address ? address->text() : endpoint.address().to_string();
}

/// "node0:29400 (10.0.0.7)", or only the first part if both are equal.
std::string AgentLink::Connection::target_text() const {
  const auto named = candidate_text();
  const auto address = address_text(target_);
  return candidate().endpoint.host == address ? named : concat(named, " (", address, ")");
}

void AgentLink::Connection::connect(const tcp::endpoint& target) {
  // Not by Asio, whose sockets lack O_CLOEXEC and would be inherited by workers.
  const auto protocol = target.protocol();
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return attempt_failed(concat("no socket can be made: ", std::generic_category().message(errno)));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  error_code ec;
  socket_.assign(protocol, fd, ec);
  socket_.non_blocking(true, ec);
  if (!options_.local_address.empty()) {
    const auto local = asio::ip::make_address(options_.local_address, ec);
    if (ec || (local.is_v4() != target.address().is_v4())) {
      return attempt_failed(concat(target_text(), " cannot be reached from '", options_.local_address,
                                   "', which is no address of the same kind"));
    }
    socket_.bind({local, 0}, ec);
    if (ec) return attempt_failed(concat("cannot connect from ", options_.local_address, ": ", ec.message()));
  }
  stage_ = Stage::connecting;
  after(connect_timeout, [this] {
    refused_since_.reset();
    attempt_failed(concat(target_text(), " does not answer; is there a firewall in between?"));
  });
  socket_.async_connect(target, [self = shared_from_this(), attempt = attempt_](const error_code& result) {
    if (attempt != self->attempt_) return;
    if (result != asio::error::connection_refused) self->refused_since_.reset();
    if (!result) return self->on_connected();
    if (result == asio::error::connection_refused) {
      if (!self->refused_since_) self->refused_since_ = Clock::now();
      return self->attempt_failed(concat("no process listens on ", self->target_text()));
    }
    self->attempt_failed(concat(self->target_text(), " cannot be reached: ", result.message()));
  });
}

void AgentLink::Connection::on_connected() {
  // If no process listens on an ephemeral port, TCP can connect a socket to itself.
  error_code ec;
  if (socket_.local_endpoint(ec) == target_) return attempt_failed(concat("no process listens on ", target_text()));
  stage_ = Stage::handshaking;
  after(handshake_timeout,
        [this] { attempt_failed(concat("what listens on ", target_text(), " does not answer ddrun's greeting")); });
  handshake_.emplace(options_.secret ? &*options_.secret : nullptr, random_nonce());
  send_directly(handshake_->begin());
  read();
}

/// One address failed; the next one follows, unless all failures are permanent.
void AgentLink::Connection::attempt_failed(const std::string& why, std::optional<Errc> permanent_error) {
  close_socket();
  if (resuming_) return resume_attempt_failed(why, permanent_error);
  candidate().last_error = why;
  candidate().permanent_error = permanent_error;
  post_to_owner([why](const Owner& owner) {
    const auto on_retry = owner.callbacks.on_retry;
    if (on_retry) on_retry(why);
  });
  later([this] { next_target(); });
}

void AgentLink::Connection::give_up() {
  std::string errors;
  Errc code = Errc::timeout;
  for (const auto& one : candidates_) {
    if (one.permanent_error) code = *one.permanent_error;
    if (one.last_error.empty()) continue;
    errors += (errors.empty() ? "" : "; ") + one.last_error;
  }
  if (candidates_.empty()) return lost(Errc::invalid_argument, "there is no address of a coordinator");
  if (errors.empty()) errors = "the time was over before it could be tried";
  const bool all_permanent = std::all_of(candidates_.begin(), candidates_.end(),
                                         [](const auto& one) { return one.permanent_error.has_value(); });
  if (all_permanent) return lost(code, errors);
  lost(Errc::timeout, concat("the coordinator could not be reached in time: ", errors,
                             ". Is the ddrun there running, and is its port open for this machine?"));
}

// ---- the connection

void AgentLink::Connection::read() {
  socket_.async_read_some(asio::buffer(buffer_),
                          [self = shared_from_this(), attempt = attempt_](const error_code& ec, std::size_t got) {
                            if (attempt != self->attempt_) return;
                            if (ec) return self->on_read_error(ec);
                            self->on_bytes({self->buffer_.data(), got});
                            if (attempt == self->attempt_) self->read();
                          });
}

void AgentLink::Connection::on_bytes(std::string_view bytes) {
  last_heard_ = Clock::now();
  if (stage_ == Stage::closing) return;
  if (stage_ == Stage::handshaking) {
    on_handshake_bytes(bytes);
    if (stage_ != Stage::joining) return;
  }
  session_.receive(bytes);
  take_frames();
}

void AgentLink::Connection::on_handshake_bytes(std::string_view& bytes) {
  const auto where = target_text();
  std::string reply;
  switch (handshake_->feed(bytes, reply)) {
    case HandshakeState::in_progress: return send_directly(reply);
    case HandshakeState::done: break;
    case HandshakeState::foreign_protocol:
      return attempt_failed(concat("what listens on ", where, " is not ddrun: give the coordinator's port"),
                            Errc::protocol);
    case HandshakeState::other_version:
      return attempt_failed(concat("the coordinator on ", where, " speaks version ", handshake_->peer_version(),
                                   " of ddrun's protocol, and this ddrun version ", protocol_version,
                                   ": start the same ddrun on all machines"),
                            Errc::protocol);
    case HandshakeState::needs_secret:
      return attempt_failed(concat("the coordinator on ", where,
                                   " asks for a secret and this ddrun has none: give it "
                                   "the job's with --secret-file or DDRUN_SECRET, without --insecure"),
                            Errc::invalid_argument);
    case HandshakeState::needs_no_secret:
      return attempt_failed(concat("the coordinator on ", where,
                                   " was started with --insecure and this ddrun has a secret: start all of them with "
                                   "--insecure, or none"),
                            Errc::invalid_argument);
    case HandshakeState::busy:
      return attempt_failed(concat("the coordinator on ", where, " has too many connections to greet at once"));
    case HandshakeState::rejected:
      return attempt_failed(
          concat("the coordinator on ", where, " turned this ddrun away because it has another secret: ",
                 other_secret_advice(options_.secret_file, options_.join.host, candidate().endpoint.host, "")),
          Errc::invalid_argument);
    case HandshakeState::wrong_secret:
      return attempt_failed(concat("the coordinator on ", where,
                                   " does not know this job's secret: give all agents the "
                                   "same one (--secret-file or DDRUN_SECRET), or check who listens there"),
                            Errc::invalid_argument);
  }
  send_directly(reply);
  session_.connect(handshake_->keys());
  stage_ = Stage::joining;
  after(options_.join_reply_timeout, [this] {
    attempt_failed(concat("the coordinator on ", target_text(), " does not say whether this ddrun may take part"));
  });
  if (!resuming_) session_.reset_received();
  const auto type =
      encode(resuming_ ? FromAgent(Resume{session_token_, session_.received()}) : FromAgent(options_.join), payload_);
  session_.send(type, payload_);
  write();
}

void AgentLink::Connection::on_read_error(error_code ec) {
  // The kernel reports a reset once, to either direction. (A broken pipe is reported after an orderly close, too.)
  if (ec == asio::error::eof && send_error_ && send_error_ != asio::error::broken_pipe) {
    ec = send_error_;
  }
  const std::string how = ec == asio::error::eof ? "connection closed" : ec.message();
  switch (stage_) {
    case Stage::closing: return closed();
    case Stage::joined:
      // Orderly close, by the process or by the kernel at its end.
      if (ec != asio::error::eof && !session_token_.empty()) return begin_resuming(how);
      return lost(Errc::connection_lost,
                  concat("the connection to the coordinator", coordinator_host_.empty() ? "" : " on ",
                         coordinator_host_, " (", target_text(), ") broke: ", how));
    case Stage::handshaking:
      // A coordinator that has replied to the hello closes slow connections by itself.
      if (handshake_->peer_version() != protocol_version) {
        return attempt_failed(concat(target_text(), " hung up before it answered: ", how));
      }
      [[fallthrough]];
    default: return attempt_failed(concat("the coordinator on ", target_text(), " hung up before it let us in: ", how));
  }
}

void AgentLink::Connection::take_frames() {
  const auto broken = [this](const std::string& why) {
    lost(Errc::protocol, concat("the connection to the coordinator on ", target_text(), " cannot be used: ", why));
  };
  for (const auto attempt = attempt_; attempt == attempt_ && stage_ != Stage::closing;) {
    FrameOpener::Frame frame;
    const auto status = session_.next(frame);
    if (status == FrameOpener::Status::incomplete) return;
    if (status == FrameOpener::Status::too_long) return broken("a message is longer than any may be");
    if (status == FrameOpener::Status::wrong_tag) return broken("a message was changed on its way");
    const auto message = decode_from_coordinator(frame.type, frame.payload);
    if (!message) return broken(concat("it sent ", message.error().message));
    on_message(*message);
  }
}

void AgentLink::Connection::on_message(const FromCoordinator& message) {
  if (const auto* resumed = std::get_if<Resumed>(&message)) return on_resumed(*resumed);
  if (const auto* ping = std::get_if<Ping>(&message)) return reply_to_ping(*ping);
  if (const auto* refused = std::get_if<Refused>(&message); refused != nullptr && should_try_elsewhere(*refused))
    return;
  if (const auto* welcome = std::get_if<Welcome>(&message); welcome != nullptr && is_stale(*welcome)) return;
  if (stage_ == Stage::joining) {
    stage_ = Stage::joined;
    timer_.cancel();
    options_.connect_by = Deadline::max();
    resuming_ = false;
    session_.open();
    write();
  }
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    coordinator_host_ = welcome->coordinator_host;
    session_token_ = welcome->session;
    heartbeat_ = Milliseconds(std::clamp<std::uint32_t>(welcome->heartbeat_ms, 1, 3'600'000));
    heartbeat_timeout_ = heartbeat_ * std::int64_t{std::clamp<std::uint32_t>(welcome->heartbeat_misses, 1, 1'000'000)};
    watch_silence();
  }
  post_to_owner([message](const Owner& owner) {
    const auto on_message = owner.callbacks.on_message;  // the callback may end the link
    if (on_message) on_message(message);
  });
  const auto* stop = std::get_if<Stop>(&message);
  if (stop != nullptr && stop->signal == SIGKILL) order_stop(true);
  else if (std::holds_alternative<Refused>(message)) order_stop(false);
}

/// A coordinator of a lower term has not noticed yet that another one leads.
bool AgentLink::Connection::is_stale(const Welcome& welcome) {
  if (welcome.term >= options_.join.claim.term) return false;
  attempt_failed(concat("the coordinator on ", welcome.coordinator_host, " (", target_text(), ") leads no more"));
  return true;
}

void AgentLink::Connection::reply_to_ping(const Ping& ping) {
  if (stage_ != Stage::joined) return;
  if (!session_.confirm(ping.received)) {
    return lost(Errc::protocol, concat("the connection to the coordinator on ", target_text(),
                                       " cannot be used: it has heard ", ping.received, " messages, it says"));
  }
  enqueue(Pong{ping.number, options_.stalled_ms ? options_.stalled_ms() : 0, session_.received()});
}

/// Whether to try further candidates: this one serves another job, a coordinator has stepped down, or the node rank is
/// held by an agent whose loss is not noticed yet.
bool AgentLink::Connection::should_try_elsewhere(const Refused& refused) {
  if (refused.kind == RefusalKind::moved && stage_ == Stage::joining && !resuming_) {
    attempt_failed(refused.why);
    return true;
  }
  if (refused.kind == RefusalKind::taken) {
    if (!taken_since_) taken_since_ = Clock::now();
    if (Clock::now() - *taken_since_ >= options_.conflict_timeout) return false;
    close_socket();
    candidate().last_error = refused.why;
    later([this] { next_target(); });
    return true;
  }
  if (refused.kind != RefusalKind::other_job) return false;
  const auto left =
      std::count_if(candidates_.begin(), candidates_.end(), [](const auto& one) { return !one.permanent_error; });
  if (left < 2) return false;
  attempt_failed(refused.why, Errc::invalid_argument);
  return true;
}

void AgentLink::Connection::send(FromAgent message) {
  if (options_.on_workers_stopped && std::holds_alternative<Stopped>(message)) options_.on_workers_stopped();
  if (stage_ != Stage::closing && stage_ != Stage::over) enqueue(std::move(message));
}

/// Kept until the coordinator is in the session. Dropped if it is too long even when shortened.
void AgentLink::Connection::enqueue(FromAgent message) {
  const auto type = encode(message, payload_, max_payload);
  if (!type) return;
  session_.send(*type, payload_);
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
      socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this(), attempt = attempt_](error_code wait) {
        if (attempt != self->attempt_ || wait) return;
        self->is_waiting_to_write_ = false;
        self->write();
      });
    }
  }
  if (stage_ != Stage::closing || send_error_ || !session_.unsent().empty()) return;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

/// Rechecks when the heartbeat limit would be exceeded. A late timer means that this process was suspended, so that
/// messages may be unread.
void AgentLink::Connection::watch_silence() {
  if (options_.is_local) return;
  const auto limit = heartbeat_timeout_ + Heartbeat::margin(heartbeat_);
  const auto due = last_heard_ + limit;
  silence_.expires_at(due);
  silence_.async_wait([self = shared_from_this(), attempt = attempt_, due, limit](const error_code& ec) {
    if (ec || attempt != self->attempt_ || self->stage_ != Stage::joined) return;
    const auto now = Clock::now();
    error_code unread;
    if (now - due > self->heartbeat_ || self->socket_.available(unread) > 0)
      self->last_heard_ = now - limit + self->heartbeat_;
    if (self->last_heard_ + limit > now) return self->watch_silence();
    self->lost(Errc::connection_lost,
               concat("nothing was heard from the coordinator on ", self->coordinator_host_, " (", self->target_text(),
                      ") for ", format_duration(self->heartbeat_timeout_)),
               true);
  });
}

void AgentLink::Connection::lost(Errc code, const std::string& why, bool unreachable) {
  // Closing the connection would report that the workers have ended: while they run it stays open, unused.
  if (stage_ == Stage::joined || resuming_) order_stop(false);
  if (stage_ == Stage::joined) reset_attempt();
  else close_socket();
  stage_ = Stage::over;
  post_to_owner([loss = LinkLoss{Error{code, why, {}}, unreachable}](Owner& owner) {
    const auto on_lost = std::exchange(owner.callbacks, {}).on_lost;
    if (on_lost) on_lost(loss);
  });
}

/// Ends the current attempt.
void AgentLink::Connection::close_socket() {
  reset_attempt();
  error_code ignored;
  if (socket_.is_open()) {
    // Takes effect even if a child in the middle of clone() holds a copy of the descriptor.
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }
}

/// No more input or output.
void AgentLink::Connection::reset_attempt() {
  ++attempt_;
  timer_.cancel();
  silence_.cancel();
  lookup_.reset();
  handshake_.reset();
  session_.disconnect();
  is_waiting_to_write_ = false;
  send_error_ = {};
}

void AgentLink::Connection::close(Milliseconds timeout) {
  if (stage_ != Stage::joined) return closed();
  stage_ = Stage::closing;
  options_.connect_by = Deadline::max();
  after(timeout, [this] { closed(); });
  write();
}

void AgentLink::Connection::closed() {
  close_socket();
  stage_ = Stage::over;
  post_to_owner([](Owner& owner) {
    const auto on_closed = std::exchange(owner.on_closed, {});
    if (on_closed) on_closed();
  });
}

void AgentLink::Connection::abandon() {
  close_socket();
  stage_ = Stage::over;
  context_.stop();
}

// ---- resuming a broken connection: no message is lost or repeated

/// The coordinator keeps the member for the heartbeat timeout.
void AgentLink::Connection::begin_resuming(const std::string& how) {
  close_socket();
  resuming_ = true;
  break_reason_ = how;
  refused_since_.reset();
  pause_ = first_pause;
  resume_by_ = last_heard_ + heartbeat_timeout_;
  options_.connect_by = resume_by_;
  connect(target_);
}

void AgentLink::Connection::resume_attempt_failed(const std::string& why, std::optional<Errc> permanent_error) {
  const auto now = Clock::now();
  const bool not_listening = is_not_listening();
  if (permanent_error || not_listening || now >= resume_by_) {
    return lost(Errc::connection_lost,
                concat("the connection to the coordinator on ", coordinator_host_, " (", target_text(),
                       ") broke: ", break_reason_, "; it could not be made again: ", why),
                !not_listening && !permanent_error);
  }
  stage_ = Stage::searching;
  after(pause_, [this] { connect(target_); });
  pause_ = std::min<Milliseconds>(2 * pause_, Milliseconds{200});
}

void AgentLink::Connection::on_resumed(const Resumed& resumed) {
  if (stage_ != Stage::joining || !resuming_ || !session_.confirm(resumed.received)) {
    return lost(Errc::protocol,
                concat("the connection to the coordinator on ", target_text(), " cannot be used: it says RESUMED"));
  }
  stage_ = Stage::joined;
  resuming_ = false;
  timer_.cancel();
  options_.connect_by = Deadline::max();
  session_.open();
  write();
  watch_silence();
}

// ---- public class

AgentLink::AgentLink(asio::any_io_executor executor, std::unique_ptr<asio::io_context> context,
                     AgentLinkOptions options, AgentLinkCallbacks callbacks)
    : owner_(std::make_shared<Owner>(Owner{std::move(callbacks), {}})),
      context_(std::move(context)),
      connection_(std::make_shared<Connection>(*context_, std::move(executor), owner_, std::move(options))) {}

AgentLink::~AgentLink() {
  owner_.reset();
  if (!thread_.joinable()) return;
  connection_->post([](Connection& connection) { connection.abandon(); });
  thread_.join();
  connection_.reset();  // pending handlers hold it, too
}

Result<void> AgentLink::start() {
  auto thread = start_thread_signals_blocked("ddrun-link", [context = context_.get()] {
    const auto work = asio::make_work_guard(*context);
    context->run();
  });
  if (!thread) return tl::unexpected(std::move(thread.error()));
  thread_ = std::move(*thread);
  connection_->post([](Connection& connection) { connection.start(); });
  return {};
}

void AgentLink::send(FromAgent message) {
  connection_->post(
      [message = std::move(message)](Connection& connection) mutable { connection.send(std::move(message)); });
}

void AgentLink::close(std::function<void()> on_closed, Milliseconds timeout) {
  owner_->callbacks = {};
  owner_->on_closed = std::move(on_closed);
  if (!thread_.joinable()) return connection_->close(timeout);  // never started
  connection_->post([timeout](Connection& connection) { connection.close(timeout); });
}

}  // namespace ddrun::rendezvous
