#include "ddrun/rendezvous/coordinator_server.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "codec.hpp"
#include "coordinator.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/listener.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "handshake.hpp"
#include "session.hpp"

namespace ddrun::rendezvous {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// For agents to read their last message.
constexpr seconds done_timeout{5};
constexpr seconds server_stop_timeout{1};
/// With so many pending events that no iteration handles all, timers still run at least this often.
constexpr milliseconds max_without_tick{100};

// PROTOCOL.md, section 1.
constexpr seconds newcomer_timeout{5};
constexpr std::size_t max_newcomers_per_address = 32;

/// For an agent to read its last message and close.
constexpr seconds link_close_timeout{5};
/// Unsent bytes above which an agent counts as not reading.
constexpr std::size_t max_unsent = 64 * 1024 * 1024;
/// With what is sent and not confirmed yet, which takes up to an interval.
constexpr std::size_t max_kept = 4 * max_unsent;

}  // namespace

/// The server's thread and its state. Connections are identified by number; an event for a closed one is ignored.
class CoordinatorServer::Loop {
 public:
  Loop(std::vector<Listener> listeners, const CoordinatorServerOptions& options)
      : listeners_(std::move(listeners)), options_(options) {
    if (options_.coordinator.own_addresses.empty()) options_.coordinator.own_addresses = own_addresses();
  }
  ~Loop();

  Result<void> start();
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::vector<std::string> addresses() const { return listener_addresses(listeners_); }
  [[nodiscard]] CoordinatorServerStats stats();
  [[nodiscard]] bool holds_lease() const { return !options_.holds_lease || options_.holds_lease(); }
  /// From other threads: runs `what` with the only job's coordinator before it returns.
  template <class Action>
  void run_on_coordinator(Action what) {
    thread_.call([&] {
      Coordinator& coordinator = jobs_.begin()->second.coordinator;
      what(coordinator, now());
      apply_outputs(coordinator);
    });
  }

 private:
  /// An unauthenticated connection. Replies always fit into the socket's send buffer.
  struct Newcomer {
    Newcomer(UniqueFd socket, const IpAddress& from, const HmacKey* secret)
        : fd(std::move(socket)), address(from), handshake(secret, random_nonce()) {}
    UniqueFd fd;
    IpAddress address;
    CoordinatorHandshake handshake;
  };
  static_assert(sizeof(Newcomer) < 256 - 64, "bounds the cost of an unauthenticated connection");

  /// A served job.
  struct Job {
    explicit Job(CoordinatorOptions options) : coordinator(std::move(options)) {}
    Coordinator coordinator;
    std::size_t links = 0;
  };

  /// A connection past its handshake.
  struct Link {
    explicit Link(Newcomer& newcomer) : fd(std::move(newcomer.fd)), address(newcomer.address) {
      session.connect(newcomer.handshake.keys());
    }
    enum class State {
      not_joined,  ///< before JOIN or RESUME
      joined,
      broken,   ///< joined, and may be resumed by another connection
      closing,  ///< after the coordinator's last message
      erased,   ///< to be erased at the end of the iteration
    };

    UniqueFd fd;
    IpAddress address;
    Session session;
    Job* job = nullptr;
    State state = State::not_joined;
    bool fin_sent = false;     ///< our direction is shut down
    bool wants_write = false;  ///< EPOLLOUT is registered
    bool flush_queued = false;
    std::string loss_reason;
    std::string token;  ///< for RESUME: its number, and a random part known to its agent only
  };

  static constexpr std::uint64_t first_listener_token = EventThread::wakeup_token + 1;
  /// PROTOCOL.md, section 1.
  static constexpr std::size_t max_newcomers = 512;

  // Event loop.
  void run();
  [[nodiscard]] int wait_for_events();
  [[nodiscard]] Deadline next_deadline() const;
  void on_event(const epoll_event& event);
  void stop();
  void run_timers();
  void flush_and_erase();
  void check_done();
  [[nodiscard]] Clock::time_point now() const { return turn_ - stopped_time_; }
  void check_lease();

