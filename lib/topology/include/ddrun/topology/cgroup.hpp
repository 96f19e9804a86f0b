#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::topology {

/// Roots of the kernel's file systems; tests use fake trees.
struct SystemRoots {
  std::string sys = "/sys";
  std::string proc = "/proc";
  std::string dev = "/dev";
};

/// This process's cgroup for one controller.
struct Cgroup {
  bool v2 = false;
  std::string name;       ///< as in /proc/self/cgroup: "/user.slice/…"
  std::string directory;  ///< its directory under /sys/fs/cgroup
  std::string mount;      ///< the directory of the topmost visible cgroup

  /// Directories from this cgroup up to the mount; a limit in any of them applies.
  [[nodiscard]] std::vector<std::string> levels() const;
};

/// `controller`: "memory", "pids" … Version 1 if it has that controller, else version 2. In a container: the visible
/// part of the tree. nullopt without a cgroup file system.
[[nodiscard]] std::optional<Cgroup> own_cgroup(std::string_view controller, const SystemRoots& roots = {});

/// The lowest memory limit from this cgroup up to the root.
struct MemoryLimit {
  std::int64_t bytes = 0;
  std::string cgroup;  ///< name of the cgroup that sets it
};
[[nodiscard]] std::optional<MemoryLimit> memory_limit(const SystemRoots& roots = {});

}  // namespace ddrun::topology
