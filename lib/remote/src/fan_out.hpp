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

/// Reaches many hosts: some by a link each, and those behind them through them. Used on the user's machine, and on
/// every host that starts others. Lives as long as the event loop.
class FanOut {
 public:
  struct Events {
    std::function<void(const Frame&)> on_frame;  ///< from any host, by the link behind which it is
    /// This host is lost or was never reached. Not called for one that has said `ended`.
    std::function<void(std::uint32_t host, const std::string& why)> on_lost;
    std::function<void()> on_over;  ///< the last link is gone
  };
  FanOut(boost::asio::any_io_executor executor, process::Launcher& launcher, process::ChildWatcher& watcher,
         LinkSettings settings, Events events);

  void start(const std::vector<Target>& targets);
  void send(FrameType type, std::uint32_t host, std::string_view payload);
  /// To all hosts that have not ended.
  void send_all(FrameType type, std::string_view payload);
  /// To those that have a link of their own, who pass it on.
  void ping();
  /// This host is not wanted any more; nothing if ddrun runs there already.
  void cancel_start(std::uint32_t host);
  /// All hosts end in order.
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
  /// A host speaks for itself and for those behind it; the link of one that does otherwise is cut.
  void handle_frame(const Subtree& subtree, const Frame& frame);
  void link_ended(const Subtree& subtree, const std::string& why);

  boost::asio::any_io_executor executor_;
  process::Launcher& launcher_;
  process::ChildWatcher& watcher_;
  LinkSettings settings_;
  Events events_;
  std::vector<std::unique_ptr<Subtree>> subtrees_;
  std::map<std::uint32_t, Subtree*> routes_;  ///< to a host
  std::set<std::uint32_t> ended_;
};

}  // namespace ddrun::remote
