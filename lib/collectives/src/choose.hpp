#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "host_identity.hpp"

namespace ddrun::collectives {

struct Chosen {
  std::shared_ptr<Communicator> communicator;
  std::string why;  ///< in words
  /// See Connected; null: the same as `communicator`.
  std::shared_ptr<Communicator> control{};
};

/// Chooses the back end and connects it. Everybody decides from the same facts, so nobody has to announce the decision;
/// `all` are what the ranks say of themselves, by rank.
[[nodiscard]] Result<Chosen> choose(const Group& group, const CommunicatorOptions& options,
                                    const std::vector<HostIdentity>& all, Deadline deadline);

}  // namespace ddrun::collectives
