#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/byte_pipe.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/launcher.hpp"
#include "protocol.hpp"

namespace ddrun::remote {

/// Settings of all links.
struct LinkSettings {
  std::vector<std::string> ssh;  ///< the ssh command; host and remote command are appended
  std::string program;           ///< path of ddrun on the user's machine
  std::string build_id;
  bool portable = true;  ///< statically linked
  std::chrono::milliseconds start_limit{120'000};
};

/// One ssh to one host: starts ddrun there, copying it if needed, then carries frames. Must live as long as the event
/// loop.
class Link {
 public:
  struct Events {
    std::function<void(const Frame&)> on_frame;  ///< the first one, `hello`: ddrun runs on the host
    /// The link has ended; `why` names the host and the reason.
    std::function<void(const std::string& why)> on_end;
  };
  Link(boost::asio::any_io_executor executor, const LinkSettings& settings, std::string host, bool is_local,
       Events events);

  /// Starts ssh. Failures are reported by on_end, also if ddrun does not run on the host by the deadline.
  void start(process::Launcher& launcher, process::ChildWatcher& watcher, Clock::time_point deadline);
  /// Dropped unless ddrun runs on the host.
  void send(FrameType type, std::string_view payload);
  /// End-of-file for the other side, which then stops the job and ends.
  void close_input();
  /// Kills ssh; on_end() gets this reason. No further frames are delivered.
  void disconnect(std::string why);
  void kill();
  /// While paused nothing is read from the host. Ignored before the first frame.
  void pause(bool paused);
  /// Once ended: a proxy closed ssh's connection before the login, and nothing else was wrong.
  [[nodiscard]] bool was_closed_by_proxy() const;
  /// True if the child was this link's ssh.
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
  /// Closes the link; returns the reason.
  [[nodiscard]] std::string end();
  [[nodiscard]] std::string describe_end() const;

  boost::asio::any_io_executor executor_;
  const LinkSettings& settings_;
  std::string host_;
  bool is_local_;
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
  std::string errors_;  ///< the last stderr output of ssh or the remote shell
  std::string disconnect_reason_;
  FrameReader frames_;
  UniqueFd program_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer silence_;
  Clock::time_point last_received_{};  ///< time of the last data from the host
  bool paused_ = false;
};

}  // namespace ddrun::remote
