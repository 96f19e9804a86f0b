#pragma once

#include <cstddef>
#include <span>

#include "ddrun/base/result.hpp"

namespace ddrun {

/// Fills `bytes` with what the kernel takes for secret. Waits only on a machine that has just started. Fails with
/// `unavailable` if the kernel gives nothing; then what is in `bytes` means nothing.
[[nodiscard]] Result<void> fill_random(std::span<std::byte> bytes);

}  // namespace ddrun
