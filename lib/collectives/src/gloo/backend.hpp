#pragma once

#include <memory>
#include <string>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// The version of the Gloo that is built in, or `unsupported` with how to get it.
[[nodiscard]] Result<std::string> probe_gloo();

/// Collectives by the Gloo library over TCP, as a second opinion. `control` knows soon when a peer is gone; Gloo itself
/// says no more than that something went wrong. It does not notice that ranks make different calls.
[[nodiscard]] Result<std::unique_ptr<Communicator>> connect_gloo(const Group& group, std::size_t buffer_bytes,
                                                                 std::shared_ptr<Communicator> control,
                                                                 Deadline deadline);

}  // namespace ddrun::collectives