  // New connections.
  void accept_from(Listener& listener);
  void set_accepting(bool wanted);
  void add_newcomer(UniqueFd fd, const sockaddr_storage& peer);
  void on_newcomer(LinkId id, Newcomer& newcomer);
  void drop_newcomer(LinkId id);
  [[nodiscard]] std::size_t newcomer_count() const { return newcomers_.size() + new_links_; }

  // Connected agents.
  void on_link(LinkId id, Link& link, std::uint32_t events);
  void receive(LinkId id, Link& link);
  void take_frames(LinkId id, Link& link);
  void on_frame(LinkId id, Link& link, const FrameOpener::Frame& frame);
  void on_join(LinkId id, Link& link, const Join& join);
  void on_resume(LinkId id, Link& link, const Resume& resume);
  [[nodiscard]] LinkId find_session(const std::string& token) const;
  void apply_outputs(Coordinator& coordinator);
  void send(LinkId id, Link& link, FromCoordinator message);
  void flush(LinkId id, Link& link);
  void close_link(LinkId id, Link& link);
  void queue_flush(LinkId id, Link& link);
  void disconnect(Link& link);
  void on_connection_broken(LinkId id, Link& link, const std::string& how);
  void drop_link(LinkId id, Link& link, std::string how);
  void cut_off(LinkId id, Link& link, const std::string& why);
  void erase_link(LinkId id);
  void erase_empty_jobs();

  [[nodiscard]] std::uint64_t token_of(LinkId id) const { return first_listener_token + listeners_.size() + id; }
  void notice(std::uint64_t number, const std::string& text) const;

  // Set before start().
  std::vector<Listener> listeners_;
  CoordinatorServerOptions options_;
  std::uint16_t port_ = 0;
  EventThread thread_;

  // Used on the thread only.
  std::array<epoll_event, 256> events_;
  std::unique_ptr<char[]> buffer_{new char[buffer_size]};
  static constexpr std::size_t buffer_size = 64 * 1024;
  std::string payload_;
  LinkId last_id_ = 0;
  std::unordered_map<LinkId, Newcomer> newcomers_;
  std::unordered_map<LinkId, Link> links_;
  std::size_t new_links_ = 0;                                // of links_, not joined
  std::deque<std::pair<Deadline, LinkId>> join_deadlines_;   // in order; may contain joined or closed connections
  std::deque<std::pair<Deadline, LinkId>> close_deadlines_;  // in order
  std::map<std::string, Job> jobs_;
  std::vector<LinkId> to_flush_;
  std::vector<LinkId> to_erase_;
  CoordinatorServerStats stats_;
  Clock::time_point turn_ = Clock::now();  // start of the iteration
  Clock::time_point last_tick_ = turn_;
  Clock::duration stopped_time_{};  // total time during which the process was suspended
  Acceptor acceptor_;
  bool listening_ = true;
  bool out_of_descriptors_ = false;
  bool stopping_ = false;
  Deadline stop_by_{};
  std::optional<Deadline> done_by_;
  bool done_reported_ = false;
  bool step_down_reported_ = false;
};

// ---- event loop

Result<void> CoordinatorServer::Loop::start() {
  port_ = listeners_.front().at.port();
  TRY(thread_.open("cannot start the coordinator"));
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (!thread_.watch(EPOLL_CTL_ADD, listeners_[i].fd.get(), EPOLLIN, first_listener_token + i)) {
      return fail_errno(Errc::unavailable, "cannot start the coordinator", errno);
    }
  }
  if (!options_.many_jobs) jobs_.try_emplace(std::string(), options_.coordinator);
  return thread_.start("ddrun-coord", [this] { run(); });
}

CoordinatorServer::Loop::~Loop() {
  if (!thread_.started()) return;
  thread_.call([this] { stop(); });
  thread_.join();
}

CoordinatorServerStats CoordinatorServer::Loop::stats() {
  CoordinatorServerStats stats;
  thread_.call([&] {
    stats = stats_;
    stats.jobs = jobs_.size();
    stats.agents = links_.size() - new_links_;
    stats.newcomers = newcomer_count();
  });
  return stats;
}

void CoordinatorServer::Loop::notice(std::uint64_t number, const std::string& text) const {
  if (!options_.on_notice || !should_log(number)) return;
  options_.on_notice(number > log_limit ? concat(text, " (number ", number, "; not all are shown)") : text);
}

