#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/listener.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "vote_connection.hpp"
#include "voter.hpp"

namespace ddrun::rendezvous {

/// The voter of this process, for agents of this machine and of others: PROTOCOL.md, section 11. One thread: the
/// executor's.
class VoterServer {
 public:
  /// `secret`, none for a job without, outlives it. `on_change`: what the voter says of itself may have changed,
  /// because of another agent or of time; on the executor.
  VoterServer(const boost::asio::any_io_executor& executor, std::vector<Listener> listeners, const HmacKey* secret,
              Voter voter, std::function<void()> on_change);
  ~VoterServer();
  VoterServer(const VoterServer&) = delete;
  VoterServer& operator=(const VoterServer&) = delete;

  /// From then on agents are let in. Fails with `unavailable`.
  Result<void> start();

  /// From the agent of this process.
  [[nodiscard]] VoteAnswer ask(const VoteRequest& request);
  [[nodiscard]] VoteAnswer state() const { return voter_.state(Voter::Time::clock::now()); }

 private:
  struct Guest {
    std::shared_ptr<VoteConnection> connection;
    std::string address;    ///< without the port
    bool entered = false;   ///< it is an agent of this job
    std::string candidate;  ///< that has asked for a vote through it
  };

  void wait(std::size_t listener);
  void accept(std::size_t listener);
  void adopt(UniqueFd fd, const sockaddr_storage& from);
  void on_request(std::uint64_t number, std::uint8_t type, std::string_view payload);
  void on_end(std::uint64_t number, bool in_order);
  void tell_changes();
  void arm();

  boost::asio::any_io_executor executor_;
  std::vector<Listener> listeners_;
  std::vector<std::unique_ptr<boost::asio::posix::stream_descriptor>> waits_;
  const HmacKey* secret_;
  Voter voter_;
  std::function<void()> on_change_;
  Acceptor acceptor_;
  boost::asio::steady_timer timer_;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t last_guest_ = 0;
  std::size_t strangers_ = 0;  ///< guests that have not entered
  VoteAnswer told_;
  std::shared_ptr<VoterServer*> alive_ = std::make_shared<VoterServer*>(this);
};

}  // namespace ddrun::rendezvous
