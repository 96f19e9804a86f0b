#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "gpu/cuda.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

/// Number of ranks per NCCL id; with more, the bootstrap queues them. Unlimited if the library supports only one id.
[[nodiscard]] int ranks_per_nccl_id(const nccl::Library& library);

/// Creates the ids on ranks spread over the group and distributes them through the store, with NCCL's version, which
/// must be equal on all ranks (`invalid_argument`).
[[nodiscard]] Result<std::vector<nccl::UniqueId>> exchange_nccl_ids(const Group& group, const nccl::Library& library,
                                                                    int ranks_per_id, Deadline deadline);

/// One rank's NCCL communicator, from bootstrap to destruction. Every wait polls NCCL for errors, the control
/// communicator for exited peers, and the deadline, and then aborts NCCL, so nothing blocks forever.
class NcclSession {
 public:
  struct Parts {
    nccl::Library library;
    std::shared_ptr<cuda::Device> device;
    std::shared_ptr<Communicator> control;
  };

  /// Blocks until all ranks have joined. `ids` are equal on all ranks; several (NCCL 2.23 or later) share the load of a
  /// large group. Fails on all ranks if it fails on one.
  [[nodiscard]] static Result<std::unique_ptr<NcclSession>> start(const Group& group, Parts parts,
                                                                  std::vector<nccl::UniqueId> ids, Deadline deadline);
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;
  /// Waits some seconds for work in progress, then aborts.
  ~NcclSession();

  [[nodiscard]] const nccl::Library& library() const { return parts_.library; }
  [[nodiscard]] nccl::Comm comm() const { return comm_; }

  /// Handles the result of an NCCL function: success, an error, or in progress, for which it waits.
  [[nodiscard]] Result<void> wait_complete(const std::string& what, nccl::Status status, Deadline deadline);
  /// A CancelCheck: an error of NCCL or an exited peer.
  [[nodiscard]] Result<void> cancel_reason();
  /// After a failure. Stops the work on the device if NCCL can; else marks the device unusable.
  void abort();

  /// Registers `memory` with the network and the other GPUs. False if it cannot be registered; it is then used as it
  /// is.
  [[nodiscard]] bool register_memory(std::byte* memory, std::size_t bytes);

 private:
  explicit NcclSession(Parts parts) : parts_(std::move(parts)) {}
  [[nodiscard]] Result<void> poll_state(const std::string& what, bool& pending);
  [[nodiscard]] bool finish();
  [[nodiscard]] bool run_with_timeout(nccl::CommDestroy* last);

  Parts parts_;
  nccl::Comm comm_ = nullptr;
  std::vector<void*> registered_;
};

}  // namespace ddrun::collectives
