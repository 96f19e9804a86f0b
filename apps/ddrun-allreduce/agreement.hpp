#pragma once

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::allreduce {

/// The gravest of all ranks' statuses (kRight, kTooSlow, kFailed in this order), for each of them to end with, as
/// launchers name whichever ends first. Blocks until all are there. Never milder than `status`, whatever arrives: it
/// has travelled over what is being tested.
[[nodiscard]] Result<int> agree_on_status(collectives::Communicator& control, int status, Milliseconds patience);

}  // namespace ddrun::allreduce
