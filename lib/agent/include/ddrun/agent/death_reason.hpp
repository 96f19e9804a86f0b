#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/topology/system_roots.hpp"

namespace ddrun::agent {

/// What is known about a worker that ended without ddrun's doing.
struct DeadWorker {
  pid_t pid = 0;
  ExitStatus status;
  std::string directory;  ///< its working directory, absolute
  std::chrono::system_clock::time_point started;
};

/// Finds out why workers end, from the kernel's counters and its rules for core dumps. Make one before the first worker
/// starts: it remembers where the counters stood. Reads a few small files, on failures only; never blocks.
class DeathReasons {
 public:
  explicit DeathReasons(topology::SystemRoots roots = {});

  /// A sentence such as "out of memory: the kernel's OOM killer ended it (memory limit of cgroup /job: 4 GiB)",
  /// "killed from outside ddrun" or "core file: /data/core.4711"; empty if there is nothing to say.
  /// Each kill that the kernel counted explains one death: call once per dead worker.
  [[nodiscard]] std::string explain(const DeadWorker& worker);

 private:
  struct KillCount {
    std::int64_t kills = 0;
    bool of_our_cgroup = false;  ///< else of the whole machine
  };
  [[nodiscard]] std::optional<KillCount> count_kills() const;
  [[nodiscard]] std::string out_of_memory(bool whole_machine) const;

  topology::SystemRoots roots_;
  std::optional<KillCount> at_start_;
  std::int64_t explained_ = 0;
};

/// Where the core dump of `worker` is, in words; empty if it cannot be found.
[[nodiscard]] std::string core_dump_location(const DeadWorker& worker, const topology::SystemRoots& roots = {});

}  // namespace ddrun::agent
