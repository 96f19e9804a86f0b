#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

// The lines of PROTOCOL.md that a program prints, as values.

namespace ddrun::lease::line {

struct Mine {
  std::uint64_t term;
  std::uint64_t tick;
};
struct Other {
  std::uint64_t term;
  std::string address;
};
struct None {};
struct Verdict {
  std::string text;
};
struct Resigned {};
struct Recorded {};
struct Refused {
  std::string why;
};
struct Trouble {
  std::string text;
};
struct Done {
  std::uint64_t tick;
};

using Line = std::variant<Mine, Other, None, Verdict, Resigned, Recorded, Refused, Trouble, Done>;

/// Nothing for what the protocol does not have.
[[nodiscard]] std::optional<Line> parse(std::string_view text);

}  // namespace ddrun::lease::line
