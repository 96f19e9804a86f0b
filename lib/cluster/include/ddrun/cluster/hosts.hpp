#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::cluster {

// Slurm's short forms for many nodes. Pure; nothing is looked up.

/// More names than any job has; keeps "n[0-999999999]" from filling the memory.
inline constexpr std::size_t max_hosts = 65'536;

/// "a[001-003,7],b2" -> a001 a002 a003 a7 b2. The order is Slurm's, also of several groups in one name; zeros in front
/// are kept; text may follow a group. Fails for what is not a host list, and for more than `limit` names.
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t limit = max_hosts);

/// A machine that the user named.
struct Host {
  std::string name;  ///< as written, perhaps "user@name"; an IPv6 address without its brackets
  int slots = 0;     ///< processes it is meant for; 0: not said
  bool operator==(const Host&) const = default;
};

// Both keep the order of first appearance. A host that is named again gets the sum of its slots, as with Open MPI;
// where none are said, each time counts as one: "a,a" is a with 2 slots, "a" alone is a with 0 (not said).
// No name is looked up; one that begins with '-' is refused, so that it cannot be an option of ssh.

/// "a,b:4,c", "user@a:2", "[fd00::1]:4,fd00::2", "gpu[01-04]:8" (Slurm's short form, each with 8 slots).
[[nodiscard]] Result<std::vector<Host>> parse_hosts(std::string_view text);

/// The text of a host file, one host on each line, '#' begins a comment. Open MPI's form ("a slots=4 max-slots=8") and
/// MPICH's ("a:4") are both understood, also mixed, and so are the files of PBS and LSF (a host again for each slot)
/// and of SGE ("a 4 all.q@a UNDEFINED"). Failures begin with "FILE:LINE: ", FILE being `file_name`.
[[nodiscard]] Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view file_name);

}  // namespace ddrun::cluster
