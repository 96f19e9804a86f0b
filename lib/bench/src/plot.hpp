#pragma once

#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// The terminal of gnuplot for a file name that ends in ".svg" or ".png"; `invalid_argument` for any other.
[[nodiscard]] Result<std::string> terminal_of(const std::string& path);

/// `invalid_argument` if there is no gnuplot in PATH: which package has it.
[[nodiscard]] Result<void> check_gnuplot();

/// `invalid_argument` if no planned row has a size.
[[nodiscard]] Result<void> check_drawable(const Report& planned);

/// For gnuplot: bandwidth (busbw; of one rank algbw) and time over size, one above the other, to standard output.
/// Names are quoted: gnuplot executes nothing of them.
[[nodiscard]] std::string plot_script(const Report& report, const std::string& terminal);

/// Runs gnuplot and returns the picture; blocks. Reads no settings of the user's, makes no file. `unavailable` if
/// gnuplot fails, with its last line, or nothing was measured; `timeout` ends it.
[[nodiscard]] Result<std::string> draw(const Report& report, const std::string& terminal, Deadline deadline);

}  // namespace ddrun::bench
