#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// Identifies a rank's host and processors; decides whether two processes can share memory.
struct HostIdentity {
  std::string host;           ///< host name
  std::string memory_domain;  ///< equal for processes that can open each other's /proc/<pid>/fd; empty: unknown
  std::string processors;     ///< processors in its affinity mask, as hexadecimal digits, lowest four first
  int pid = 0;

  [[nodiscard]] static HostIdentity of_this_process();

  /// Serialised as one line of text. parse() fails with `protocol` on other input.
  [[nodiscard]] std::string line() const;
  [[nodiscard]] static Result<HostIdentity> parse(const std::string& line);
};

/// HostIdentity::processors for messages: "0-3,8".
[[nodiscard]] std::string format_processors(const std::string& digits);

/// The number of processors that any of them may use.
[[nodiscard]] int count_processors(const std::vector<HostIdentity>& all);

/// Whether the host of `rank` (by host name) has more ranks than processors.
[[nodiscard]] bool is_oversubscribed(const std::vector<HostIdentity>& all, int rank);

/// Exchanges a line of text (without newlines) per rank and returns all of them by rank. Rank 0 collects and
/// redistributes them, so the store serves at most three requests per rank. `topic` must be unique within a group.
/// Blocks; `timeout` names the missing ranks.
[[nodiscard]] Result<std::vector<std::string>> exchange(const Group& group, std::string_view topic,
                                                        std::string_view mine, Deadline deadline);

/// "rank 3 did not come in time", "ranks 1,4-6 did not come in time".
[[nodiscard]] std::string describe_missing(const std::vector<int>& ranks);

/// After a step that may fail on each rank: returns the first failure by rank, or success, on all ranks.
[[nodiscard]] Result<void> agree(const Group& group, std::string_view topic, const Result<void>& mine,
                                 Deadline deadline);

}  // namespace ddrun::collectives
