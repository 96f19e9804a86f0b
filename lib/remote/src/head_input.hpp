#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string_view>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::remote {

/// Reads this process' standard input, which it shares with whoever started it: nothing about it is changed.
/// Lives as long as the event loop.
class HeadInput {
 public:
  HeadInput(boost::asio::any_io_executor executor, std::function<void(std::string_view)> on_bytes,
            std::function<void()> on_end)
      : executor_(std::move(executor)), ready_(executor_), on_bytes_(std::move(on_bytes)), on_end_(std::move(on_end)) {}

  /// Reads one portion when there is one, and then waits to be asked again.
  void want();
  void stop();

 private:
  void open();
  void read_portion();
  void end();

  boost::asio::any_io_executor executor_;
  UniqueFd input_;
  boost::asio::posix::stream_descriptor ready_;  ///< an epoll set that holds it; closed if it is always ready
  std::function<void(std::string_view)> on_bytes_;
  std::function<void()> on_end_;
  bool opened_ = false;
  bool waiting_ = false;
  bool ended_ = false;
};

}  // namespace ddrun::remote
