#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

/// From memory of the process `pid` of this machine, or of this process itself, to this one's: one copy, by the system
/// (process_vm_readv). 0, or an errno: EPERM where it is not allowed, ESRCH if the process is gone, EFAULT if there is
/// no such memory, here or there. What was copied before a failure stays copied. Does not wait.
[[nodiscard]] int copy_from_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes);

/// The same the other way (process_vm_writev).
[[nodiscard]] int copy_to_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes);

/// A place in a process in which others find out whether they may reach into it. It outlives their trials.
struct AccessProbe {
  std::uint64_t token = 0;     ///< what they have to find
  std::uint64_t writable = 0;  ///< where they write

  /// What they are told of it.
  struct Handle {
    std::uint64_t address;
    std::uint64_t token;
  };
};
/// Reads and writes it: 0, or an errno.
[[nodiscard]] int probe_process(int pid, const AccessProbe::Handle& handle);
/// Whether the process is gone, or going.
[[nodiscard]] bool is_process_gone(int pid, const AccessProbe::Handle& handle);

/// Where Yama restricts who may reach into a process to its ancestors (kernel.yama.ptrace_scope = 1, as on Ubuntu):
/// lets all processes of this user reach into this one, as they may without Yama. Given back (PR_SET_PTRACER 0) when
/// the last one of a process ends. Elsewhere it does nothing.
class PtraceGrant {
 public:
  PtraceGrant();
  PtraceGrant(const PtraceGrant&) = delete;
  PtraceGrant& operator=(const PtraceGrant&) = delete;
  ~PtraceGrant();
};

/// Memory of some rank, as this rank reaches it.
struct RankAddress {
  static constexpr int local = -1;

  std::byte* data = nullptr;
  /// near_by: this rank's own memory or what it has mapped. Else `data` is an address in that rank's process, which is
  /// reached through the system.
  int remote_rank = local;

  [[nodiscard]] bool is_local() const { return remote_rank == local; }
  [[nodiscard]] RankAddress operator+(std::size_t bytes) const { return {data + bytes, remote_rank}; }
  bool operator==(const RankAddress&) const = default;
};

/// Copies and reduces what lies in places, near and far. Where all are near, it is done at a stroke; what is far comes
/// and goes in parts that stay in a second-level cache. Nothing here waits for another rank.
class Mover {
 public:
  struct Failure {
    int rank = 0;   ///< whose process did not let this one read or write
    int error = 0;  ///< errno
  };

  /// Processes by rank; equal ones are threads of one process.
  explicit Mover(std::vector<int> pids);

  void copy(RankAddress to, RankAddress from, std::size_t bytes, Stores stores);
  /// To several places, of which one may be the source.
  void copy_to_all(std::span<const RankAddress> to, RankAddress from, std::size_t bytes, Stores stores);
  /// What `places[i]` holds goes to `places[i + 1]`, and from the last to the first.
  void rotate(std::span<const RankAddress> places, std::size_t bytes);
  /// Elements [begin, end) of `in` to all of `out`, as Kernels::reduce. `element`: bytes of one.
  void reduce(const Kernels& kernels, std::span<const RankAddress> in, std::span<const RankAddress> out,
              std::size_t begin, std::size_t end, std::size_t element, Stores stores, int ranks);

  /// The first one since the last call of this. After it nothing is moved any more.
  [[nodiscard]] std::optional<Failure> take_failure();

 private:
  /// Room for what a far place holds of a part; `number` below the number of ranks + 1.
  [[nodiscard]] std::byte* scratch(std::size_t number);
  void fetch(std::byte* to, const RankAddress& from, std::size_t bytes);
  void store(const RankAddress& to, const std::byte* from, std::size_t bytes);
  void record_failure(int rank, int error);

  std::vector<int> pids_;
  std::size_t part_;  ///< bytes
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<std::byte*> local_;
  std::vector<const void*> from_;
  std::vector<void*> results_;
  std::optional<Failure> failure_;
};

}  // namespace ddrun::collectives
