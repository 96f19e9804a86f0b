#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/rendezvous/agent_link.hpp"
#include "frames.hpp"
#include "handshake.hpp"
#include "host_lookup.hpp"

namespace ddrun::rendezvous {

/// Its functions stand in two files, by what they are about.
class AgentLink::Impl : public std::enable_shared_from_this<AgentLink::Impl> {
 public:
  using tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;

  Impl(boost::asio::any_io_executor executor, AgentLinkOptions options, AgentLinkCallbacks callbacks)
      : options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        socket_(executor),
        timer_(executor),
        silence_(executor),
        lookup_(std::make_shared<HostLookup>(executor)) {
    if (options_.secret) secret_.emplace(*options_.secret);
    options_.secret.reset();  // the caller's
    for (auto& endpoint : options_.coordinators) candidates_.push_back({std::move(endpoint), {}, {}});
  }

  void start() {
    stage_ = Stage::looking;
    later([this] { begin_pass(); });
  }
  void send(FromAgent message);
  void close(std::function<void()> on_closed, Milliseconds patience);
  void abandon();
  [[nodiscard]] std::string local_address() const;
  [[nodiscard]] std::string peer_address() const;
  [[nodiscard]] std::string coordinator() const { return socket_.is_open() ? where_text() : ""; }

 private:
  enum class Stage {
    idle,
    looking,     ///< for an address, or a pause before the next attempt
    connecting,  ///< to target_
    greeting,
    joining,  ///< JOIN is said
    joined,
    closing,
    over,
  };
  /// Where the coordinator may be, and what came of the last attempt.
  struct Candidate {
    Endpoint endpoint;
    std::string trouble;
    std::optional<Errc> for_good;  ///< another attempt would come to the same
  };

  // agent_search.cpp: looking for it
  void begin_pass();
  void next_candidate();
  void next_target();
  void end_pass();
  void connect(const tcp::endpoint& target);
  void on_connected();
  void attempt_failed(const std::string& why, std::optional<Errc> for_good = std::nullopt);
  void give_up();
  [[nodiscard]] Candidate& candidate() { return candidates_[candidate_]; }
  [[nodiscard]] const Candidate& candidate() const { return candidates_[candidate_]; }
  [[nodiscard]] std::string where_text() const;
  [[nodiscard]] std::string target_text() const;
  [[nodiscard]] static std::string address_text(const tcp::endpoint& endpoint);

  // agent_link.cpp: the connection
  void read();
  void on_bytes(std::string_view bytes);
  void on_greeting(std::string_view& bytes);
  void on_end(const error_code& ec);
  void take_frames(std::string_view bytes);
  void on_message(const FromCoordinator& message);
  [[nodiscard]] bool elsewhere(const Refused& refused);
  void put(FromAgent message);
  void write();
  void on_written();
  void watch_for_silence();
  void lost(Errc code, const std::string& why);
  void hang_up();
  void closed();

  /// Runs `action` on the executor unless another attempt has begun, or all is over, by then.
  template <class Action>
  void later(Action action) {
    boost::asio::post(socket_.get_executor(), [self = shared_from_this(), attempt = attempt_, action] {
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

  AgentLinkOptions options_;
  AgentLinkCallbacks callbacks_;
  std::optional<HmacKey> secret_;
  tcp::socket socket_;
  boost::asio::steady_timer timer_;    // of the attempt in hand, or the pause before the next one
  boost::asio::steady_timer silence_;  // the coordinator's
  std::shared_ptr<HostLookup> lookup_;
  std::vector<Candidate> candidates_;
  std::size_t candidate_ = 0;
  std::vector<tcp::endpoint> targets_;  // addresses of the candidate that have not been tried, the next one last
  tcp::endpoint target_;
  /// Agents that are started together come a few milliseconds before the coordinator listens.
  static constexpr Milliseconds first_pause{2};
  Milliseconds pause_ = first_pause;
  std::uint64_t attempt_ = 0;  // callbacks of an earlier one mean nothing
  Stage stage_ = Stage::idle;

  std::optional<AgentHandshake> handshake_;
  std::optional<SessionKeys> keys_;
  std::array<char, 16 * 1024> buffer_;
  std::string payload_;
  std::string in_;                 // not yet a whole frame
  std::string out_;                // to be sent
  std::string sending_;            // being sent
  std::vector<FromAgent> queued_;  // until JOIN is answered
  std::string coordinator_host_;
  Milliseconds heartbeat_{0};  // not known yet
  Clock::duration patience_{};
  Clock::time_point heard_{};
  std::function<void()> on_closed_;
};

}  // namespace ddrun::rendezvous
