#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string_view>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// Standard input, in chunks as they are asked for. It is shared with the user's shell, so its flags are not changed.
/// Never blocks the caller, not even on a disk. Use on the executor's thread only.
class StandardInput {
 public:
  struct Events {
    std::function<void(std::string_view bytes)> on_bytes;
    std::function<void()> on_end;  ///< once; also after an error
    /// Whether another job of the shell has the terminal: this one must not read from it then, and asks again
    /// every background_interval.
    std::function<bool()> is_in_background;
    /// If not empty, it is known before a wait for the terminal too: called with it then, and before a read.
    std::function<void(bool in_background)> on_terminal = {};
  };
  static constexpr std::chrono::milliseconds background_interval{100};

  /// Must live as long as the event loop, unless close() was called.
  StandardInput(boost::asio::any_io_executor executor, Events events);

  /// Asks for one chunk, on_bytes or on_end. Without effect while one is asked for, and after the end.
  void request();
  /// Takes a request back.
  void cancel() { wanted_ = false; }
  /// Requests were made, and its end has not come.
  [[nodiscard]] bool is_open() const { return state_ == State::open; }
  /// No callback comes afterwards.
  void close();

 private:
  enum class State { unopened, open, ended };
  void open();
  /// 0, or the errno of epoll_ctl().
  [[nodiscard]] int watch();
  [[nodiscard]] bool waits_in_background();
  void read();
  void end();

  boost::asio::any_io_executor executor_;
  Events events_;
  State state_ = State::unopened;
  UniqueFd input_;
  bool is_terminal_ = false;
  boost::asio::posix::stream_descriptor readable_;  ///< an epoll set with the input; closed if it is always ready
  boost::asio::steady_timer background_timer_;
  bool wanted_ = false;
  bool waiting_ = false;
};

}  // namespace ddrun
