#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// A message to send; without one: close the link after everything queued before.
struct Output {
  LinkId link = 0;
  std::optional<FromCoordinator> message;
};

/// Output queue of a coordinator. Logs go to one agent only, the observer, which shows them to the user.
class Outgoing {
 public:
  /// `observer`: its current link, if there is one.
  explicit Outgoing(std::function<std::optional<LinkId>()> observer) : observer_(std::move(observer)) {}

  void send(LinkId link, FromCoordinator message);
  void close(LinkId link);
  void refuse(LinkId link, RefusalKind kind, const std::string& why);
  /// `heard`: number of its last PONG.
  void ping(LinkId link, std::uint32_t heard);
  void on_pong(LinkId link, std::uint32_t number);

  /// Queued until there is an observer; only the last `max_early` are kept.
  void event(std::string json, std::size_t max_early);
  void notice(const std::string& text);
  /// `report` is sent without its text if the observer has too many unread bytes, so that it is not disconnected for
  /// being slow.
  void report(Log report);

  [[nodiscard]] std::vector<Output> take();
  [[nodiscard]] std::optional<LinkId> observer() const { return observer_(); }

 private:
  /// Bytes of reports sent to the observer. Those sent before a ping are read when its PONG arrives.
  struct Reported {
    LinkId to = 0;
    std::uint64_t sent = 0;
    std::uint64_t read = 0;
    std::uint32_t ping = 0;  ///< 0: none pending
    std::uint64_t sent_before_ping = 0;
  };

  std::function<std::optional<LinkId>()> observer_;
  std::vector<Output> outputs_;
  std::deque<std::string> early_events_;
  std::uint32_t pings_ = 0;
  Reported reported_;
};

}  // namespace ddrun::rendezvous
