#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::logs {

/// Remembers the end of a stream.
class TailBuffer {
 public:
  static constexpr std::size_t limit = 8192;  ///< bytes; this many at least are remembered

  void add(std::string_view chunk);
  /// The last `count` lines, oldest first, without their ends.
  [[nodiscard]] std::vector<std::string> lines(std::size_t count) const;

 private:
  std::string bytes_;
  bool cut_ = false;  ///< there were bytes before these
};

/// The last `count` lines of `text`, as a screen would show them: of what '\r' overwrites only the last is left.
/// `cut`: the text does not begin at the start of a line, so its first line is left out, unless it is the only one.
[[nodiscard]] std::vector<std::string> last_lines(std::string_view text, std::size_t count, bool cut);

}  // namespace ddrun::logs
