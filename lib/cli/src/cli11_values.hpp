#pragma once

#include <string>
#include <vector>

#include "argv_split.hpp"

namespace ddrun::cli {

struct OptionValues {
  const Option* option;
  std::vector<std::string> values;  ///< scalars: the last one; counts: how often; flags: "true" or what was given
};

/// The values of the options in `argv.ours`, read by CLI11.
[[nodiscard]] Result<std::vector<OptionValues>> read_values(const Argv& argv);

}  // namespace ddrun::cli
