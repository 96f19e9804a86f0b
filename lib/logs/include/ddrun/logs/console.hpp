#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/line_assembler.hpp"

namespace ddrun::logs {

/// Bytes in order: put in at the back, taken from the front. Its memory grows as needed, is not initialised, and is
/// given back when the queue runs empty after having been large.
class ByteQueue {
 public:
  [[nodiscard]] std::size_t size() const { return end_ - begin_; }
  [[nodiscard]] bool empty() const { return begin_ == end_; }
  [[nodiscard]] const char* data() const { return bytes_.get() + begin_; }

  /// Room for `count` bytes at the back; say with commit() how many of them were used.
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
    if (capacity_ > max_idle_capacity) {
      bytes_.reset();
      capacity_ = 0;
    }
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

/// One place where people look: a terminal, a pipe, a socket or a file, given as a descriptor that is borrowed and
/// that may be shared with other programs. Takes whole lines from many streams and never makes its caller wait: what
/// the place does not take at once stays in a queue, in order.
///
/// Held by shared_ptr, because an operation under way keeps it alive.
class Console : public std::enable_shared_from_this<Console> {
 public:
  /// From `high` queued bytes on `has_back_pressure` is true, until the queue is down to a quarter of that.
  Console(boost::asio::any_io_executor executor, int fd, std::size_t high);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Whether both descriptors lead to the same place, so that one queue keeps their order.
  [[nodiscard]] static bool same_file(int fd, int other);

  [[nodiscard]] bool is_terminal() const { return terminal_; }
  [[nodiscard]] bool has_back_pressure() const { return queue_.size() >= high_; }
  [[nodiscard]] std::size_t queued() const { return queue_.size(); }
  /// The other side has closed: everything is dropped from here on.
  [[nodiscard]] bool gone() const { return gone_; }
  /// Gone because the reader has seen enough: the other end of a pipe or a terminal is closed.
  [[nodiscard]] bool reader_closed() const { return reader_closed_; }
  [[nodiscard]] std::uint64_t lost_bytes() const { return lost_; }
  /// How much has been written in all: while it grows, there is a reader.
  [[nodiscard]] std::uint64_t written_bytes() const { return written_; }
  /// What the place got last was not a whole line.
  [[nodiscard]] bool ends_mid_line() const { return mid_line_; }
  [[nodiscard]] const std::string& first_error() const { return first_error_; }
  void count_lost(std::size_t bytes) { lost_ += bytes; }

  /// Called when the queue has come down after having been crowded, and when it runs empty after having had to wait.
  void on_drained(std::function<void()> callback) { on_drained_ = std::move(callback); }

  /// Queues a piece of what `writer` (any address that tells writers apart) has written.
  void add(const void* writer, std::string_view prefix, const Piece& piece) {
    if (terminal_) return add_to_terminal(writer, prefix, piece);
    char* to = queue_.prepare(prefix.size() + piece.text.size() + 1);
    char* const begin = to;
    to += prefix.copy(to, prefix.size());  // either may be empty and point nowhere, which memcpy does not allow
    to += piece.text.copy(to, piece.text.size());
    if (piece.end == PieceEnd::cut) *to++ = '\n';
    queue_.commit(static_cast<std::size_t>(to - begin));
  }

  /// Queues whole lines that are no worker's.
  void add_text(std::string_view text);

  /// Writes what can be written without waiting, and sees to the rest.
  void flush();
  /// The same, but once for everything that is added until the loop comes round.
  void schedule_flush();
  /// Nothing more is called back; what is queued is written as far as that goes without waiting, and the rest of it
  /// is counted as lost.
  void close();

 private:
  enum class Access {
    own,     ///< a description of our own that never blocks
    socket,  ///< shared with others; asks not to wait with each call
    direct,  ///< a file: writing does not wait for a reader
    polled,  ///< shared with others and may block: asks first, then writes little
  };

  void choose_access();
  void add_to_terminal(const void* writer, std::string_view prefix, const Piece& piece);
  /// Colours and places on the screen that another writer has left.
  void reset_screen_of_other_writer(const void* writer);
  /// Ends what another writer has left unfinished on the screen.
  void end_line_of_other_writer(const void* writer);
  [[nodiscard]] long write_some(const char* data, std::size_t size) const;
  /// Writes from the queue; false if the place takes nothing more now.
  bool write_queued();
  void wait_until_writable();
  void write_failed(int err);
  void notify_drained();

  enum class Cursor { line_start, after_return, in_line };

  boost::asio::any_io_executor executor_;
  int fd_;
  UniqueFd own_fd_;
  Access access_ = Access::direct;
  std::size_t max_polled_write_ = 1;
  bool terminal_ = false;
  bool can_erase_ = false;
  std::size_t high_;
  ByteQueue queue_;
  bool had_back_pressure_ = false;
  bool waiting_ = false;
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
  boost::asio::posix::stream_descriptor watch_;  ///< an epoll descriptor that holds the console's
};

}  // namespace ddrun::logs
