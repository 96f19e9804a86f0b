#pragma once

#include <optional>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// What an agent says in Join that has to be the same on all of them (PROTOCOL.md, section 5), sorted by key.
[[nodiscard]] Settings join_settings(const LaunchSpec& spec);

/// What the settings of the first Join mean.
struct JobSettings {
  int min_nodes = 1;
  int max_nodes = 1;
  RestartPolicy restart;  ///< all but the exit codes
  Milliseconds last_call{0};
  Milliseconds join_timeout{600'000};
  std::optional<Milliseconds> exit_skew;
  int node_max_failures = 0;  ///< 0: no limit
  Milliseconds grace{30'000};
  std::optional<Milliseconds> fence;  ///< unset: while workers of a silent node may run

  [[nodiscard]] bool fixed_size() const { return min_nodes == max_nodes; }
};

/// Fails with `invalid_argument` and names the setting that is missing or cannot be meant.
[[nodiscard]] Result<JobSettings> read_settings(const Settings& settings);

/// Of two agents without a name for their job: whether they run the same.
[[nodiscard]] bool same_program(const Settings& ours, const Settings& theirs);

/// One sentence per difference but that of same_program(), with both values; empty if there is none. `theirs` joins,
/// `ours` were there.
[[nodiscard]] std::string describe_differences(const Settings& ours, const Settings& theirs);

}  // namespace ddrun::rendezvous
