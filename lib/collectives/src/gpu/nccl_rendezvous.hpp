#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

// What the ranks exchange through the store before NCCL connects them. On the thread of Group::store only.

/// Number of ranks per NCCL id; with more, the bootstrap queues them. Unlimited if the library supports only one id.
[[nodiscard]] int ranks_per_nccl_id(const nccl::Library& library);

/// Creates the ids on ranks spread over the group and distributes them through the store, with NCCL's version, which
/// must be equal on all ranks (`invalid_argument`).
[[nodiscard]] Result<std::vector<nccl::UniqueId>> exchange_nccl_ids(const Group& group, const nccl::Library& library,
                                                                    int ranks_per_id, Deadline deadline);

/// During NCCL's bootstrap the ranks communicate only through the store: a failing rank reports there, and the others
/// poll.
class FailureBoard {
 public:
  explicit FailureBoard(const Group& group);
  void report(const Error& error);
  /// What another rank has reported. Reads the store a few times per second, however often it is called.
  [[nodiscard]] std::optional<Error> failure();

 private:
  const Group& group_;
  std::string key_;
  Milliseconds pause_;
  Deadline next_ = Clock::now();
};

}  // namespace ddrun::collectives
