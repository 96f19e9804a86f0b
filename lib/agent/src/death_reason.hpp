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

/// A worker that ended by itself.
struct DeadWorker {
  pid_t pid = 0;
  ExitStatus status;
  std::string directory;  ///< its working directory, absolute
  std::chrono::system_clock::time_point started;
  long max_rss_kib = 0;  ///< 0: unknown
};

/// Explains why workers ended, from the kernel's OOM counters and core-dump pattern. Reads a few small files at the
/// beginning of attempts and on failures.
class DeathReasons {
 public:
  explicit DeathReasons(topology::SystemRoots roots = {});

  /// To be called before the first worker of each attempt starts: records the counters. `workers`: how many share this
  /// machine's memory.
  void begin_attempt(int workers);

  /// A sentence such as "out of memory: the kernel's OOM killer ended it (memory limit of cgroup /job: 4 GiB)",
  /// "killed from outside ddrun" or "core file: /data/core.4711"; empty if unknown.
  /// Each kill that the kernel counted explains one worker: call once per worker, those ended by SIGKILL first.
  [[nodiscard]] std::string explain(const DeadWorker& worker);

 private:
  struct KillCount {
    std::int64_t kills = 0;
    bool of_our_cgroup = false;  ///< false: of the whole machine
  };
  [[nodiscard]] std::optional<KillCount> count_kills() const;
  [[nodiscard]] std::string out_of_memory(bool whole_machine) const;

  topology::SystemRoots roots_;
  [[nodiscard]] bool is_far_below_limit(long max_rss_kib) const;
  std::optional<KillCount> baseline_;  ///< kills at the beginning of the attempt
  std::int64_t explained_kills_ = 0;
  int workers_ = 1;
};

/// Text about the core dump of `worker`; empty if it is not found.
[[nodiscard]] std::string core_dump_location(const DeadWorker& worker, const topology::SystemRoots& roots = {});

/// "/dev/shm: 63.9 MiB of 64 MiB are used" for a worker whose end or last lines suggest that it was full (SIGBUS,
/// "unhandled system error", "No space left"); else empty. Does not block.
[[nodiscard]] std::string describe_shm(const ExitStatus& status, const std::vector<logs::TailLine>& last_lines);

}  // namespace ddrun::agent
