#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// What decides whether two processes can share memory, and on how many processors they run.
struct HostIdentity {
  std::string host;           ///< host name
  std::string memory_domain;  ///< equal for processes that can open each other's /proc/<pid>/fd; empty: cannot be known
  std::string processors;     ///< those this process may use, as hexadecimal digits, lowest four first
  int pid = 0;

  /// Of this process.
  [[nodiscard]] static HostIdentity of_this_process();

  /// One line of text and back; `protocol` if it is not such a line.
  [[nodiscard]] std::string line() const;
  [[nodiscard]] static Result<HostIdentity> parse(const std::string& line);
};

/// Those of HostIdentity::processors for people: "0-3,8".
[[nodiscard]] std::string format_processors(const std::string& digits);

/// Processors that any of them may use.
[[nodiscard]] int count_processors(const std::vector<HostIdentity>& all);

/// Whether there are more ranks on that rank's machine, which its host name tells, than processors for them.
[[nodiscard]] bool is_oversubscribed(const std::vector<HostIdentity>& all, int rank);

/// Every rank gives a line of text (no '\n') and gets those of all ranks, by rank. Rank 0 collects and hands on, so
/// that the store serves three requests per rank at most. `topic` is used once per group.
/// `timeout` names the ranks that did not come.
[[nodiscard]] Result<std::vector<std::string>> exchange(const Group& group, std::string_view topic,
                                                        std::string_view mine, Deadline deadline);

/// "rank 3 did not come in time", "ranks 1,4-6 did not come in time".
[[nodiscard]] std::string describe_missing(const std::vector<int>& ranks);

/// After a step that each rank may fail on its own: all get the first failure by rank, or success.
[[nodiscard]] Result<void> agree(const Group& group, std::string_view topic, const Result<void>& mine,
                                 Deadline deadline);

}  // namespace ddrun::collectives
