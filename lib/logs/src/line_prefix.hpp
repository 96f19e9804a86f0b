#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

/// Values for a line's prefix.
struct PrefixFacts {
  std::string_view role;
  std::string_view hostname;
  int rank = 0;
  int local_rank = 0;
  int workers = 1;  ///< of this machine
  bool with_role = false;
};

/// Fails with `invalid_argument` if the template has an unknown name.
[[nodiscard]] Result<void> check_template(std::string_view text);

/// The prefix of each console line of a stream, without the time; may be empty. Precedence: template, label, rank if
/// there are several workers.
[[nodiscard]] std::string line_prefix(const LogSpec& log, const PrefixFacts& facts);

/// The prefix of lines that several ranks have written: "[0-3] ", or "[host:0-3] " with the scope of all.
[[nodiscard]] std::string folded_label(const std::vector<int>& ranks, const std::string& scope);
/// A label in the colour of its position, with the blank behind it.
[[nodiscard]] std::string colored_label(int position, const std::string& label);

/// Columns of a terminal that a prefix takes: one for each UTF-8 character, none for colours. (Wide characters are
/// counted as one.)
[[nodiscard]] std::size_t screen_width(std::string_view prefix);

/// "HH:MM:SS.mmm ", local time.
[[nodiscard]] std::string time_stamp(std::chrono::system_clock::time_point now);

}  // namespace ddrun::logs
