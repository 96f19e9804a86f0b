#include "measure/round_robin.hpp"

namespace ddrun::allreduce {

int round_robin_steps(int players) {
  if (players < 2) return 0;
  return players % 2 == 0 ? players - 1 : players;
}

int round_robin_partner(int player, int players, int step) {
  // Of an odd number n of players, those meet whose numbers are together `step` modulo n; the one that would meet
  // itself is left over, and meets the last player where there is one more.
  const int around = round_robin_steps(players);
  if (around == 0) return player;
  const bool even = players % 2 == 0;
  const int left_over = step * ((around + 1) / 2) % around;  // half of `step` modulo n
  if (even && player == players - 1) return left_over;
  if (player == left_over) return even ? players - 1 : player;
  return (step - player + around) % around;
}

}  // namespace ddrun::allreduce
