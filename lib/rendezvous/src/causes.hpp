#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "membership.hpp"

// Why a round or a job ends, as the verdict that it would be: one sentence that names rank and host, and an exit code.

namespace ddrun::rendezvous::causes {

/// "600 s", "0.5 s".
[[nodiscard]] std::string seconds_text(Clock::duration time);

/// "1 more node", "2 more nodes".
[[nodiscard]] std::string more_nodes(int wanted);

/// "c (10.0.0.3) joins"
[[nodiscard]] std::string joining(const std::vector<const Member*>& newcomers);

[[nodiscard]] VerdictMessage worker_failed(const Failed& failure, const Member& member);
/// `how`: "the connection broke: connection reset by peer".
[[nodiscard]] VerdictMessage node_lost(const Member& member, const std::string& how);
[[nodiscard]] VerdictMessage left(const Member& member, const Leave& leave);
[[nodiscard]] VerdictMessage aborted(const Member& member, const Abort& abort);
/// Of a round in which some nodes have finished and `late` ones have not.
[[nodiscard]] VerdictMessage skewed(const std::vector<const Member*>& late, Milliseconds allowed);
/// The cause of a verdict for those who say it in a line or two: without last lines and traceback.
[[nodiscard]] std::string abbreviate(const std::string& cause);
/// `wanted` of them were needed, `names` were there.
[[nodiscard]] VerdictMessage too_few(int joined, int wanted, Clock::duration waited, const std::string& names);

}  // namespace ddrun::rendezvous::causes

namespace ddrun::rendezvous {

/// What nodes tell about the failure of a worker in STOPPED, gathered while a round is being stopped. The node where a
/// worker ended badly first is the cause. Where that one's workers only complain of others, and another node has a
/// worker that failed of its own accord, both are told; so where the cause is a worker that was only stopped, and
/// another node's ended by itself with its own reason. JSON as in PROTOCOL.md, section 3; what is none is passed on
/// unread.
class CauseDetails {
 public:
  void clear() { *this = {}; }
  /// Of the node where the cause is.
  void set_cause(std::string json) { cause_ = std::move(json); }
  /// Of another one: the earliest that has evidence of its own is kept, of those that ended by themselves if there are.
  void add_other(const std::string& host, std::int32_t node_rank, const std::string& json);
  /// For VERDICT.
  [[nodiscard]] std::string text() const;
  /// What two failures of the same cause have in common, in a line; empty if the cause is not known.
  [[nodiscard]] std::string key() const;

 private:
  [[nodiscard]] bool other_failed_first() const;

  std::string cause_;
  std::string other_;
  std::string other_evidence_;  ///< its time is by its node's clock
};

}  // namespace ddrun::rendezvous
