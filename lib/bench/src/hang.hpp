#pragma once

#include <optional>
#include <string>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::bench {

/// Whether a call failed because a rank did not come: its time was up here, or a peer left because its time was up.
[[nodiscard]] bool is_hang(const Error& error, const collectives::Group& group);

/// After that: says on stderr where this rank is, tells the others through the store, and waits (some seconds) for what
/// they say. The lowest rank that says something names those who did not arrive: who says nothing, or else has begun
/// fewer calls. Returns these words on that rank, nothing on the others, which have waited for it to be done.
[[nodiscard]] std::optional<std::string> explain_hang(const Error& error, const collectives::Group& group,
                                                      const collectives::Connected& connected, Milliseconds op_timeout);

/// Whether connecting failed because others, who have left the start behind, found that a call hangs: their time was
/// up, while that for the start, until `start_by`, is not.
[[nodiscard]] bool is_others_hang(const Error& error, Deadline start_by);

/// After that, as explain_hang(): this rank waits in the start, since `began`.
[[nodiscard]] std::optional<std::string> explain_hang_at_start(const Error& error, const collectives::Group& group,
                                                               Clock::time_point began, Milliseconds op_timeout);

/// One rank's words about itself, as they travel: "1234 all_reduce of 4 float, sum, call 1234".
struct Whereabouts {
  std::uint64_t calls = 0;  ///< begun so far
  std::string last;         ///< the last of them
};

/// Who did not arrive, for people: "ranks 3,5 say nothing", as others may be behind only because they wait for those;
/// if all say something, "rank 5 has come no further than barrier, call 7", and so on for all who are behind. By rank;
/// none: that rank said nothing. If all have come as far as each other it is `otherwise`.
[[nodiscard]] std::string who_is_missing(const std::vector<std::optional<Whereabouts>>& all,
                                         const std::string& otherwise);

}  // namespace ddrun::bench
