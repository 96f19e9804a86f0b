#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ddrun/base/duration.hpp"

namespace ddrun::remote {

/// Decides when the job begins, and which host runs the coordinator: the first one, in the order of --hosts, that can
/// be reached. A decider: no connections, no clock.
///
/// If all hosts are needed, the first one begins once it answers. Else the job waits for the first host, and until
/// `max_nodes` have answered or all others have failed; from `min_nodes` answers on, for `last_call` at most.
class StartDecision {
 public:
  StartDecision(std::size_t hosts, int min_nodes, int max_nodes, Milliseconds last_call)
      : min_nodes_(min_nodes), max_nodes_(max_nodes), last_call_(last_call), hosts_(hosts, Host::pending) {}

  enum class Event {
    answered,  ///< ddrun runs on the host
    failed,    ///< it cannot be reached, or was lost
    tick,      ///< the time of Actions::tick_at
  };
  struct Actions {
    std::optional<std::uint32_t> coordinator;  ///< begin, with this host as the coordinator's
    int answered = 0;                          ///< so many hosts begin; others join later
    std::optional<Clock::time_point> tick_at;  ///< decide then at the latest
  };
  /// `host` is ignored for a tick. Without effect once it has decided.
  Actions step(Event event, std::uint32_t host, Clock::time_point now);

 private:
  enum class Host : std::uint8_t { pending, answered, failed };

  int min_nodes_;
  int max_nodes_;
  Milliseconds last_call_;
  std::vector<Host> hosts_;
  std::optional<Clock::time_point> last_call_until_;
  bool decided_ = false;
};

}  // namespace ddrun::remote
