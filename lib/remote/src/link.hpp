#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/launcher.hpp"
#include "protocol.hpp"

namespace ddrun::remote {

// ByteWriter and ByteReader live as long as the event loop: an operation under way refers to them.

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

/// What all links of one fan-out have in common.
struct LinkSettings {
  std::vector<std::string> ssh;  ///< the command's words; a host and the remote command are put behind them
  std::string program;           ///< where ddrun lies on the user's machine
  std::string build_id;
  bool portable = true;   ///< this program needs no libraries
  std::size_t width = 1;  ///< so many links of one fan-out; more hosts are reached through these
  std::chrono::milliseconds start_limit{120'000};
};

/// One ssh to one host: gets ddrun to run there, then carries frames. Lives as long as the event loop.
class Link {
 public:
  struct Events {
    std::function<void()> on_ready;  ///< ddrun runs there; frames may be sent
    std::function<void(const Frame&)> on_frame;
    /// It is over, for whatever reason; `why` names the host.
    std::function<void(const std::string& why)> on_end;
  };
  Link(boost::asio::any_io_executor executor, const LinkSettings& settings, Target target, Events events);

  /// Starts ssh. Failures come as on_end.
  void start(process::Launcher& launcher, process::ChildWatcher& watcher);
  [[nodiscard]] bool is_ready() const { return phase_ == Phase::frames; }
  [[nodiscard]] bool is_over() const { return phase_ == Phase::over; }
  /// Dropped unless ready.
  void send(FrameType type, std::uint32_t host, std::string_view payload);
  /// End-of-file for the other side, which ends in order then.
  void close_input();
  /// Ends it, with this reason in what on_end() is told; nothing that came is handed out any more.
  void disconnect(std::string why);
  void kill();
  /// While true nothing is read from there.
  void pause(bool paused);
  /// True if this was its ssh.
  bool child_ended(const process::ChildEnd& end);

 private:
  enum class Phase { greeting, copying, frames, over };

  void handle_bytes(std::string_view bytes);
  void handle_greeting();
  void handle_frames(std::string_view bytes);
  void begin_copy();
  void copy_more();
  void handle_errors(std::string_view bytes);
  void arm_silence_timer();
  void finish_if_over();
  /// Takes no part in anything from here on; why, in words.
  [[nodiscard]] std::string end();
  [[nodiscard]] std::string describe_end() const;

  boost::asio::any_io_executor executor_;
  const LinkSettings& settings_;
  Target target_;
  Events events_;
  Phase phase_ = Phase::greeting;
  bool was_copied_ = false;
  bool was_ready_ = false;
  std::optional<process::Spawned> child_;
  std::optional<ExitStatus> status_;
  bool output_ended_ = false;
  ByteWriter to_host_;
  ByteReader from_host_;
  ByteReader errors_from_host_;
  std::string greeting_;
  std::string errors_;  ///< the last that ssh or the remote shell wrote
  std::string disconnect_reason_;
  FrameReader frames_;
  UniqueFd program_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer silence_;
  Clock::time_point last_received_{};  ///< the last time that anything came from there
  bool paused_ = false;
};

}  // namespace ddrun::remote
