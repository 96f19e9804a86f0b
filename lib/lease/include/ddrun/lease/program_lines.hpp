#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "ddrun/base/duration.hpp"

// The lines of PROTOCOL.md as values, in both directions.

namespace ddrun::lease {

/// A program may refer to this many of the last ticks.
inline constexpr std::size_t tick_window = 8;

namespace from_program {

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

/// Empty for any other line.
[[nodiscard]] std::optional<Line> parse(std::string_view text);

}  // namespace from_program

namespace to_program {

struct Job {
  Milliseconds ttl;
  std::string job;
};
struct Campaign {
  std::string address;
};
struct Tick {
  std::uint64_t number;
};
struct Depose {
  std::uint64_t term;
};
struct Resign {};
struct Verdict {
  std::string text;
};

using Line = std::variant<Job, Campaign, Tick, Depose, Resign, Verdict>;

/// Without the newline.
[[nodiscard]] std::string serialize(const Line& line);

}  // namespace to_program

/// Any bytes as one word: letters, digits and `-._` unchanged, others as %XX; "%" for no bytes. A bijection: decoding
/// rejects other encodings.
[[nodiscard]] std::string percent_encode(std::string_view text);
[[nodiscard]] std::optional<std::string> percent_decode(std::string_view word);

}  // namespace ddrun::lease
