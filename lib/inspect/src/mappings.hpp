#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "ddrun/inspect/stacks.hpp"

namespace ddrun::inspect {

/// A line of /proc/PID/maps.
struct Mapping {
  std::uint64_t start = 0;
  std::uint64_t end = 0;
  std::uint64_t offset = 0;  ///< in the file
  bool executable = false;
  std::shared_ptr<const Module> module;  ///< the same object for all mappings of a file that follow each other
};

/// The mappings that have a name and hold code or the beginning of a file, in ascending order; lines that are none are
/// left out. `pid` is for the modules.
[[nodiscard]] std::vector<Mapping> parse_mappings(std::string_view text, pid_t pid);

/// Those of a process; empty if it is gone. May block on the process's memory lock.
[[nodiscard]] std::vector<Mapping> read_mappings(pid_t pid);

/// The mapping with this address, or null.
[[nodiscard]] const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uint64_t address);

/// Where the file of `mapping` begins in memory: the start of its first mapping, at offset 0; 0 if that is not mapped.
[[nodiscard]] std::uint64_t base_of(const std::vector<Mapping>& mappings, const Mapping& mapping);

}  // namespace ddrun::inspect