void CoordinatorServer::Loop::run() {
  for (;;) {
    const int count = wait_for_events();
    check_lease();
    for (int i = 0; i < count; ++i) on_event(events_[static_cast<std::size_t>(i)]);
    // All pending input is read before a member can count as silent.
    if (count < static_cast<int>(events_.size()) || turn_ - last_tick_ > max_without_tick) run_timers();
    flush_and_erase();
    check_done();
    if (stopping_ && (links_.empty() || now() >= stop_by_)) return;
  }
}

int CoordinatorServer::Loop::wait_for_events() {
  const auto before = Clock::now();
  // Time during which the process was suspended shows in two places: here, and since the last iteration began.
  const auto gap = [this](Clock::duration late) {
    if (late > options_.coordinator.heartbeat_interval) stopped_time_ += late;
  };
  gap(before - turn_);
  turn_ = before;
  const auto deadline = next_deadline();
  int timeout = -1;
  if (deadline != Deadline::max()) {
    // Rounded up, to avoid an idle iteration.
    const auto left = std::chrono::ceil<milliseconds>(deadline - now());
    timeout = static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 60'000));
  }
  const int count = thread_.wait(events_, timeout);
  turn_ = Clock::now();
  if (timeout >= 0) gap(turn_ - before - milliseconds(timeout));
  return std::max(count, 0);
}

/// Before any event is handled: whether this coordinator may still act.
void CoordinatorServer::Loop::check_lease() {
  const bool is_recorded = options_.is_recorded && options_.is_recorded();
  if (holds_lease() && !is_recorded) return;
  Coordinator& coordinator = jobs_.begin()->second.coordinator;
  if (is_recorded) coordinator.recorded(now());
  else coordinator.suspend(now());
  apply_outputs(coordinator);
}

Deadline CoordinatorServer::Loop::next_deadline() const {
  Deadline first = Deadline::max();
  for (const auto& [name, job] : jobs_) {
    if (const auto wanted = job.coordinator.next_deadline()) first = std::min(first, *wanted);
  }
  if (newcomer_count() > 0) first = std::min(first, join_deadlines_.front().first);
  if (!close_deadlines_.empty()) first = std::min(first, close_deadlines_.front().first);
  if (done_by_ && !done_reported_) first = std::min(first, *done_by_);
  if (stopping_) first = std::min(first, stop_by_);
  return first;
}

void CoordinatorServer::Loop::on_event(const epoll_event& event) {
  const std::uint64_t token = event.data.u64;
  if (token == EventThread::wakeup_token) return thread_.run_pending_call();
  if (token < first_listener_token + listeners_.size()) return accept_from(listeners_[token - first_listener_token]);
  const LinkId id = token - token_of(0);
  if (const auto found = links_.find(id); found != links_.end()) return on_link(id, found->second, event.events);
  if (const auto found = newcomers_.find(id); found != newcomers_.end()) on_newcomer(id, found->second);
}

void CoordinatorServer::Loop::stop() {
  stopping_ = true;
  stop_by_ = now() + server_stop_timeout;
  // Takes effect even if a child in the middle of clone() holds copies of the descriptors.
  for (auto& listener : listeners_) {
    thread_.forget(listener.fd.get());
    ::shutdown(listener.fd.get(), SHUT_RDWR);
  }
  while (!newcomers_.empty()) drop_newcomer(newcomers_.begin()->first);
  for (auto& [id, link] : links_) close_link(id, link);
}

void CoordinatorServer::Loop::run_timers() {
  last_tick_ = turn_;
  while (!join_deadlines_.empty() && join_deadlines_.front().first <= now()) {
    const LinkId id = join_deadlines_.front().second;
    join_deadlines_.pop_front();
    if (newcomers_.contains(id)) {
      ++stats_.timed_out;
      drop_newcomer(id);
    } else if (const auto found = links_.find(id);
               found != links_.end() && found->second.state == Link::State::not_joined) {
      ++stats_.timed_out;
      drop_link(id, found->second, "");
    }
  }
  while (!close_deadlines_.empty() && close_deadlines_.front().first <= now()) {
    const LinkId id = close_deadlines_.front().second;
    close_deadlines_.pop_front();
    if (const auto found = links_.find(id); found != links_.end()) drop_link(id, found->second, "");
  }
  for (auto& [name, job] : jobs_) {
    const auto wanted = job.coordinator.next_deadline();
    if (!wanted || *wanted > now()) continue;
    job.coordinator.tick(now());
    apply_outputs(job.coordinator);
  }
  erase_empty_jobs();
  if (out_of_descriptors_) {
    out_of_descriptors_ = false;
    set_accepting(true);
  }
}

