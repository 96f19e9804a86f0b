#pragma once

#include "ddrun/base/duration.hpp"

namespace ddrun::test {

/// The deadline for events that a test waits for.
inline Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

}  // namespace ddrun::test
