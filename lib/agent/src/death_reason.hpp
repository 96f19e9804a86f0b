#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/logs/tail_buffer.hpp"
#include "ddrun/topology/cgroup.hpp"

namespace ddrun::agent {

/// What is known about a worker that ended without ddrun's doing.
struct DeadWorker {
  pid_t pid = 0;
  ExitStatus status;
  std::string directory;  ///< its working directory, absolute
  std::chrono::system_clock::time_point started;
  long max_rss_kib = 0;  ///< 0: not known
};

/// Finds out why workers end, from the kernel's counters and its rules for core dumps. Reads a few small files, at the
/// beginning of attempts and on failures only; never blocks.
class DeathReasons {
 public:
  explicit DeathReasons(topology::SystemRoots roots = {});

  /// Before the first worker of each attempt starts: remembers where the counters stand, because what was killed
  /// before explains nothing that comes. `workers`: how many share this machine's memory.
  void begin_attempt(int workers);

  /// A sentence such as "out of memory: the kernel's OOM killer ended it (memory limit of cgroup /job: 4 GiB)",
  /// "killed from outside ddrun" or "core file: /data/core.4711"; empty if there is nothing to say.
  /// Each kill that the kernel counted explains one death: call once per dead worker, those that SIGKILL ended first.
  [[nodiscard]] std::string explain(const DeadWorker& worker);

 private:
  struct KillCount {
    std::int64_t kills = 0;
    bool of_our_cgroup = false;  ///< else of the whole machine
  };
  [[nodiscard]] std::optional<KillCount> count_kills() const;
  [[nodiscard]] std::string out_of_memory(bool whole_machine) const;

  topology::SystemRoots roots_;
  [[nodiscard]] bool is_far_below_limit(long max_rss_kib) const;
  std::optional<KillCount> baseline_;  ///< those after it are not yet explained
  std::int64_t explained_kills_ = 0;
  int workers_ = 1;
};

/// Where the core dump of `worker` is, in words; empty if it cannot be found.
[[nodiscard]] std::string core_dump_location(const DeadWorker& worker, const topology::SystemRoots& roots = {});

/// "/dev/shm: 63.9 MiB of 64 MiB are used" for a worker whose end or last lines may mean that it was full (SIGBUS,
/// "unhandled system error", "No space left"); else empty, and nothing is looked at. Does not block.
[[nodiscard]] std::string describe_shm(const ExitStatus& status, const std::vector<logs::TailLine>& last_lines);

}  // namespace ddrun::agent