/// Sends queued output and erases closed links until neither causes more of the other.
void CoordinatorServer::Loop::flush_and_erase() {
  while (!to_flush_.empty() || !to_erase_.empty()) {
    for (const LinkId id : std::exchange(to_flush_, {})) {
      const auto found = links_.find(id);
      if (found == links_.end()) continue;
      found->second.flush_queued = false;
      flush(id, found->second);
    }
    for (const LinkId id : std::exchange(to_erase_, {})) erase_link(id);
  }
  const bool room = newcomer_count() < max_newcomers && !out_of_descriptors_;
  if (room != listening_) set_accepting(room);
}

void CoordinatorServer::Loop::check_done() {
  if (options_.many_jobs || done_reported_) return;
  if (!jobs_.begin()->second.coordinator.done()) return;
  if (!done_by_) done_by_ = now() + done_timeout;
  const bool all_flushed = std::all_of(links_.begin(), links_.end(), [](const auto& entry) {
    return entry.second.state == Link::State::not_joined || entry.second.session.unsent().empty();
  });
  if (!all_flushed && now() < *done_by_) return;
  done_reported_ = true;
  if (options_.on_done) options_.on_done();
}

// ---- new connections and their handshake

void CoordinatorServer::Loop::accept_from(Listener& listener) {
  // A limited number, so that connected agents are not starved.
  for (int left = 64; left > 0 && newcomer_count() < max_newcomers; --left) {
    UniqueFd fd;
    sockaddr_storage peer{};
    switch (acceptor_.next(listener, fd, peer)) {
      case Acceptor::Outcome::accepted: add_newcomer(std::move(fd), peer); break;
      case Acceptor::Outcome::rejected: ++stats_.rejected; break;  // closed; the agent retries
      case Acceptor::Outcome::failed: break;
      case Acceptor::Outcome::none: return;
      case Acceptor::Outcome::exhausted: out_of_descriptors_ = true; return;
    }
  }
}

/// At the limit, connections stay in the kernel's accept queue.
void CoordinatorServer::Loop::set_accepting(bool wanted) {
  if (stopping_) return;
  listening_ = wanted;
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    (void)thread_.watch(EPOLL_CTL_MOD, listeners_[i].fd.get(), wanted ? std::uint32_t{EPOLLIN} : 0,
                        first_listener_token + i);
  }
}

