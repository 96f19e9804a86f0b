#include "node_ranks.hpp"

#include <algorithm>
#include <cctype>
#include <tuple>

namespace ddrun::rendezvous {

namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

std::string_view leading_digits(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && digit(text[length])) ++length;
  return text.substr(0, length);
}

}  // namespace

bool host_before(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (digit(a.front()) && digit(b.front())) {
      std::string_view left = leading_digits(a);
      std::string_view right = leading_digits(b);
      a.remove_prefix(left.size());
      b.remove_prefix(right.size());
      left.remove_prefix(std::min(left.find_first_not_of('0'), left.size()));
      right.remove_prefix(std::min(right.find_first_not_of('0'), right.size()));
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

std::vector<Seat*> choose_members(std::vector<Seat*> candidates, std::size_t most) {
  const auto key = [](const Seat* seat) {
    return std::tuple(seat->kept_rank < 0, !seat->runs_coordinator, seat->wanted_rank < 0, seat->arrival);
  };
  if (candidates.size() > most) {
    std::sort(candidates.begin(), candidates.end(), [&](const Seat* a, const Seat* b) { return key(a) < key(b); });
    candidates.resize(most);
  }
  return candidates;
}

std::vector<Seat*> order_members(const std::vector<Seat*>& members) {
  const int count = static_cast<int>(members.size());
  std::vector<Seat*> ranks(members.size(), nullptr);
  const auto take = [&](Seat* seat, int rank) {
    if (rank < 0 || rank >= count || ranks[static_cast<std::size_t>(rank)] != nullptr) return false;
    ranks[static_cast<std::size_t>(rank)] = seat;
    return true;
  };
  std::vector<Seat*> rest;
  for (Seat* seat : members) {
    if (!take(seat, seat->wanted_rank)) rest.push_back(seat);
  }
  std::vector<Seat*> homeless;
  for (Seat* seat : rest) {
    if (!take(seat, seat->kept_rank)) homeless.push_back(seat);
  }
  // Those who had a rank that is gone, in its order; then newcomers: the coordinator's own, by name, by arrival.
  std::sort(homeless.begin(), homeless.end(), [](const Seat* a, const Seat* b) {
    if ((a->kept_rank < 0) != (b->kept_rank < 0)) return b->kept_rank < 0;
    if (a->kept_rank != b->kept_rank) return a->kept_rank < b->kept_rank;
    if (a->runs_coordinator != b->runs_coordinator) return a->runs_coordinator;
    if (host_before(a->host, b->host)) return true;
    if (host_before(b->host, a->host)) return false;
    return a->arrival < b->arrival;
  });
  std::size_t hole = 0;
  for (Seat* seat : homeless) {
    while (ranks[hole] != nullptr) ++hole;
    ranks[hole] = seat;
  }
  return ranks;
}

}  // namespace ddrun::rendezvous
