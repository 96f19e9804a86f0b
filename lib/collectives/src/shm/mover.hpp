#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

/// Copies from the memory of process `pid` on this machine, or of this process, by process_vm_readv. Returns 0 or an
/// errno: EPERM if not permitted, ESRCH if the process has exited, EFAULT for invalid memory on either side. Data
/// copied before a failure stays. Does not block.
[[nodiscard]] int copy_from_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes);

/// The reverse direction (process_vm_writev).
[[nodiscard]] int copy_to_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes);

/// A location in a process at which peers probe whether they can access its memory. Must outlive the probes.
struct AccessProbe {
  std::uint64_t token = 0;     ///< the value to be read
  std::uint64_t writable = 0;  ///< where peers write

  /// What is sent to the peers.
  struct Handle {
    std::uint64_t address;
    std::uint64_t token;
  };
};
/// Reads the token and writes it back: 0 or an errno.
[[nodiscard]] int probe_process(int pid, const AccessProbe::Handle& handle);
/// Whether the process has exited or is exiting.
[[nodiscard]] bool is_process_gone(int pid, const AccessProbe::Handle& handle);

/// Where Yama restricts ptrace access to ancestors (kernel.yama.ptrace_scope = 1, as on Ubuntu): permits it to all
/// processes of this user, as without Yama. Revoked (PR_SET_PTRACER 0) when the last grant of the process is destroyed.
/// No effect elsewhere.
class PtraceGrant {
 public:
  PtraceGrant();
  PtraceGrant(const PtraceGrant&) = delete;
  PtraceGrant& operator=(const PtraceGrant&) = delete;
  ~PtraceGrant();
};

/// An address in the memory of some rank, as seen by this rank.
struct RankAddress {
  static constexpr int local = -1;

  std::byte* data = nullptr;
  /// local: this rank's own or mapped memory. Otherwise `data` is an address in that rank's process, accessible by
  /// system calls only.
  int remote_rank = local;

  [[nodiscard]] bool is_local() const { return remote_rank == local; }
  [[nodiscard]] RankAddress operator+(std::size_t bytes) const { return {data + bytes, remote_rank}; }
  bool operator==(const RankAddress&) const = default;
};

/// Copies and reduces data at local and remote addresses. Remote data is processed in parts that fit in a second-level
/// cache. Does not block. Not thread-safe.
class Mover {
 public:
  struct Failure {
    int rank = 0;   ///< whose process could not be accessed
    int error = 0;  ///< errno
  };

  /// Process ids by rank; equal ones are threads of one process.
  explicit Mover(std::vector<int> pids);

  void copy(RankAddress to, RankAddress from, std::size_t bytes, Stores stores);
  /// To several destinations, one of which may be the source.
  void copy_to_all(std::span<const RankAddress> to, RankAddress from, std::size_t bytes, Stores stores);
  /// Moves the content of `places[i]` to `places[i + 1]`, and of the last to the first.
  void rotate(std::span<const RankAddress> places, std::size_t bytes);
  /// Reduces elements [begin, end) of `in` to every `out`, as Kernels::reduce. `element`: bytes per element.
  void reduce(const Kernels& kernels, std::span<const RankAddress> in, std::span<const RankAddress> out,
              std::size_t begin, std::size_t end, std::size_t element, Stores stores, int ranks);

  /// Returns and clears the first failure. After a failure nothing is moved until it has been taken.
  [[nodiscard]] std::optional<Failure> take_failure();

 private:
  /// Buffer for one part of a remote operand; `number` is at most the number of ranks.
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
