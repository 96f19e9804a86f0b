#pragma once

#include <string>

namespace ddrun::rendezvous {

/// A random UUID (version 4), as torchrun uses for a job that was given no name.
[[nodiscard]] std::string random_id();

}  // namespace ddrun::rendezvous
