#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string>
#include <string_view>

#include "ddrun/base/unique_fd.hpp"
#include "wiped.hpp"

namespace ddrun::remote {

// Both live as long as the event loop: an operation under way refers to them.

/// The writing end of a pipe that is ours alone. Never makes its caller wait: what it does not take is queued. What was
/// queued is overwritten.
class ByteWriter {
 public:
  explicit ByteWriter(boost::asio::any_io_executor executor) : fd_(std::move(executor)) {}

  void open(UniqueFd fd);
  [[nodiscard]] bool is_open() const { return fd_.is_open(); }
  void write(std::string_view bytes);
  [[nodiscard]] std::size_t queued() const { return queue_.size() - written_; }
  /// Called when everything queued has been taken, once it had to wait.
  void on_empty(std::function<void()> callback) { on_empty_ = std::move(callback); }
  /// Called once, when the reader is gone.
  void on_broken(std::function<void()> callback) { on_broken_ = std::move(callback); }
  /// End-of-file for the reader, behind what is queued.
  void finish();
  /// The same at once.
  void close();

 private:
  void flush();
  void forget();

  boost::asio::posix::stream_descriptor fd_;
  WipedString queue_;
  std::size_t written_ = 0;
  bool waiting_ = false;
  bool finishing_ = false;
  std::function<void()> on_empty_;
  std::function<void()> on_broken_;
};

/// The reading end of a pipe that is ours alone. Keeps nothing of what it has handed on.
class ByteReader {
 public:
  explicit ByteReader(boost::asio::any_io_executor executor) : fd_(std::move(executor)) {}

  /// `on_bytes` gets what comes, `on_end` is called once, at end-of-file.
  void open(UniqueFd fd, std::function<void(std::string_view)> on_bytes, std::function<void()> on_end);
  [[nodiscard]] bool is_open() const { return fd_.is_open(); }
  /// While paused nothing is read, so that the writer has to wait.
  void pause(bool paused);
  /// Reads what is there without waiting and closes; `on_end` is not called.
  void drain();

 private:
  void wait();
  /// False at end-of-file.
  bool read_some();

  boost::asio::posix::stream_descriptor fd_;
  std::function<void(std::string_view)> on_bytes_;
  std::function<void()> on_end_;
  bool waiting_ = false;
  bool paused_ = false;
};

}  // namespace ddrun::remote
