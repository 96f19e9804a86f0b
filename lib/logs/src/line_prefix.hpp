#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

/// What a line's prefix can be made of.
struct PrefixFacts {
  std::string_view role;
  std::string_view hostname;
  int rank = 0;
  int local_rank = 0;
  int local_world_size = 1;
  bool teed = false;  ///< the stream also goes to a file by --tee
};

/// Fails with `invalid_argument` if the template names something that is not known.
[[nodiscard]] Result<void> check_template(std::string_view text);

/// What stands before each console line of a stream, without the time; may be empty.
/// A template wins over a label, a label over torchrun's prefix for tee'd streams, that over the number of workers.
[[nodiscard]] std::string line_prefix(const LogSpec& log, const PrefixFacts& facts);

/// Columns of a terminal that a prefix takes: one for each character, in UTF-8. (Wide ones take two, and are rare
/// here.)
[[nodiscard]] std::size_t screen_width(std::string_view prefix);

/// "HH:MM:SS.mmm ", local time.
[[nodiscard]] std::string time_stamp(std::chrono::system_clock::time_point now);

}  // namespace ddrun::logs
