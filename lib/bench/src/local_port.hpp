#pragma once

#include <cstdint>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::bench {

// How the ranks of a job on one machine learn the port of rank 0's store where no launcher told one. Rank 0 takes a
// free port, so two jobs cannot want the same, and tells it at a local socket. That socket's name is in no file system
// (see unix(7), abstract) and ends with its process, so nothing can be left of a job before.

/// Rank 0's end. Only processes of the same user are answered.
class PortTeller {
 public:
  /// `job`: words that all ranks of this job know, and no other job of this user on this machine has. Fails with
  /// `unavailable` if the name is taken.
  [[nodiscard]] static Result<PortTeller> open(const std::string& job);

  /// Tells the port to ranks 1 to size - 1; blocks until each has asked. `timeout` names those that have not.
  [[nodiscard]] Result<void> tell(std::uint16_t port, int size, Deadline deadline) const;

 private:
  explicit PortTeller(UniqueFd listener) : listener_(std::move(listener)) {}
  UniqueFd listener_;
};

/// Asks rank 0 of the same job, and waits until it is there. Only a process of the same user is believed.
[[nodiscard]] Result<std::uint16_t> ask_port(const std::string& job, int rank, Deadline deadline);

/// The process that started all ranks of this machine, as words that no other process has until the machine starts
/// again: the nearest ancestor of this process without `variable`=`value` in its environment. Shells between it and the
/// ranks do not matter. Empty if /proc does not tell.
[[nodiscard]] std::string launcher_process(const std::string& variable, const std::string& value);

}  // namespace ddrun::bench
