#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// Every rank gives a line of text (no '\n') and gets those of all ranks, by rank. Rank 0 collects and hands on, so
/// that the store serves three requests per rank at most. `topic` is used once per group.
/// `timeout` names the ranks that did not come.
[[nodiscard]] Result<std::vector<std::string>> exchange(const Group& group, std::string_view topic,
                                                        std::string_view mine, Deadline deadline);

/// "rank 3 did not come in time", "ranks 1,4-6 did not come in time".
[[nodiscard]] std::string missing_in_words(const std::vector<int>& ranks);

/// After a step that each rank may fail on its own: all get the first failure by rank, or success.
[[nodiscard]] Result<void> agree(const Group& group, std::string_view topic, const Result<void>& mine,
                                 Deadline deadline);

}  // namespace ddrun::collectives
