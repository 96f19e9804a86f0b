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

struct ScreenState;

/// Writes the lines of many streams to one terminal, pipe, socket or file. The descriptor is borrowed, and may be
/// shared with other programs. Never blocks: bytes that cannot be written now are queued, without a bound (see
/// has_back_pressure()). Used on the executor's thread only. The process must ignore SIGPIPE.
///
/// Held by shared_ptr, because a pending operation keeps it alive.
class Console : public std::enable_shared_from_this<Console> {
 public:
  /// `high`: queued bytes from which on has_back_pressure() is true.
  Console(boost::asio::any_io_executor executor, int fd, std::size_t high);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// True if both descriptors refer to the same file, pipe or terminal, so that one Console keeps their order.
  [[nodiscard]] static bool same_file(int fd, int other);

  [[nodiscard]] int descriptor() const { return fd_; }
  [[nodiscard]] bool is_terminal() const { return terminal_; }
  /// A terminal that understands control sequences.
  [[nodiscard]] bool can_erase() const { return can_erase_; }
  [[nodiscard]] bool has_back_pressure() const { return queue_.size() >= high_; }
  [[nodiscard]] std::size_t queued() const { return queue_.size(); }
  /// A write failed for good, as when the reader has closed: all further output is dropped and counted as lost.
  [[nodiscard]] bool gone() const { return gone_; }
  /// Gone because the other end of a pipe, socket or terminal is closed.
  [[nodiscard]] bool reader_closed() const { return reader_closed_; }
  [[nodiscard]] std::uint64_t lost_bytes() const { return lost_; }
  /// The total; while it grows, there is a reader.
  [[nodiscard]] std::uint64_t written_bytes() const { return written_; }
  /// The last output was not the end of a line.
  [[nodiscard]] bool ends_mid_line() const { return terminal_ ? cursor_ != Cursor::line_start : mid_line_; }
  [[nodiscard]] const std::string& first_error() const { return first_error_; }
  void count_lost(std::size_t bytes) { lost_ += bytes; }

  /// Called when the queue is down to a quarter of `high` after back pressure, and when it runs empty.
  void on_drained(std::function<void()> callback) { on_drained_ = std::move(callback); }

  /// Called before queued bytes are written, and may add some.
  void on_flush(std::function<void()> callback) { on_flush_ = std::move(callback); }

  /// Queues a piece of the output of `writer` (any address that identifies the stream).
  void add(const void* writer, std::string_view prefix, const Piece& piece) {
    if (terminal_) return add_to_terminal(writer, prefix, piece);
    char* to = queue_.prepare(prefix.size() + piece.text.size() + 1);
    char* const begin = to;
    to += prefix.copy(to, prefix.size());  // either may be empty and point nowhere, which memcpy does not allow
    to += piece.text.copy(to, piece.text.size());
    if (piece.end == PieceEnd::cut) *to++ = '\n';
    queue_.commit(static_cast<std::size_t>(to - begin));
  }

  /// Queues whole lines of ddrun itself.
  void add_text(std::string_view text);
  /// Queues bytes that draw below all lines of a terminal, or remove that again.
  void add_drawing(std::string_view bytes, bool ends_at_line_start);
  /// The terminal has echoed a newline: its cursor is at the start of a line.
  void line_was_ended() { cursor_ = Cursor::line_start; }

  /// Writes as much of the queue as possible without blocking; the rest follows when the descriptor is writable.
  void flush();
  /// flush() in the next turn of the event loop, once for all that is added until then.
  void schedule_flush();
  /// Writes as much of the queue as possible without blocking and counts the rest as lost. No callback comes
  /// afterwards.
  void close();
  /// Drops the queue and counts it as lost.
  void drop_queue();
  /// Frees memory that only a burst of output needs.
  void trim() { queue_.trim(); }

 private:
  void add_to_terminal(const void* writer, std::string_view prefix, const Piece& piece);
  /// Resets colours and cursor position if the last writer was another one.
  void reset_screen_of_other_writer(const void* writer);
  /// Ends the unfinished line of another writer.
  void end_line_of_other_writer(const void* writer);
  /// False if the descriptor is not writable now.
  bool write_queued();
  void wait_until_writable();
  void write_failed(int err);
  void notify_drained();

  enum class Cursor { line_start, after_return, in_line };

  boost::asio::any_io_executor executor_;
  int fd_;
  SharedOutput output_;
  bool terminal_ = false;
  bool can_erase_ = false;
  std::size_t high_;
  ByteQueue queue_;
  bool had_back_pressure_ = false;
  bool waiting_ = false;
  bool was_full_ = false;
  bool flush_posted_ = false;
  bool gone_ = false;
  bool reader_closed_ = false;
  bool closed_ = false;
  Cursor cursor_ = Cursor::line_start;
  const void* line_owner_ = nullptr;
  std::unique_ptr<ScreenState> screen_;  ///< of a terminal
  std::string filtered_;
  std::uint64_t lost_ = 0;
  std::uint64_t written_ = 0;
  bool mid_line_ = false;
  std::string first_error_;
  std::function<void()> on_drained_;
  std::function<void()> on_flush_;
  boost::asio::posix::stream_descriptor watch_;  ///< an epoll descriptor that holds the console's
};

}  // namespace ddrun::logs
