#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::topology {

/// Where the kernel's files are; tests put fake trees here.
struct SystemRoots {
  std::string sys = "/sys";
  std::string proc = "/proc";
  std::string dev = "/dev";
};

/// The cgroup that this process is in, for one controller.
struct Cgroup {
  bool v2 = false;
  std::string name;       ///< as /proc/self/cgroup has it: "/user.slice/…"
  std::string directory;  ///< its directory under /sys/fs/cgroup
  std::string mount;      ///< the directory of the topmost cgroup that can be seen

  /// Directories from this cgroup up to the mount: limits hold if any of them sets one.
  [[nodiscard]] std::vector<std::string> levels() const;
};

/// `controller`: "memory", "pids" … Version 1 where that controller still is there, else version 2. In a container
/// that sees only its own part of the tree, that part. Nothing where no cgroup file system is mounted.
[[nodiscard]] std::optional<Cgroup> own_cgroup(std::string_view controller, const SystemRoots& roots = {});

/// The lowest memory limit on the way up.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string cgroup;  ///< name of the cgroup that sets it
};
[[nodiscard]] std::optional<MemoryLimit> memory_limit(const SystemRoots& roots = {});

}  // namespace ddrun::topology
