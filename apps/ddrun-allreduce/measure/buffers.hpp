#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/private_memory.hpp"
#include "options/options.hpp"

namespace ddrun::allreduce {

/// The two arrays of this rank that calls work on: the back end's, or memory that no other process sees, as that of a
/// program that knows nothing of back ends. Outlives who uses the spans.
class Buffers {
 public:
  /// What the communicator has to be asked for.
  [[nodiscard]] static std::uint64_t of_back_end(const Options& options, std::uint64_t bytes);

  /// Once; `bytes` each. `invalid_argument` if the back end does not work on the host's memory and private memory is
  /// wanted, `unavailable` if there is too little.
  [[nodiscard]] Result<void> provide(collectives::Communicator& communicator, const Options& options,
                                     std::uint64_t bytes);

  [[nodiscard]] std::span<std::byte> send() const { return send_; }
  [[nodiscard]] std::span<std::byte> recv() const { return recv_; }

 private:
  std::span<std::byte> send_;
  std::span<std::byte> recv_;
  collectives::PrivateMemory own_;
};

}  // namespace ddrun::allreduce
