#pragma once

#include <string>

#include "back_ends.hpp"

namespace ddrun::collectives {

/// The version of the Gloo that is built in, or `unsupported` with how to get it.
[[nodiscard]] Result<std::string> probe_gloo();

/// The row of this back end: collectives by the Gloo library over TCP, as a second opinion. The control communicator
/// knows soon when a peer is gone; Gloo itself says no more than that something went wrong. It does not notice that
/// ranks make different calls.
[[nodiscard]] Result<Chosen> connect_gloo(const Ranks& ranks, Deadline deadline);

}  // namespace ddrun::collectives
