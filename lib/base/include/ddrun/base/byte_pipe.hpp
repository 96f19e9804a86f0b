#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

// The two ends of pipes and sockets. Used on the executor's thread only; a callback may destroy the object that calls
// it. SIGPIPE has to be ignored, but not for sockets.

/// A non-blocking writer on a pipe or socket that it owns. Unwritten data is queued, and wiped after writing (it may be
/// secret).
class ByteWriter {
 public:
  explicit ByteWriter(boost::asio::any_io_executor executor) : fd_(std::move(executor)) {}

  /// 0, or an errno; then on_broken follows.
  int open(UniqueFd fd);
  [[nodiscard]] bool is_open() const { return fd_.is_open(); }
  void write(std::string_view bytes);
  [[nodiscard]] std::size_t queued() const { return queue_.size() - written_; }
  /// Called when the queue has become empty after a wait.
  void on_empty(std::function<void()> callback) { on_empty_ = std::move(callback); }
  /// Called once, when the reader has closed the pipe.
  void on_broken(std::function<void()> callback) { on_broken_ = std::move(callback); }
  /// Closes the pipe after the queued data.
  void finish();
  /// Closes the pipe at once and drops the queue.
  void close();

 private:
  void flush();
  void forget();

  boost::asio::posix::stream_descriptor fd_;
  WipedString queue_;
  std::size_t written_ = 0;
  bool is_socket_ = false;
  bool waiting_ = false;
  bool finishing_ = false;
  std::function<void()> on_empty_;
  std::function<void()> on_broken_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>();
};

/// A non-blocking reader on a pipe or socket that it owns. Wipes its buffer after each callback.
class ByteReader {
 public:
  explicit ByteReader(boost::asio::any_io_executor executor) : fd_(std::move(executor)) {}

  /// `on_bytes` receives data; `on_end` is called once, at end-of-file. 0, or an errno; then `on_end` follows.
  int open(UniqueFd fd, std::function<void(std::string_view)> on_bytes, std::function<void()> on_end);
  [[nodiscard]] bool is_open() const { return fd_.is_open(); }
  /// While paused nothing is read (back pressure).
  void pause(bool paused);
  /// Reads what a pipe can hold and is available now, unless it is paused.
  void catch_up();
  /// Reads what is available without blocking and closes; `on_end` is not called.
  void drain();
  /// No callback comes afterwards.
  void close();

 private:
  enum class Read { again, end, gone };
  void wait();
  /// At most `rounds` chunks; `gone`: the callback has closed or destroyed this reader.
  [[nodiscard]] Read read_some(int rounds);

  boost::asio::posix::stream_descriptor fd_;
  std::function<void(std::string_view)> on_bytes_;
  std::function<void()> on_end_;
  bool waiting_ = false;
  bool paused_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>();
};

}  // namespace ddrun
