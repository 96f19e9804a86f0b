#pragma once

namespace ddrun::allreduce {

/// How many steps it takes until each of `players` has met each other one, when all pairs of a step meet at the same
/// time: players - 1, of an odd number players, as one is left over each time.
[[nodiscard]] int round_robin_steps(int players);

/// Whom `player` meets at `step`; itself: nobody. Kirkman's schedule of 1850, the circle method.
[[nodiscard]] int round_robin_partner(int player, int players, int step);

}  // namespace ddrun::allreduce
