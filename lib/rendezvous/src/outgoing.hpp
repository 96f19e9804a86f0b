#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/rendezvous/coordinator.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// What a coordinator has to say, in order, until its owner takes it. People are told by one agent, the observer, of
/// events, notices, and what became of a round's workers.
class Outgoing {
 public:
  /// `observer`: its link at the moment, if there is one.
  explicit Outgoing(std::function<std::optional<LinkId>()> observer) : observer_(std::move(observer)) {}

  void send(LinkId link, FromCoordinator message);
  void close(LinkId link);
  void refuse(LinkId link, RefusalKind kind, const std::string& why);
  void ping(LinkId link);
  void on_pong(LinkId link, std::uint32_t number);

  /// An event waits until there is an observer; of those that wait `most_early` are kept, the last ones.
  void event(std::string json, std::size_t max_early);
  void notice(const std::string& text);
  /// An observer that is slow to read, or whose job has very many workers, is not to be cut off for it: it hears of the
  /// node then, without its workers.
  void report(NodeReport report);

  [[nodiscard]] std::vector<Coordinator::Output> take();

 private:
  /// Reports to the observer, in bytes since the job began. What was sent before a ping has been read when it is
  /// answered.
  struct Reported {
    LinkId to = 0;
    std::uint64_t sent = 0;
    std::uint64_t read = 0;
    std::uint32_t ping = 0;  ///< 0: none is under way
    std::uint64_t sent_before_ping = 0;
  };

  std::function<std::optional<LinkId>()> observer_;
  std::vector<Coordinator::Output> outputs_;
  std::deque<std::string> early_events_;
  std::uint32_t pings_ = 0;
  Reported reported_;
};

}  // namespace ddrun::rendezvous
