#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddrun::logs {

/// Columns that a character takes: 0 (combining), 1, or 2 (East Asian wide, emoji). After EastAsianWidth.txt.
[[nodiscard]] int width_of(char32_t code);

/// Attributes and colours of characters (SGR), and their link.
struct Style {
  std::uint16_t attributes = 0;  ///< bit n: the attribute that SGR n + 1 switches on; bit 9: overlined
  std::uint8_t underline = 0;    ///< 1 to 5: single, double, curly, dotted, dashed
  std::uint32_t colors[3]{};     ///< foreground, background, underline; 0: default, 1 + index, or 2^24 + RGB
  std::uint32_t link = 0;        ///< a number that the owner knows; 0: none

  bool operator==(const Style&) const = default;
  /// A blank of this style is seen: it has a background or a line, or is inverse.
  [[nodiscard]] bool shows_blanks() const {
    return colors[1] != 0 || underline != 0 || (attributes & (1U << 6U | 1U << 8U | 1U << 9U)) != 0;
  }
  /// Applies the parameters of an SGR sequence.
  void apply(std::string_view parameters);
  /// The sequence that changes `from` to this style, without the link; empty if there is nothing to change.
  [[nodiscard]] std::string sequence(const Style& from) const;
};

}  // namespace ddrun::logs
