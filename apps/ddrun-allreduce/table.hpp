#pragma once

#include <string>

#include "options.hpp"
#include "results.hpp"

namespace ddrun::allreduce {

// The table, in the look of nccl-tests, as whole lines.
[[nodiscard]] std::string header(const Setting& setting, const Options& options);
[[nodiscard]] std::string line(const Row& row);
[[nodiscard]] std::string footer(const Summary& summary);

/// To stdout at once and in whole lines, so that a launcher that labels lines shows each as soon as it is known.
void print(const std::string& lines);

}  // namespace ddrun::allreduce
