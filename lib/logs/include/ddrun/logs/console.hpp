#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ddrun/base/shared_output.hpp"
#include "ddrun/logs/line_assembler.hpp"

namespace ddrun::logs {

/// A FIFO of bytes. Its memory grows as needed, is not initialised, and is freed when a large queue runs empty.
class ByteQueue {
 public:
  [[nodiscard]] std::size_t size() const { return end_ - begin_; }
  [[nodiscard]] bool empty() const { return begin_ == end_; }
  [[nodiscard]] const char* data() const { return bytes_.get() + begin_; }

  /// Room for `count` bytes at the back; commit() adds those that were written.
  [[nodiscard]] char* prepare(std::size_t count) {
    if (capacity_ - end_ < count) grow(count);
    return bytes_.get() + end_;
  }
  void commit(std::size_t count) { end_ += count; }

  void append(std::string_view text) {
    if (text.empty()) return;
    std::memcpy(prepare(text.size()), text.data(), text.size());
    end_ += text.size();
  }

  void consume(std::size_t count) {
    begin_ += count;
    if (begin_ != end_) return;
    begin_ = end_ = 0;
    if (capacity_ > max_idle_capacity) trim();
  }

  /// Frees the memory of an empty queue.
  void trim() {
    if (!empty()) return;
    bytes_.reset();
    capacity_ = 0;
  }

 private:
  static constexpr std::size_t max_idle_capacity = std::size_t{2} << 20U;

  void grow(std::size_t count);

  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

/// A queue of bytes for one terminal, pipe, socket or file. The descriptor is borrowed, and may be shared with other
/// programs. Never blocks: bytes that cannot be written now are queued, without a bound (see has_back_pressure()). Used
/// on the executor's thread only. The process must ignore SIGPIPE.
///
/// Held by shared_ptr, because a pending operation keeps it alive.
class Console : public std::enable_shared_from_this<Console> {
 public:
  /// `high`: queued bytes from which on has_back_pressure() is true.
  Console(const boost::asio::any_io_executor& executor, int fd, std::size_t high);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// True if both descriptors refer to the same file, pipe or terminal, so that one Console keeps their order.
  [[nodiscard]] static bool same_file(int fd, int other);

  [[nodiscard]] int descriptor() const { return fd_; }
  [[nodiscard]] bool is_terminal() const { return kind_ != Kind::other; }
  /// A terminal that understands control sequences.
  [[nodiscard]] bool can_erase() const { return kind_ == Kind::terminal; }
  [[nodiscard]] bool has_back_pressure() const { return queue_.size() >= high_; }
  [[nodiscard]] std::size_t queued() const { return queue_.size(); }
  /// A write failed for good, as when the reader has closed: all further output is dropped and counted as lost.
  [[nodiscard]] bool gone() const { return state_ == State::gone || state_ == State::reader_closed; }
  /// Gone because the other end of a pipe, socket or terminal is closed.
  [[nodiscard]] bool reader_closed() const { return state_ == State::reader_closed; }
  [[nodiscard]] std::uint64_t lost_bytes() const { return lost_; }
  /// The total; while it grows, there is a reader.
  [[nodiscard]] std::uint64_t written_bytes() const { return written_; }
  /// The last byte written was not the end of a line.
  [[nodiscard]] bool ends_mid_line() const { return mid_line_; }
  [[nodiscard]] const std::string& first_error() const { return first_error_; }
  void count_lost(std::size_t bytes) { lost_ += bytes; }

  /// Called when the queue is down to a quarter of `high` after back pressure, and when it runs empty.
  void on_drained(std::function<void()> callback) { on_drained_ = std::move(callback); }

  /// Queues a piece behind its prefix; it is not gone.
  void add(std::string_view prefix, const Piece& piece) {
    char* to = queue_.prepare(prefix.size() + piece.text.size() + 1);
    char* const begin = to;
    to += prefix.copy(to, prefix.size());  // either may be empty and point nowhere, which memcpy does not allow
    to += piece.text.copy(to, piece.text.size());
    if (piece.end == PieceEnd::cut) *to++ = '\n';
    queue_.commit(static_cast<std::size_t>(to - begin));
  }
  /// Queues bytes, or counts them as lost.
  void add(std::string_view bytes) { gone() ? count_lost(bytes.size()) : queue_.append(bytes); }

  /// Writes as much of the queue as possible without blocking; the rest follows when the descriptor is writable.
  void flush();
  /// The descriptor is not writable; the rest of the queue waits for it.
  [[nodiscard]] bool is_waiting() const { return waiting_; }
  /// Writes as much of the queue as possible without blocking and counts the rest as lost. No callback comes
  /// afterwards.
  void close();
  /// Drops the queue and counts it as lost.
  void drop_queue();
  /// Frees memory that only a burst of output needs.
  void trim() { queue_.trim(); }

 private:
  enum class Kind { other, dumb_terminal, terminal };
  enum class State { open, closed, gone, reader_closed };

  [[nodiscard]] static Kind kind_of(int fd);
  /// False if the descriptor is not writable now.
  bool write_queued();
  void wait_until_writable();
  void write_failed(int err);
  void notify_drained();

  int fd_;
  SharedOutput output_;
  Kind kind_;
  std::size_t high_;
  ByteQueue queue_;
  State state_ = State::open;
  bool had_back_pressure_ = false;
  bool waiting_ = false;
  bool was_full_ = false;
  bool mid_line_ = false;
  std::uint64_t lost_ = 0;
  std::uint64_t written_ = 0;
  std::string first_error_;
  std::function<void()> on_drained_;
  boost::asio::posix::stream_descriptor watch_;  ///< an epoll descriptor that holds the console's
};

}  // namespace ddrun::logs
