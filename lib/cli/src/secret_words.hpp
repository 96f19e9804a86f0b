#pragma once

#include <span>
#include <string>

#include "ddrun/cli/parse.hpp"

namespace ddrun::cli {

/// What stands behind `ddrun secret`.
[[nodiscard]] Parsed parse_secret(std::span<const std::string> words);

}  // namespace ddrun::cli
