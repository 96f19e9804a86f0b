#pragma once

#include <string>
#include <utility>

#include "causes.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/link_id.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

/// Why a round is stopped, and what follows.
struct Ending {
  enum class Next { new_round, restart, end_of_job };  ///< a new round costs no restart

  VerdictMessage cause;  ///< the verdict if the job ends here
  Next next = Next::new_round;
  LinkId cause_link = 0;     ///< its STOPPED has the details; 0: none has
  std::string machine = {};  ///< where the worker failed
  bool had_started = false;  ///< workers were running
  int signal = 0;            ///< of the last STOP
  Clock::time_point since = {};
  CauseDetails details = {};

  [[nodiscard]] bool is_final() const { return next == Next::end_of_job; }
  [[nodiscard]] bool is_restart() const { return next == Next::restart; }
  /// For a failure or a loss: a restart if one is left.
  void set_restart(bool any_left) { next = any_left ? Next::restart : Next::end_of_job; }
  void replace(VerdictMessage by, LinkId link) {
    cause = std::move(by);
    cause_link = link;
    details.clear();
  }
};

/// Compares failures that led to restarts; a new coordinator starts from zero.
class FailureHistory {
 public:
  /// Why another restart would fail as the last ones did; empty if unknown. `started_at`: the round. Not with
  /// node_max_failures, since excluding a host may help.
  [[nodiscard]] std::string add(const Ending& ending, Clock::time_point started_at, const JobSettings& settings);

 private:
  std::string key_;  ///< empty: cause unknown
  int exit_code_ = 0;
  bool at_start_ = false;
  int times_ = 0;  ///< consecutive
};

}  // namespace ddrun::rendezvous
