#pragma once

#include <chrono>

namespace ddrun::remote {

/// The user's ddrun lets every host know that it is there.
constexpr std::chrono::seconds ping_interval{5};
/// A host that hears nothing for so long takes the connection for lost. (An end-of-file it believes at once.)
constexpr std::chrono::seconds longest_silence{30};

}  // namespace ddrun::remote
