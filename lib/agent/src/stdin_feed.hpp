#pragma once

#include <termios.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <list>
#include <string>
#include <utility>

#include "ddrun/base/result.hpp"
#include "ddrun/base/standard_input.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

/// --stdin=all: copies ddrun's stdin to every worker at its own pace. The fastest may be 16 MiB ahead of the slowest,
/// then it waits; slow ranks are named. A worker that closes its stdin is dropped. Input is not replayed in the next
/// attempt.
///
/// --stdin=RANK with several workers on a terminal: copies what is typed to the pseudo-terminal that the rank reads
/// from, which echoes and edits it. In the foreground the terminal itself does neither meanwhile.
class StdinFeed {
 public:
  explicit StdinFeed(boost::asio::any_io_executor executor);

  /// The stdin for this worker: its own open file description of a regular file, else a pipe.
  Result<UniqueFd> open(const RankName& rank);
  /// Input of this worker goes to this non-blocking descriptor, such as its pseudo-terminal's master.
  Result<void> add(const RankName& rank, UniqueFd fd);
  /// Whether that is a pseudo-terminal's.
  [[nodiscard]] bool feeds_terminal() const { return feeds_terminal_; }
  /// Starts or continues to copy, once all workers of the attempt have their stdin.
  void start();
  /// While it is paused nothing is read, and the terminal has its settings of before.
  void set_paused(bool still);
  /// Closes the pipes at the end of the attempt, and restores the terminal's settings.
  void stop();

 private:
  struct Reader {
    Reader(boost::asio::any_io_executor executor, RankName of_rank)
        : pipe(std::move(executor)), rank(std::move(of_rank)) {}
    boost::asio::posix::stream_descriptor pipe;
    RankName rank;
    std::uint64_t at = 0;  ///< input written to it so far
    bool waiting = false;  ///< for room in its pipe
  };
  void wait_for_input();
  /// With a pseudo-terminal: sets the terminal to pass keys unchanged, or restores its settings if they are still
  /// these.
  void set_terminal(bool passes_keys);
  void on_input_end();
  /// Writes pending input without blocking; may erase the reader.
  void push(std::list<Reader>::iterator reader);
  void push_all();
  /// Drops input that all have got, and reads more if a reader needs it and there is room.
  void read_more();
  [[nodiscard]] std::uint64_t slowest() const;
  void watch_slowest();
  [[nodiscard]] std::uint64_t end() const { return begin_ + backlog_.size(); }

  boost::asio::any_io_executor executor_;
  StandardInput input_;
  bool seekable_ = false;
  bool at_end_ = false;
  bool paused_ = false;
  bool feeds_terminal_ = false;
  bool passes_keys_ = false;   ///< by set_terminal()
  termios terminal_before_{};  ///< its settings before that
  std::list<Reader> readers_;
  std::string backlog_;      ///< input that not all readers have got
  std::uint64_t begin_ = 0;  ///< its offset
  boost::asio::steady_timer slowest_timer_;
  bool slowest_watched_ = false;
  bool slow_readers_reported_ = false;
  unsigned generation_ = 0;
};

}  // namespace ddrun::agent
