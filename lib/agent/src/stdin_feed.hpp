#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <list>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

/// --stdin=all: copies ddrun's stdin to every worker, at the pace of the slowest. A worker that closes its stdin or
/// ends takes no part any more. What was read in one attempt is not read again in the next.
class StdinFeed {
 public:
  explicit StdinFeed(boost::asio::any_io_executor executor);

  /// A descriptor for one worker's stdin. For a regular file each gets its own view of it; else a pipe.
  Result<UniqueFd> open();
  /// All workers of the attempt have theirs: begin, or go on.
  void start();
  /// The attempt is over: their pipes are closed.
  void stop();

 private:
  struct Reader {
    explicit Reader(boost::asio::any_io_executor executor, int fd) : pipe(std::move(executor), fd) {}
    boost::asio::posix::stream_descriptor pipe;
    std::size_t done = 0;  ///< of chunk_
  };
  bool open_input();
  void wait_for_input();
  void take_input();
  void push(std::list<Reader>::iterator reader);
  void one_is_done();

  boost::asio::any_io_executor executor_;
  UniqueFd input_;
  boost::asio::posix::stream_descriptor readable_;  ///< an epoll set with input_ in it
  bool seekable_ = false;
  bool at_end_ = false;
  bool waiting_ = false;
  std::list<Reader> readers_;
  std::string chunk_;
  std::size_t pending_ = 0;
  unsigned generation_ = 0;
};

}  // namespace ddrun::agent