void CoordinatorServer::Loop::add_newcomer(UniqueFd fd, const sockaddr_storage& peer) {
  const auto address = IpAddress::of(peer);
  if (!address) return;
  ++stats_.accepted;
  const auto of_same_address = std::count_if(newcomers_.begin(), newcomers_.end(),
                                             [&](const auto& entry) { return entry.second.address == *address; });
  if (static_cast<std::size_t>(of_same_address) >= max_newcomers_per_address) {
    const auto reply = CoordinatorHandshake::busy_reply();
    (void)!::send(fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    notice(++stats_.rejected, concat("too many connections from ", address->text(),
                                     " do not say who they are; more of them are turned away"));
    return;
  }
  const LinkId id = ++last_id_;
  if (!thread_.watch(EPOLL_CTL_ADD, fd.get(), EPOLLIN, token_of(id))) return;
  newcomers_.try_emplace(id, std::move(fd), *address, options_.secret ? &*options_.secret : nullptr);
  join_deadlines_.emplace_back(now() + newcomer_timeout, id);
}

void CoordinatorServer::Loop::drop_newcomer(LinkId id) {
  const auto found = newcomers_.find(id);
  // Explicitly: closing does not unregister it while a child in the middle of clone() holds a copy of the descriptor.
  thread_.forget(found->second.fd.get());
  ::shutdown(found->second.fd.get(), SHUT_RDWR);
  newcomers_.erase(found);
}

void CoordinatorServer::Loop::on_newcomer(LinkId id, Newcomer& newcomer) {
  const ssize_t got = ::recv(newcomer.fd.get(), buffer_.get(), buffer_size, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) {
    ++stats_.timed_out;
    return drop_newcomer(id);
  }
  stats_.bytes_in += static_cast<std::size_t>(got);
  std::string_view bytes(buffer_.get(), static_cast<std::size_t>(got));
  std::string answer;
  const HandshakeState state = newcomer.handshake.feed(bytes, answer);
  if (!answer.empty()) {
    const ssize_t sent = ::send(newcomer.fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(answer.size())) {
      ++stats_.timed_out;
      return drop_newcomer(id);
    }
    stats_.bytes_out += answer.size();
  }
  const auto peer = newcomer.address.text();
  const auto turn_away = [&](std::uint64_t& counter, const std::string& why, const auto&... text) {
    notice(++counter, concat(text...));
    if (!why.empty() && !options_.many_jobs) jobs_.begin()->second.coordinator.note_refused_peer(peer, why);
    drop_newcomer(id);
  };
  switch (state) {
    case HandshakeState::in_progress: return;
    case HandshakeState::done: break;
    case HandshakeState::other_version:
      return turn_away(stats_.other_versions, "another version of ddrun", "an agent on ", peer, " speaks version ",
                       newcomer.handshake.peer_version(), " of ddrun's protocol, and this ddrun version ",
                       protocol_version, ": start the same ddrun on all machines");
    case HandshakeState::wrong_secret:
      return turn_away(stats_.wrong_secrets, "another secret", "an agent on ", peer,
                       " has another secret and was turned away: ",
                       other_secret_advice(options_.secret_file, options_.coordinator.host, "", peer));
    case HandshakeState::needs_secret:
      return turn_away(stats_.wrong_secrets, "no secret", "an agent on ", peer,
                       " has no secret and was turned away: give it that of the job (--secret-file or DDRUN_SECRET)");
    case HandshakeState::needs_no_secret:
      return turn_away(stats_.wrong_secrets, "a secret, and none here", "an agent on ", peer,
                       " has a secret, but the coordinator was started with --insecure: start all agents with it, or "
                       "none");
    default:  // the rest are results for agents only
      return turn_away(stats_.foreign_protocol, "", "something on ", peer, " that is not ddrun has connected to port ",
                       port_, " and was turned away");
  }
  Link& link = links_.try_emplace(id, newcomer).first->second;
  newcomers_.erase(id);
  ++new_links_;
  link.session.receive(bytes);
  take_frames(id, link);
}

// ---- connected agents

void CoordinatorServer::Loop::on_link(LinkId id, Link& link, std::uint32_t events) {
  if (link.fd && (events & ~std::uint32_t{EPOLLOUT}) != 0) receive(id, link);
  if (link.fd && (events & EPOLLOUT) != 0) flush(id, link);
}

void CoordinatorServer::Loop::receive(LinkId id, Link& link) {
  const ssize_t got = ::recv(link.fd.get(), buffer_.get(), buffer_size, MSG_DONTWAIT);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
    return on_connection_broken(id, link, std::generic_category().message(errno));
  }
  // By the agent, or by the kernel at the end of its process.
  if (got == 0) return drop_link(id, link, "connection closed");
  stats_.bytes_in += static_cast<std::size_t>(got);
  if (link.state == Link::State::closing) return;  // no longer needed
  link.session.receive({buffer_.get(), static_cast<std::size_t>(got)});
  take_frames(id, link);
  // Part of a long message is a sign of life, too.
  if (link.state == Link::State::joined && link.session.has_partial_input())
    link.job->coordinator.note_activity(id, now());
}

