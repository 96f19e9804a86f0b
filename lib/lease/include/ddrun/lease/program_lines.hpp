#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "ddrun/base/duration.hpp"

// The lines of PROTOCOL.md as values, in both directions. Other lines are parsed to an empty optional.

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

[[nodiscard]] std::optional<Line> parse(std::string_view text);

}  // namespace from_program

namespace to_program {

/// For a version other than 1 only the version is parsed.
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
