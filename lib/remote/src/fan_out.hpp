#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "link.hpp"

namespace ddrun::remote {

/// A tree of hosts: the roots are reached by one link each, the others through them. Used by the head and by every host
/// that starts others. Must live as long as the event loop.
class FanOut {
 public:
  struct Events {
    std::function<void(const Frame&)> on_frame;  ///< from any host; checked to come from its link
    /// The host is lost or was never reached. Not called after its `ended` frame.
    std::function<void(std::uint32_t host, const std::string& why)> on_lost;
    std::function<void()> on_over;  ///< the last link has ended
  };
  FanOut(boost::asio::any_io_executor executor, process::Launcher& launcher, process::ChildWatcher& watcher,
         LinkSettings settings, Events events);

  void start(const std::vector<Target>& targets);
  void send(FrameType type, std::uint32_t host, std::string_view payload);
  /// Sends to all hosts that have not ended.
  void send_all(FrameType type, std::string_view payload);
  /// Pings the roots, which forward it.
  void ping();
  /// Cancels starting a host; no effect once ddrun runs there.
  void cancel_start(std::uint32_t host);
  /// Closes the input of all links: their hosts stop the job and end.
  void close_input();
  void kill();
  void pause(bool paused);
  void child_ended(const process::ChildEnd& end);
  [[nodiscard]] bool is_over() const;

 private:
  struct Subtree {
    Branch branch;
    std::unique_ptr<Link> link;
  };
  /// A link carries frames of its subtree only; one that violates this is disconnected.
  void handle_frame(const Subtree& subtree, const Frame& frame);
  void link_ended(const Subtree& subtree, const std::string& why);

  boost::asio::any_io_executor executor_;
  process::Launcher& launcher_;
  process::ChildWatcher& watcher_;
  LinkSettings settings_;
  Events events_;
  std::vector<std::unique_ptr<Subtree>> subtrees_;
  std::map<std::uint32_t, Subtree*> routes_;  ///< the subtree of each host
  std::set<std::uint32_t> ended_;
};

}  // namespace ddrun::remote
