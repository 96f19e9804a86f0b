#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "gpu/cuda.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

/// Ranks that share one id: with more, NCCL lets them wait their turn; a library that knows one id only has that.
[[nodiscard]] int ranks_per_nccl_id(const nccl::Library& library);

/// Makes the ids, on ranks spread over the group, and hands them to all through the store, with NCCL's version, which
/// must be the same everywhere (`invalid_argument`).
[[nodiscard]] Result<std::vector<nccl::UniqueId>> exchange_nccl_ids(const Group& group, const nccl::Library& library,
                                                                    int ranks_per_id, Deadline deadline);

/// One rank's NCCL communicator from its making to its end, watched: whatever NCCL does, it is asked about errors, the
/// control communicator about dead peers, and the clock about the deadline; then NCCL is told to abort. Nothing here
/// waits for ever.
class NcclSession {
 public:
  struct Parts {
    nccl::Library library;
    std::shared_ptr<cuda::Device> device;
    std::shared_ptr<Communicator> control;
  };

  /// Blocks until all ranks are there. `ids` are the same on every rank; one is enough, several share the work of
  /// many ranks' meeting (and need NCCL 2.23). A failure of any rank ends all.
  [[nodiscard]] static Result<std::unique_ptr<NcclSession>> start(const Group& group, Parts parts,
                                                                  std::vector<nccl::UniqueId> ids, Deadline deadline);
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;
  /// Waits some seconds for what is under way, then aborts.
  ~NcclSession();

  [[nodiscard]] const nccl::Library& library() const { return parts_.library; }
  [[nodiscard]] nccl::Comm comm() const { return comm_; }

  /// What an NCCL function has returned: done, failed, or going on, which is waited for.
  [[nodiscard]] Result<void> wait_complete(const std::string& what, nccl::Status status, Deadline deadline);
  /// For waits on the device: an error of NCCL or a dead peer.
  [[nodiscard]] Result<void> cancel_reason();
  /// After a failure. Whatever runs on the device is stopped, if NCCL can do that; else the device is given up.
  void abort();

  /// Makes `memory` known to the network and the other GPUs. Memory that cannot be registered works as well.
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
