#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stacks.hpp"

// Stacks as text: for each group of ranks with equal stacks its frames, the group that holds up the others first.

namespace ddrun::inspect {

/// What a rank does for the others, from its main thread. In the order of the page.
enum class Stance {
  halted,   ///< stopped, or in uninterruptible sleep
  apart,    ///< waits for no rank, as far as its frames tell
  waits,    ///< a communication library is innermost; if no rank is in one: on a socket
  unknown,  ///< has ended, or could not be read
};

/// Ranks of one program whose main threads have equal stacks.
struct StackGroup {
  Stance stance = Stance::unknown;
  std::vector<const RankStacks*> ranks;  ///< in order of rank; borrowed from the page
};

/// By stance, then small groups before large ones, then by rank.
[[nodiscard]] std::vector<StackGroup> group_ranks(const StackPage& page);

/// The ranks that the others wait for, after one of them has given up waiting.
struct HeldUp {
  std::vector<RankName> ranks;  ///< empty: not known
  std::string why;  ///< "held up the others: load_batch (train.py:7), sleeps"; "is elsewhere: ", where all ranks wait
};
/// The first group, if its ranks are halted or apart and no more than half of `world` ranks are, or if it is smaller
/// than all other groups. None without names of functions, which tell who waits.
[[nodiscard]] HeldUp find_culprits(const StackPage& page, std::size_t world);

/// For a console: at most 10 groups and 20 frames of each. Lines without "ddrun: ", with '\n', sanitized. `directory`:
/// the job's, which is left out of file names.
[[nodiscard]] std::string short_text(const StackPage& page, const std::string& directory);
/// All groups, then all threads of all ranks with all frames.
[[nodiscard]] std::string full_text(const StackPage& page);
/// docs/schemas/stacks.schema.json
[[nodiscard]] std::string json_text(const StackPage& page);

}  // namespace ddrun::inspect
