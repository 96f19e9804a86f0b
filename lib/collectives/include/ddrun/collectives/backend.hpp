#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// How the data travels.
enum class Backend : unsigned char {
  automatic,  ///< nccl if there is a GPU per rank, else shm if every rank can reach the same shared memory, else tcp
  nccl,       ///< NVIDIA's library, between GPUs
  shm,        ///< memory shared by processes of one machine
  tcp,        ///< connections between the ranks
  gloo,       ///< the Gloo library, as a second opinion
};

/// All of them, in the order of their table (src/back_ends.cpp).
[[nodiscard]] std::span<const Backend> backends();

/// As the option that chooses it: "auto", "nccl", "shm", "tcp", "gloo".
[[nodiscard]] std::string_view name_of(Backend backend);
[[nodiscard]] std::optional<Backend> backend_named(std::string_view name);

/// Whether this build and this machine have what a back end needs, without any peer. What it found, in words, or
/// `unsupported` with what is missing ("this build has no gloo", "no NVIDIA driver: …").
[[nodiscard]] Result<std::string> probe(Backend backend);

/// Whether its buffers are in the memory of GPUs. Of `automatic`: false, though it may choose such a back end.
[[nodiscard]] bool works_on_gpus(Backend backend);

}  // namespace ddrun::collectives
