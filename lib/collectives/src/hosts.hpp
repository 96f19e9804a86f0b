#pragma once

#include <string>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// What decides whether two processes can share memory, and on how many processors they run.
struct HostIdentity {
  std::string host;        ///< host name
  std::string place;       ///< equal for processes that can open each other's /proc/<pid>/fd; empty: cannot be known
  std::string processors;  ///< those this process may use, as hexadecimal digits, lowest four first
  int pid = 0;

  /// Of this process.
  [[nodiscard]] static HostIdentity mine();

  /// One line of text and back; `protocol` if it is not such a line.
  [[nodiscard]] std::string line() const;
  [[nodiscard]] static Result<HostIdentity> parse(const std::string& line);
};

/// Those of HostIdentity::processors for people: "0-3,8".
[[nodiscard]] std::string processors_in_words(const std::string& digits);

/// Processors that any of them may use.
[[nodiscard]] int count_processors(const std::vector<HostIdentity>& all);

/// Whether there are more ranks on that rank's machine, which its host name tells, than processors for them.
[[nodiscard]] bool is_crowded(const std::vector<HostIdentity>& all, int rank);

/// The ranks of a group by the memory that they share: what is called a host here may also be one of several containers
/// of a machine.
struct HostGroups {
  /// Ranks of each host in their order; hosts in the order of their first ranks.
  std::vector<std::vector<int>> hosts;

  /// Who does not know where it is, is a host of its own.
  [[nodiscard]] static HostGroups of(const std::vector<HostIdentity>& all);

  [[nodiscard]] int host_of(int rank) const;
  /// Position of `rank` among those of its host.
  [[nodiscard]] int local_rank_of(int rank) const;
  /// Ranks that each host has at least. Those of equal local rank below this are a column: one on each host.
  [[nodiscard]] int columns() const;
  /// By host.
  [[nodiscard]] std::vector<int> column(int local_rank) const;
  /// Ranks of the largest host.
  [[nodiscard]] int most() const;
  /// "2 hosts with 4 ranks each", "3 hosts with 1 to 4 ranks"
  [[nodiscard]] std::string in_words() const;
};

}  // namespace ddrun::collectives
