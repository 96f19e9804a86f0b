#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <list>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

/// --stdin=all: copies ddrun's stdin to every worker, each at its own pace: the fastest may be 16 MiB ahead of the
/// slowest. Then it has to wait, and if that lasts the slowest are named. A worker that closes its stdin or ends takes
/// no part any more. What was read in one attempt is not read again in the next.
class StdinFeed {
 public:
  explicit StdinFeed(boost::asio::any_io_executor executor);

  /// A descriptor for the stdin of the worker with this rank. For a regular file each gets its own view of it; else a
  /// pipe.
  Result<UniqueFd> open(int rank);
  /// All workers of the attempt have theirs: begin, or go on.
  void start();
  /// The attempt is over: their pipes are closed.
  void stop();

 private:
  struct Reader {
    Reader(boost::asio::any_io_executor executor, int fd, int of_rank) : pipe(std::move(executor), fd), rank(of_rank) {}
    boost::asio::posix::stream_descriptor pipe;
    int rank;
    std::uint64_t at = 0;  ///< it has got the input up to here
    bool waiting = false;  ///< for room in its pipe
  };
  bool open_input();
  void wait_for_input();
  void take_input();
  void input_is_over();
  /// Gives it what there is for it, as far as that goes without waiting; it may be erased.
  void push(std::list<Reader>::iterator reader);
  void push_all();
  /// Forgets what all have got, and reads on if a worker wants more and there is room.
  void go_on();
  [[nodiscard]] std::uint64_t slowest() const;
  void watch_slowest();
  [[nodiscard]] std::uint64_t end() const { return begin_ + backlog_.size(); }

  boost::asio::any_io_executor executor_;
  UniqueFd input_;
  boost::asio::posix::stream_descriptor readable_;  ///< an epoll set with input_ in it
  bool seekable_ = false;
  bool at_end_ = false;
  bool waiting_ = false;
  std::list<Reader> readers_;
  std::string backlog_;      ///< what not all have got yet
  std::uint64_t begin_ = 0;  ///< where it begins
  boost::asio::steady_timer slowest_timer_;
  bool slowest_is_watched_ = false;
  bool said_who_is_slow_ = false;
  unsigned generation_ = 0;
};

}  // namespace ddrun::agent