void CoordinatorServer::Loop::take_frames(LinkId id, Link& link) {
  while (link.state == Link::State::not_joined || link.state == Link::State::joined) {
    FrameOpener::Frame frame;
    switch (link.session.next(frame, link.state == Link::State::joined ? max_payload : max_payload_before_join)) {
      case FrameOpener::Status::incomplete: return;
      case FrameOpener::Status::whole: on_frame(id, link, frame); break;
      case FrameOpener::Status::too_long: return cut_off(id, link, "a message is longer than any may be");
      case FrameOpener::Status::wrong_tag:
        return cut_off(id, link, "a message was changed on its way or is not from whom it claims to be");
    }
  }
}

void CoordinatorServer::Loop::on_frame(LinkId id, Link& link, const FrameOpener::Frame& frame) {
  ++stats_.messages_in;
  const auto message = decode_from_agent(frame.type, frame.payload);
  const bool is_joined = link.state == Link::State::joined;
  // Of a later version.
  if (!message && message.error().code == Errc::unsupported && is_joined) {
    return link.job->coordinator.note_activity(id, now());
  }
  if (!message) return cut_off(id, link, message.error().message);
  if (is_joined) {
    if (const auto* pong = std::get_if<Pong>(&*message); pong != nullptr && !link.session.confirm(pong->received)) {
      return cut_off(id, link, concat("it has heard ", pong->received, " messages, it says"));
    }
    link.job->coordinator.receive(id, *message, now());
    return apply_outputs(link.job->coordinator);
  }
  if (const auto* join = std::get_if<Join>(&*message)) return on_join(id, link, *join);
  if (const auto* resume = std::get_if<Resume>(&*message)) return on_resume(id, link, *resume);
  cut_off(id, link, concat("its first message is not JOIN but ", type_name(frame.type)));
}

void CoordinatorServer::Loop::on_join(LinkId id, Link& link, const Join& join) {
  const auto local = local_socket_address(link.fd.get());
  const auto reached = local ? IpAddress::of(local->storage) : std::nullopt;
  if (options_.many_jobs) {
    auto options = options_.coordinator;
    options.job_id = join.job_id;
    link.job = &jobs_.try_emplace(join.job_id, std::move(options)).first->second;
  } else {
    link.job = &jobs_.begin()->second;
  }
  link.state = Link::State::joined;
  link.session.open();
  link.token = concat(id, '.', random_id());
  --new_links_;
  ++link.job->links;
  ++stats_.joined;
  stats_.peak_agents = std::max<std::uint64_t>(stats_.peak_agents, links_.size() - new_links_);
  link.job->coordinator.join(id, join, {link.address, reached.value_or(IpAddress())}, now());
  apply_outputs(link.job->coordinator);
}

/// The link of this session; 0: none.
LinkId CoordinatorServer::Loop::find_session(const std::string& token) const {
  const auto id = parse_integer(token.substr(0, token.find('.')), 1, std::numeric_limits<long long>::max());
  const auto found = id ? links_.find(static_cast<LinkId>(*id)) : links_.end();
  if (found == links_.end()) return 0;
  const Link& link = found->second;
  const bool is_known = link.state == Link::State::joined || link.state == Link::State::broken;
  return is_known && equal_in_constant_time(link.token, token) ? found->first : 0;
}

/// `link` is a new connection of a known agent, and replaces the member's old one.
void CoordinatorServer::Loop::on_resume(LinkId id, Link& link, const Resume& resume) {
  const LinkId resumed = find_session(resume.session);
  if (resumed == 0) {
    link.state = Link::State::joined;  // not a member of any job: it only gets a reply
    --new_links_;
    link.session.open();
    link.session.send(encode(FromCoordinator(Refused{RefusalKind::lost, "it was given up meanwhile"}), payload_),
                      payload_);
    return close_link(id, link);
  }
  Link& member = links_.find(resumed)->second;
  if (!member.session.confirm(resume.received)) {
    return cut_off(id, link, concat("it has heard ", resume.received, " messages, it says"));
  }
  disconnect(member);
  thread_.forget(link.fd.get());
  member.fd = std::move(link.fd);
  member.address = link.address;
  member.session.take_connection(link.session);
  member.state = Link::State::joined;
  --new_links_;
  link.state = Link::State::erased;
  to_erase_.push_back(id);
  ++stats_.resumed;
  if (!thread_.watch(EPOLL_CTL_ADD, member.fd.get(), EPOLLIN, token_of(resumed))) {
    return drop_link(resumed, member, "it cannot be watched");
  }
  member.session.send(encode(FromCoordinator(Resumed{member.session.received()}), payload_), payload_);
  member.session.open();
  queue_flush(resumed, member);
  member.job->coordinator.note_activity(resumed, now());
  take_frames(resumed, member);
}

