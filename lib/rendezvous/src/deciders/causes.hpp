#pragma once

#include <cstdint>
#include <optional>
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

/// "1 more node", "2 more nodes".
[[nodiscard]] std::string more_nodes(int wanted);

/// "c (10.0.0.3) joins"
[[nodiscard]] std::string joining(const std::vector<const Member*>& newcomers);

/// All workers of the job have ended with success.
[[nodiscard]] VerdictMessage success();
[[nodiscard]] VerdictMessage worker_failed(const Failed& failure, const Member& member);
/// `how`: "the connection broke: connection reset by peer".
[[nodiscard]] VerdictMessage node_lost(const Member& member, const std::string& how);
[[nodiscard]] VerdictMessage left(const Member& member, const Leave& leave);
[[nodiscard]] VerdictMessage aborted(const Member& member, const Abort& abort);
/// Some nodes of the round have finished, and the `late` ones have not.
[[nodiscard]] VerdictMessage skewed(const std::vector<const Member*>& late, Milliseconds allowed);
/// A verdict's cause without last lines and traceback, for agents that report it in a line or two.
[[nodiscard]] std::string abbreviate(const std::string& cause);
/// `wanted` nodes were needed, `names` had joined.
[[nodiscard]] VerdictMessage too_few(int joined, int wanted, Milliseconds timeout, const std::string& names);

}  // namespace ddrun::rendezvous::causes

namespace ddrun::rendezvous {

/// Collects the failure reports of STOPPED while a round is being stopped. The node whose worker failed first is the
/// cause. Another node's failure is added if the first one only complains about peers, or if its worker was stopped and
/// the other one ended by itself with a reason. JSON as in PROTOCOL.md, section 3; other text is passed on as it is.
class CauseDetails {
 public:
  void clear() { *this = {}; }
  /// From the node of the cause.
  void set_cause(std::string json) { cause_ = std::move(json); }
  /// From another node. Keeps the earliest failure with its own evidence, preferring workers that ended by themselves.
  void add_other(const std::string& host, std::int32_t node_rank, const std::string& json);
  /// For VERDICT.
  [[nodiscard]] std::string text() const;
  /// A line that is equal for failures of the same cause; empty if unknown.
  [[nodiscard]] std::string key() const;

 private:
  [[nodiscard]] bool other_failed_first() const;

  std::string cause_;
  std::string other_;
  std::string other_evidence_;  ///< timestamp by the other node's clock
};

}  // namespace ddrun::rendezvous
