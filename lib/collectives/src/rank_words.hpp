#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// What a part of a group says of its own ranks, in the numbers of the whole group: "ranks 0,1 did not come" of
/// {4, 7} is "ranks 4,7 did not come". `ranks` are the group's, by number in the part; other numbers stay.
[[nodiscard]] std::string with_ranks(std::string_view words, std::span<const int> ranks);

[[nodiscard]] Error with_ranks(Error error, std::span<const int> ranks);

}  // namespace ddrun::collectives
