#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "ddrun/base/duration.hpp"

// The lines of PROTOCOL.md, as values: `line` are those that a program prints, `said` those that ddrun says to it.
// What the protocol does not have is parsed to nothing.

namespace ddrun::lease {

/// A program may speak of so many of the last ticks that were said.
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

[[nodiscard]] std::optional<Line> parse(std::string_view text);

}  // namespace from_program

namespace to_program {

/// Of another version than 1 nothing else is known.
struct Job {
  std::uint64_t version;
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

[[nodiscard]] std::optional<Line> parse(std::string_view text);

}  // namespace to_program

}  // namespace ddrun::lease
