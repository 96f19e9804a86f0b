#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::cluster {

// Host lists and host files. Pure functions; no name is resolved.

/// Above any real job; keeps "n[0-999999999]" from exhausting memory.
inline constexpr std::size_t max_hosts = 65'536;

/// Expands a Slurm hostlist: "a[001-003,7],b2" -> a001 a002 a003 a7 b2, in Slurm's order, also for several groups in
/// one name. Leading zeros are kept; text may follow a group. Fails for invalid syntax and for more than `limit` names.
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t limit = max_hosts);

/// A host as given by the user.
struct Host {
  std::string name;  ///< as written, may be "user@name"; an IPv6 address without brackets
  int slots = 0;     ///< number of processes; 0: not given
  bool operator==(const Host&) const = default;
};

// Both keep the order of first appearance. The slots of a repeated host are added, as in Open MPI; a repetition without
// slots counts as one: "a,a" is a with 2 slots, "a" is a with 0 (not given). A name that begins with '-' is rejected:
// ssh would take it as an option.

/// "a,b:4,c", "user@a:2", "[fd00::1]:4,fd00::2", "gpu[01-04]:8" (Slurm's short form, each with 8 slots).
[[nodiscard]] Result<std::vector<Host>> parse_hosts(std::string_view text);

/// The text of a host file: one host per line, '#' begins a comment. Accepts the formats of Open MPI ("a slots=4
/// max-slots=8"), MPICH ("a:4"), PBS and LSF (a line per slot) and SGE ("a 4 all.q@a UNDEFINED"), also mixed. Error
/// messages begin with "FILE:LINE: ", FILE being `file_name`.
[[nodiscard]] Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view file_name);

/// Compares --nproc-per-node=`count`, which wins and which mpirun's users take for the sum, with the slots of the
/// hosts: the warning, or empty if they agree.
[[nodiscard]] std::string compare_count(std::span<const Host> hosts, int count);

}  // namespace ddrun::cluster
