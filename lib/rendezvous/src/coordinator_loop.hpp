#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator_connections.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/listener.hpp"
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "hmac.hpp"

namespace ddrun::rendezvous {

/// The server's thread and everything on it. Connections are known by number; an event for one that has gone finds
/// nothing. Its functions stand in files by what they are about.
class CoordinatorServer::Loop {
 public:
  Loop(std::vector<Listener> listeners, const CoordinatorServerOptions& options)
      : listeners_(std::move(listeners)), options_(options) {
    if (options.secret) secret_.emplace(*options.secret);
    options_.secret.reset();  // the caller's
    if (options_.coordinator.own_addresses.empty()) options_.coordinator.own_addresses = own_addresses();
  }
  ~Loop();

  Result<void> start();
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::vector<std::string> addresses() const { return texts_of(listeners_); }
  [[nodiscard]] bool wait_done(Deadline deadline);
  [[nodiscard]] CoordinatorServerStats stats();

 private:
  static constexpr std::uint64_t first_listener_token = EventThread::token + 1;
  /// Of connections that have not joined: PROTOCOL.md, section 1.
  static constexpr std::size_t most_greeting = 512;

  // coordinator_loop.cpp: the turn of the loop
  void run();
  [[nodiscard]] int wait_for_events();
  [[nodiscard]] Deadline next_deadline() const;
  void on_event(const epoll_event& event);
  void stop();
  void on_time();
  void settle();
  void check_done();
  [[nodiscard]] Clock::time_point now() const { return turn_ - skipped_; }

  // coordinator_newcomers.cpp: who comes
  void accept_from(Listener& listener);
  void listen(bool wanted);
  void adopt(UniqueFd fd, const sockaddr_storage& peer);
  void on_newcomer(LinkId id, Newcomer& newcomer);
  void dismiss(LinkId id);
  void dismiss(LinkId id, std::uint64_t& counter, const std::string& notice);
  [[nodiscard]] std::size_t greeting() const { return newcomers_.size() + new_links_; }

  // coordinator_links.cpp: who is here
  void on_link(LinkId id, Link& link, std::uint32_t events);
  void receive(LinkId id, Link& link);
  void take_frames(LinkId id, Link& link, std::string_view bytes);
  void on_frame(LinkId id, Link& link, const FrameOpener::Frame& frame);
  void on_join(LinkId id, Link& link, const Join& join);
  void carry_out(Coordinator& coordinator);
  void send(LinkId id, Link& link, FromCoordinator message);
  void flush(LinkId id, Link& link);
  void hang_up(LinkId id, Link& link);
  void lose(LinkId id, Link& link, std::string how);
  void cut_off(LinkId id, Link& link, const std::string& why);
  void forget(LinkId id);
  void forget_jobs();

  [[nodiscard]] std::uint64_t token_of(LinkId id) const { return first_listener_token + listeners_.size() + id; }
  void notice(std::uint64_t number, const std::string& text) const;
  [[nodiscard]] CoordinatorServerStats collect() const;

  // Given to the thread by start().
  std::vector<Listener> listeners_;
  CoordinatorServerOptions options_;
  std::optional<HmacKey> secret_;
  std::uint16_t port_ = 0;
  EventThread thread_;

  // The thread's own.
  std::array<epoll_event, 256> events_;
  std::unique_ptr<char[]> buffer_{new char[buffer_size]};
  static constexpr std::size_t buffer_size = 64 * 1024;
  std::string payload_;
  LinkId last_id_ = 0;
  std::unordered_map<LinkId, Newcomer> newcomers_;
  std::unordered_map<LinkId, Link> links_;
  std::size_t new_links_ = 0;                            // that have not joined
  std::deque<std::pair<Deadline, LinkId>> to_join_by_;   // in order; also of those that have joined or gone
  std::deque<std::pair<Deadline, LinkId>> to_leave_by_;  // in order
  std::map<std::string, Job> jobs_;
  std::vector<LinkId> to_flush_;
  std::vector<LinkId> gone_;
  CoordinatorServerStats stats_;
  Clock::time_point turn_ = Clock::now();  // when this turn began
  Clock::time_point last_tick_ = turn_;
  Clock::duration skipped_{};  // for how long the process was stopped, in all
  Acceptor acceptor_;
  bool listening_ = true;
  bool out_of_descriptors_ = false;
  bool stopping_ = false;
  Deadline stop_by_{};
  std::optional<Deadline> done_by_;
  bool done_told_ = false;

  std::mutex mutex_;  // of what follows
  bool done_ = false;
  std::condition_variable is_done_;
};

}  // namespace ddrun::rendezvous
