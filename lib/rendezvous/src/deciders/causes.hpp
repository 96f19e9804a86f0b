#pragma once

#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "membership.hpp"

// Why a round or a job ends, as the corresponding verdict: one sentence with rank and host, and an exit code.

namespace ddrun::rendezvous::causes {

/// "600 s", "0.5 s".
[[nodiscard]] std::string seconds_text(Clock::duration time);

/// For a text of a member that is sent to all others.
[[nodiscard]] std::string truncate_text(const std::string& text);

/// "a, b, c, d, e, 7 more"
[[nodiscard]] std::string first_names(std::vector<std::string> names);

/// "1 more node", "2 more nodes".
[[nodiscard]] std::string more_nodes(int wanted);

/// "c (10.0.0.3) joins"
[[nodiscard]] std::string joining(const std::vector<const Member*>& newcomers);

/// All workers of the job have ended with success.
[[nodiscard]] VerdictMessage success();
[[nodiscard]] VerdictMessage worker_failed(const Failed& failure, const Member& member);
/// Others wait for its ranks, which have ended with success.
[[nodiscard]] VerdictMessage ranks_missing(const Member& member);
/// `how`: "the connection broke: connection reset by peer".
[[nodiscard]] VerdictMessage node_lost(const Member& member, const std::string& how);
[[nodiscard]] VerdictMessage left(const Member& member, const Leave& leave);
/// Some nodes of the round have finished, and the `late` ones have not.
[[nodiscard]] VerdictMessage skewed(const std::vector<const Member*>& late, Milliseconds allowed);
/// `wanted` nodes were needed, `names` had joined.
[[nodiscard]] VerdictMessage too_few(int joined, int wanted, Milliseconds timeout, const std::string& names);

}  // namespace ddrun::rendezvous::causes

namespace ddrun::rendezvous {

/// Collects the failures of STOPPED while a round is being stopped. The node whose worker failed first is the cause.
/// Another node's failure is added if the first one only complains about peers, or if its worker was stopped and the
/// other one ended by itself with a reason. Failures that are too long count as none.
class CauseDetails {
 public:
  void clear() { *this = {}; }
  /// From the node of the cause.
  void set_cause(const Failure& failure);
  /// From another node. Keeps the earliest failure with its own evidence, preferring workers that ended by themselves.
  void add_other(const Member& member, const Failure& failure);
  /// From the page of all machines: it comes before what nodes have found for themselves.
  void set_held_up(const FailedFirst& worker) { held_up_ = worker; }
  /// Sets the texts of VERDICT: Failure::full or Failure::brief.
  void describe(VerdictMessage& verdict, std::string Failure::*text) const;
  /// A line that is equal for failures of the same cause; empty if unknown.
  [[nodiscard]] std::string key() const;

 private:
  [[nodiscard]] bool other_failed_first() const;

  Failure cause_;
  Failure other_;
  std::string other_host_;
  int other_node_rank_ = -1;
  FailedFirst held_up_;
};

}  // namespace ddrun::rendezvous