void CoordinatorServer::Loop::apply_outputs(Coordinator& coordinator) {
  bool pings = false;
  for (auto& output : coordinator.take_outputs()) {
    pings = pings || (output.message && std::holds_alternative<Ping>(*output.message));
    const auto found = links_.find(output.link);
    if (found == links_.end()) continue;
    if (output.message) {
      send(output.link, found->second, std::move(*output.message));
    } else {
      close_link(output.link, found->second);
    }
  }
  if (pings && options_.on_pings) options_.on_pings();
  for (const std::string& warning : coordinator.take_warnings()) notice(++stats_.warnings, warning);
  if (options_.on_verdict) {
    if (const auto verdict = coordinator.take_verdict_to_record()) options_.on_verdict(*verdict);
  }
  if (options_.on_stepped_down && coordinator.stepped_down() && !std::exchange(step_down_reported_, true)) {
    options_.on_stepped_down();
  }
}

void CoordinatorServer::Loop::send(LinkId id, Link& link, FromCoordinator message) {
  if (link.state != Link::State::joined && link.state != Link::State::broken) return;
  if (auto* welcome = std::get_if<Welcome>(&message)) welcome->session = link.token;
  else if (auto* ping = std::get_if<Ping>(&message)) ping->received = link.session.received();
  const auto type = encode(message, payload_, max_payload);
  if (!type) return drop_link(id, link, "a message to it is longer than any may be");
  if (link.session.unsent().size() > max_unsent || link.session.bytes_kept() > max_kept)
    return cut_off(id, link, "it does not read what it is told");
  ++stats_.messages_out;
  link.session.send(*type, payload_);
  queue_flush(id, link);
}

void CoordinatorServer::Loop::queue_flush(LinkId id, Link& link) {
  if (!std::exchange(link.flush_queued, true)) to_flush_.push_back(id);
}

