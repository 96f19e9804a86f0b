#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/helper/host_lookup.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "vote_connection.hpp"
#include "vote_messages.hpp"

namespace ddrun::rendezvous {

/// An agent's connection to a voter on another machine, made again whenever it is lost, for as long as this lives. One
/// thread: the executor's. Callbacks come there, never from within a call.
class VoterLink {
 public:
  struct Callbacks {
    std::function<void()> on_connected;
    std::function<void()> on_disconnected;
    std::function<void(const VoteAnswer&)> on_answer;
  };
  /// `secret`, none for a job without, outlives it. A voter that says nothing for `silence` is lost.
  VoterLink(boost::asio::any_io_executor executor, Endpoint endpoint, const HmacKey* secret, Milliseconds silence,
            Callbacks callbacks);
  /// `abruptly` as in VoteConnection.
  void close(bool abruptly);
  ~VoterLink();
  VoterLink(const VoterLink&) = delete;
  VoterLink& operator=(const VoterLink&) = delete;

  void start();
  void send(const VoteRequest& request);
  /// What kept it from the voter last; empty while it is connected.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }
  /// Nothing will make it better: another secret, another version.
  [[nodiscard]] bool is_hopeless() const { return hopeless_; }

 private:
  void look_up();
  void dial();
  void dial(const std::string& address);
  void connected(boost::asio::ip::tcp::socket socket);
  void failed(const std::string& why);
  void on_frame(std::uint8_t type, std::string_view payload);
  void on_end(const std::string& why, std::optional<Greeting> greeting);
  void watch();
  [[nodiscard]] std::string where() const;

  boost::asio::any_io_executor executor_;
  Endpoint endpoint_;
  const HmacKey* secret_;
  Milliseconds silence_;
  Callbacks callbacks_;
  boost::asio::steady_timer timer_;
  std::optional<helper::Running> looking_up_;
  std::vector<std::string> addresses_;  ///< not tried yet
  std::shared_ptr<VoteConnection> connection_;
  bool told_connected_ = false;
  Milliseconds pause_{};
  std::string trouble_;
  bool hopeless_ = false;
  std::shared_ptr<VoterLink*> alive_ = std::make_shared<VoterLink*>(this);
};

}  // namespace ddrun::rendezvous
