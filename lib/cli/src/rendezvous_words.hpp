#pragma once

#include <span>
#include <string>

#include "ddrun/cli/parse.hpp"

namespace ddrun::cli {

/// What stands behind `ddrun rendezvous`.
[[nodiscard]] Parsed parse_rendezvous(std::span<const std::string> words, const Environment& environment);

}  // namespace ddrun::cli
