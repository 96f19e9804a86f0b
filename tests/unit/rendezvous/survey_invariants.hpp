#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "coordinator.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::test {

/// Checks the questions to all machines of one coordinator; throws a Violation if one is not answered by exactly one
/// end in time, if an agent gets pages that it has not asked for, or more than it has confirmed.
class SurveyInvariants {
 public:
  /// `late`: how late the coordinator may be, as it is suspended now and then.
  explicit SurveyInvariants(const rendezvous::Coordinator& coordinator, Clock::duration late = {})
      : coordinator_(coordinator), late_(late) {}

  /// Before the coordinator gets it.
  void receives(rendezvous::LinkId link, const rendezvous::FromAgent& message, Clock::time_point now);
  void sends(rendezvous::LinkId link, const rendezvous::FromCoordinator& message, Clock::time_point now);
  /// After each step and its output.
  void after_step(Clock::time_point now);
  /// The coordinator is suspended for this time.
  void note_suspended(Clock::duration time);

 private:
  /// A question to all machines that has no end yet.
  struct Open {
    rendezvous::Ask ask;
    Clock::time_point by;
  };
  /// Bytes of pages on their way to an agent.
  struct Unconfirmed {
    std::deque<std::pair<std::uint32_t, std::size_t>> pings;  ///< each with the bytes before it
    std::size_t since_ping = 0;
    std::size_t bytes = 0;
  };

  void on_page(rendezvous::LinkId link, const rendezvous::Page& page, Clock::time_point now);

  const rendezvous::Coordinator& coordinator_;
  Clock::duration late_;
  std::map<std::pair<rendezvous::LinkId, std::uint32_t>, Open> open_;  ///< by the number of Ask
  std::map<rendezvous::LinkId, Unconfirmed> unconfirmed_;
  std::map<rendezvous::LinkId, Clock::time_point> reports_;  ///< to the user, when it last did so
  Clock::time_point stop_until_;                             ///< a stop asks until then
};

}  // namespace ddrun::test
