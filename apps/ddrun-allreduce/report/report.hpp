#pragma once

#include <array>
#include <string>
#include <string_view>

#include "results.hpp"

namespace ddrun::allreduce {

/// A run and what it measured: this one, or one of before, read from its JSON.
struct Report {
  std::string name;  ///< "this run", or the file's path
  Setting setting;
  Summary summary;
};

/// How a row was measured.
struct Placement {
  std::string_view key;    ///< in reports
  std::string_view words;  ///< for people
  Measurement Row::*of;
};

inline constexpr std::array kPlacements{Placement{"out_of_place", "out of place", &Row::out_of_place},
                                        Placement{"in_place", "in place", &Row::in_place}};

/// Whether it was run at all, and took some time.
[[nodiscard]] inline bool measured(const Measurement& one) { return one.lacking.empty() && one.microseconds > 0; }

/// Whether both measure the same call: collective, type, operation and root, as far as they matter to it.
[[nodiscard]] bool same_case(const Case& one, const Case& other);

/// "all_reduce of float sum", "broadcast of int8 from rank 0", "barrier".
[[nodiscard]] std::string in_words(const Case& what);
/// "all_reduce of 1 MiB float sum".
[[nodiscard]] std::string in_words(const Row& row);

/// What fell short of what was asked for.
struct Shortfall {
  std::string words;  ///< one line, without its end
  double ratio = 0;   ///< reached / wanted, below 1: the least is the worst
};

}  // namespace ddrun::allreduce
