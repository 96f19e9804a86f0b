#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/ip_address.hpp"
#include "ddrun/base/legal_order.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// Settings that are equal on all agents of a job.
struct JobSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  RestartPolicy restart;  ///< its exit codes are not used
  Milliseconds last_call{0};
  Milliseconds join_timeout{600'000};
  std::optional<Milliseconds> exit_skew;
  int node_max_failures = 0;  ///< 0: no limit
  Milliseconds grace{30'000};
  std::optional<Milliseconds> fence;  ///< unset: as long as workers of a silent node may run

  [[nodiscard]] bool fixed_size() const { return min_nodes == max_nodes; }
};

/// Of a coordinator: lib/rendezvous/PROTOCOL.md, section 5.
struct CoordinatorOptions {
  std::string host;                      ///< of this machine
  std::string job_id;                    ///< the only job served; empty: that of the first Join
  std::vector<IpAddress> own_addresses;  ///< of this machine; loopback may be missing
  Milliseconds heartbeat_interval{1'000};
  int heartbeat_misses = 3;
  /// The only member is in this process and calls this object: no heartbeats, no time limits, any number of workers.
  bool single_member = false;
  bool with_events = true;    ///< send EventLine
  int first_round_nodes = 0;  ///< with so many the first round begins without a last call; 0: only with the maximum
  /// Number of this coordinator in the job, if a lease decides who leads; 0: no successor possible. From 1 on it takes
  /// over a running job from its members' claims: it waits until the members of the last round have rejoined, or their
  /// workers must have ended.
  Term term = 0;
  /// Leadership is bound to a lease: see CoordinatorServer::suspend(). The verdict is recorded before it is sent: see
  /// CoordinatorServerOptions::on_verdict.
  bool has_lease = false;
  /// Within this time a deposed coordinator may still be unaware of it.
  Milliseconds lease_ttl{0};
  /// How long a round or a verdict may wait for an expired lease before this coordinator steps down.
  Milliseconds suspend_timeout{30'000};
  /// The Join of the agent in this process, if there is one. Only this agent is the coordinator's own, and its settings
  /// define the job, even if another agent joins first.
  std::optional<Join> own_join;
  /// With single_member: the job's settings, in place of those of its Join.
  std::optional<JobSettings> settings;
  StepHook on_step;
};

}  // namespace ddrun::rendezvous