void CoordinatorServer::Loop::flush(LinkId id, Link& link) {
  if (!link.fd || link.state == Link::State::erased) return;
  for (std::string_view left; !(left = link.session.unsent()).empty();) {
    const ssize_t sent = ::send(link.fd.get(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) return on_connection_broken(id, link, std::generic_category().message(errno));
    link.session.sent(static_cast<std::size_t>(sent));
    stats_.bytes_out += static_cast<std::size_t>(sent);
  }
  const bool all = link.session.unsent().empty();
  if (link.wants_write == all) {
    link.wants_write = !all;
    const std::uint32_t events = all ? std::uint32_t{EPOLLIN} : std::uint32_t{EPOLLIN} | EPOLLOUT;
    if (!thread_.watch(EPOLL_CTL_MOD, link.fd.get(), events, token_of(id)))
      return drop_link(id, link, "it cannot be watched");
  }
  // Closing a socket with unread input sends a reset, which discards data the peer has not read: shut down, and wait
  // for the peer to close.
  if (all && link.state == Link::State::closing && !std::exchange(link.fin_sent, true)) {
    ::shutdown(link.fd.get(), SHUT_WR);
  }
}

void CoordinatorServer::Loop::close_link(LinkId id, Link& link) {
  if (link.state == Link::State::erased || link.state == Link::State::closing) return;
  if (link.state == Link::State::not_joined) --new_links_;
  if (link.state == Link::State::broken) return drop_link(id, link, "");  // no connection to tell it by
  link.state = Link::State::closing;
  close_deadlines_.emplace_back(now() + link_close_timeout, id);
  queue_flush(id, link);
}

void CoordinatorServer::Loop::cut_off(LinkId id, Link& link, const std::string& why) {
  notice(++stats_.cut_off, concat("the connection of the agent on ", link.address.text(), " was cut off: ", why));
  drop_link(id, link, why);
}

void CoordinatorServer::Loop::disconnect(Link& link) {
  if (link.fd) {
    // Explicitly: closing does not unregister it while a child in the middle of clone() holds a copy of the descriptor.
    thread_.forget(link.fd.get());
    ::shutdown(link.fd.get(), SHUT_RDWR);
    link.fd.reset();
  }
  link.session.disconnect();
  link.wants_write = false;
}

/// A connection may be resumed by another one; output is kept until then, and the heartbeat bounds the wait.
void CoordinatorServer::Loop::on_connection_broken(LinkId id, Link& link, const std::string& how) {
  if (link.state != Link::State::joined || stopping_) return drop_link(id, link, how);
  disconnect(link);
  link.state = Link::State::broken;
  link.job->coordinator.connection_broken(id, how);
}

void CoordinatorServer::Loop::drop_link(LinkId id, Link& link, std::string how) {
  if (link.state == Link::State::erased) return;
  if (link.state == Link::State::not_joined) --new_links_;
  // A link that the coordinator has closed is not reported back to it.
  if (link.state == Link::State::joined || link.state == Link::State::broken) link.loss_reason = std::move(how);
  else link.loss_reason.clear();
  link.state = Link::State::erased;
  to_erase_.push_back(id);
}

void CoordinatorServer::Loop::erase_link(LinkId id) {
  const auto found = links_.find(id);
  Job* const job = found->second.job;
  const std::string how = std::move(found->second.loss_reason);
  disconnect(found->second);
  links_.erase(found);
  if (job == nullptr) return;
  --job->links;
  if (!how.empty()) {
    job->coordinator.lost(id, how, now());
    apply_outputs(job->coordinator);
  }
  if (job->links == 0) erase_empty_jobs();
}

/// With many jobs: those without members.
void CoordinatorServer::Loop::erase_empty_jobs() {
  if (!options_.many_jobs) return;
  std::erase_if(jobs_, [](const auto& entry) { return entry.second.links == 0; });
}

// ---- public class

CoordinatorServer::CoordinatorServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
CoordinatorServer::~CoordinatorServer() = default;

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::start(const CoordinatorServerOptions& options) {
  const auto addresses = options.addresses.empty() ? std::vector<std::string>{"0.0.0.0", "::"} : options.addresses;
  Result<std::vector<Listener>> listeners = fail(Errc::invalid_argument, "no port to listen on; give at least one");
  std::vector<std::string> taken;
  for (const auto port : options.ports) {
    listeners = open_listeners(addresses, port);
    if (listeners || listeners.error().cause != std::errc::address_in_use) break;
    taken.push_back(concat(port));
  }
  if (!listeners) {
    if (taken.size() < 2 || taken.size() < options.ports.size()) return tl::unexpected(std::move(listeners.error()));
    return fail(Errc::unavailable,
                concat("cannot listen for agents: ports ", join(taken, ", "), " are all in use by other programs"),
                listeners.error().cause);
  }
  auto loop = std::make_unique<Loop>(std::move(*listeners), options);
  TRY(loop->start());
  return std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(loop)));
}

std::uint16_t CoordinatorServer::port() const { return loop_->port(); }
std::vector<std::string> CoordinatorServer::addresses() const { return loop_->addresses(); }
CoordinatorServerStats CoordinatorServer::stats() const { return loop_->stats(); }

void CoordinatorServer::suspend() const {
  loop_->run_on_coordinator([](Coordinator& coordinator, Clock::time_point now) { coordinator.suspend(now); });
}

void CoordinatorServer::lead(Term term) const {
  loop_->run_on_coordinator([this, term](Coordinator& coordinator, Clock::time_point now) {
    // The caller may have been suspended, and the lease may have expired again.
    if (loop_->holds_lease()) coordinator.lead(term, now);
  });
}

void CoordinatorServer::step_down(const std::string& why) const {
  loop_->run_on_coordinator(
      [&why](Coordinator& coordinator, Clock::time_point now) { coordinator.step_down(why, now); });
}

void CoordinatorServer::recorded() const {
  loop_->run_on_coordinator([](Coordinator& coordinator, Clock::time_point now) { coordinator.recorded(now); });
}

}  // namespace ddrun::rendezvous
