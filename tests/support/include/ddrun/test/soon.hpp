#pragma once

#include "ddrun/base/duration.hpp"

namespace ddrun::test {

/// By when whatever a test waits for has happened, unless it never does.
inline Deadline soon() { return Clock::now() + std::chrono::seconds(20); }

}  // namespace ddrun::test
