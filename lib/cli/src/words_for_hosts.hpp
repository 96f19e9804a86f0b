#pragma once

#include <string>
#include <vector>

#include "draft.hpp"
#include "settings.hpp"

namespace ddrun::cli {

/// A command line that means the same as all that was given here by whatever way (typed, variables, a file), but for
/// what concerns this machine alone: "--name=value"…, "--", the program and its arguments. For a ddrun that is started
/// elsewhere and looks at nothing but this.
[[nodiscard]] std::vector<std::string> words_for_hosts(const Draft& draft, const Settings& settings);

}  // namespace ddrun::cli
