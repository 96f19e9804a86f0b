#pragma once

#include <chrono>

namespace ddrun::remote {

/// The two sides of a connection let each other know that they are there.
constexpr std::chrono::seconds ping_interval{5};
/// Who hears nothing for so long takes the connection for lost. (An end-of-file is believed at once.)
constexpr std::chrono::seconds longest_silence{30};

}  // namespace ddrun::remote
