#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::pmi {

/// The loopback port to which the ranks of this machine connect, each with a random token of its own (PMI_PORT,
/// PMI_ID). No descriptor of it is inherited. Use on the executor's thread only; must outlive the event loop.
///
/// A rank that does not read its answers is not read either, so that it holds no more memory than one line and its
/// answer. No more than 64 connections without a token yet are read at once, others wait in the kernel's queue.
class RankListener {
 public:
  /// Called from within the event loop or drain(); they may call answer() and cut_off().
  struct Handlers {
    std::function<void(int slot, std::string line)> line;
    /// The connection cannot be read any further; cut_off() is the handler's part.
    std::function<void(int slot, std::string why)> garbage;
  };
  RankListener(boost::asio::any_io_executor executor, Handlers handlers);
  ~RankListener();
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
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddrun::pmi
