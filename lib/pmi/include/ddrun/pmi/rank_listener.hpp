#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/listener.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::pmi {

/// The loopback port to which the ranks of this machine connect, each with a random token of its own (PMI_PORT,
/// PMI_ID). No descriptor of it is inherited. Use on the executor's thread only; must outlive the event loop.
///
/// A rank that does not read its answers is not read either, which bounds the memory for it. At most 64 connections
/// that have not sent their token are read at once; others wait in the kernel's queue.
class RankListener {
 public:
  /// Called from within the event loop or drain(); they may call answer() and cut_off().
  struct Handlers {
    std::function<void(int slot, std::string line)> line;
    /// The connection cannot be read any further; cut_off() is the handler's part.
    std::function<void(int slot, std::string why)> garbage;
  };
  RankListener(boost::asio::any_io_executor executor, Handlers handlers);
  RankListener(const RankListener&) = delete;
  RankListener& operator=(const RankListener&) = delete;

  /// Once. Fails with `unavailable`.
  Result<void> open();
  /// Makes a token for each slot, whose rank is given; closes the connections of the round before. Fails with
  /// `unavailable` without random numbers.
  Result<void> begin_round(const std::vector<int>& ranks, int world_size);

  [[nodiscard]] std::string address() const;        ///< "127.0.0.1:40123", for PMI_PORT
  [[nodiscard]] std::string token(int slot) const;  ///< for PMI_ID

  /// Ignored for a slot without a connection.
  void answer(int slot, std::string_view text);
  void cut_off(int slot);
  /// Passes the lines that the slot's connection still holds to the handler, unanswered, and closes it: when its worker
  /// has ended, before its end is judged. Does not block.
  void drain(int slot);
  void close();

 private:
  struct Connection {
    explicit Connection(const boost::asio::any_io_executor& executor) : socket(executor) {}
    boost::asio::posix::stream_descriptor socket;
    std::string in, out;
    int slot = -1;  ///< -1: it has not proved which
    Deadline since = Clock::now();
    bool refused = false;  ///< by its token, or it sent a line that is too long: it is not read any further
    bool waits_to_read = false, waits_to_write = false;
  };
  using Shared = std::shared_ptr<Connection>;
  struct Slot {
    std::uint32_t token = 0;
    int rank = 0;
    bool token_used = false;
    Shared connection{};
  };

  // New connections.
  void wait_for_pending();
  void accept_pending();
  void add(UniqueFd fd);
  void prove(const Shared& connection, std::string_view line);
  void forget_unproved(const Shared& connection);
  void schedule();
  void close_overdue();

  // Connected ranks.
  void read_later(const Shared& connection);
  [[nodiscard]] bool receive(const Shared& connection);
  void take_lines(const Shared& connection);
  void refuse(const Shared& connection, const std::string& why);
  void send(const Shared& connection);
  void close(const Shared& connection);

  boost::asio::any_io_executor executor_;
  Handlers handlers_;
  Listener listener_;
  Acceptor acceptor_;
  boost::asio::posix::stream_descriptor pending_;  ///< a duplicate of the listener's descriptor, for the event loop
  bool waits_for_pending_ = false;
  bool others_wait_ = false;  ///< in the kernel's queue, while as many as may be are unproved
  Deadline retry_at_ = Deadline::max();
  Alarm alarm_;
  int world_size_ = 0;
  std::vector<Slot> slots_;
  std::vector<Shared> unproved_;
  std::array<char, std::size_t{64} * 1024> buffer_;
};

}  // namespace ddrun::pmi
