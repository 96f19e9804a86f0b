#pragma once

#include <string>

#include "report/curves.hpp"

namespace ddrun::allreduce {

enum class PictureFormat { svg, png };

/// By the end of its name, ".svg" or ".png"; `invalid_argument` for any other.
[[nodiscard]] Result<PictureFormat> picture_format(const std::string& path);

/// What gnuplot is to do to write the picture to its standard output: bandwidth and time over size, one above the
/// other. No curve may be without points; names in it are data to gnuplot, whatever they are.
[[nodiscard]] std::string plot_script(const Curves& curves, PictureFormat format);

}  // namespace ddrun::allreduce
