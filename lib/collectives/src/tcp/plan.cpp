#include "tcp/plan.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "ddrun/base/text.hpp"
#include "tcp/algorithms.hpp"

namespace ddrun::collectives {

namespace {

constexpr std::size_t min_piece = 64 << 10;
constexpr std::size_t max_piece = 4 << 20;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Median of some exchanges with both neighbours.
Result<double> time_exchanges(Peers& peers, Scratch& out, Scratch& in, std::size_t bytes, int times) {
  std::vector<double> took;
  for (int i = 0; i < times; ++i) {
    const auto start = Clock::now();
    auto done = peers.exchange({peers.at(1), out.at_least(bytes), bytes}, {peers.at(-1), in.at_least(bytes), bytes});
    if (!done) return tl::unexpected(done.error());
    took.push_back(since(start));
  }
  const auto middle = took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2);
  std::nth_element(took.begin(), middle, took.end());
  return *middle;
}

double time_reduction(Workspace& ws) {
  constexpr std::size_t trial_count = 16384;
  constexpr int repetitions = 5;
  const Partial partial({Collective::all_reduce, DataType::float32, ReduceOp::sum}, 2);
  std::byte* const mine = ws.mine.at_least(trial_count * sizeof(float));
  std::byte* const theirs = ws.theirs.at_least(trial_count * sizeof(float));
  std::fill_n(theirs, trial_count * sizeof(float), std::byte{0});
  double best = 0;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = Clock::now();
    partial.load(mine, theirs, trial_count);
    partial.merge(mine, mine, theirs, trial_count);
    const double took = since(start);
    if (i == 0 || took < best) best = took;
  }
  return best / (trial_count * sizeof(float));
}

std::string up_to(std::size_t bytes) {
  if (bytes >= (1U << 20U)) return concat(bytes >> 20U, " MiB");
  if (bytes >= (1U << 10U)) return concat(bytes >> 10U, " KiB");
  return concat(bytes, " B");
}

}  // namespace

std::string in_steps(std::initializer_list<std::pair<std::string_view, std::size_t>> steps) {
  std::string words;
  std::size_t from = 0;
  for (const auto& [name, to] : steps) {
    if (to <= from) continue;
    words += words.empty() ? std::string(name) : concat(", then ", name);
    if (to == Plan::unlimited) break;
    words += concat(" up to ", up_to(to));
    from = to;
  }
  return words;
}

std::size_t Plan::piece(std::size_t bytes, int ranks) const {
  // (n - 2 + k) (alpha + beta S / k) for k pieces is least at k² = (n - 2) beta S / alpha.
  const double steps = std::max(ranks - 2, 0) * costs.per_byte;
  if (steps <= 0 || costs.latency <= 0) return max_piece;
  const double best = std::sqrt(static_cast<double>(bytes) * costs.latency / steps);
  // A whole number of every element.
  const auto rounded = static_cast<std::size_t>(std::min<double>(best, max_piece)) / min_piece * min_piece;
  return std::max(rounded, min_piece);
}

std::string Plan::in_words() const {
  const std::size_t rest = unlimited;
  return concat(
      "all_reduce: ", in_steps({{"recursive doubling", doubling}, {"halving and doubling", halving}, {"ring", rest}}),
      "; reduce_scatter: ", in_steps({{"recursive doubling", doubling}, {"ring", rest}}),
      "; broadcast, reduce: ", in_steps({{"tree", tree}, {"chain", rest}}),
      "; gather, scatter: ", in_steps({{"tree", block_tree}, {"direct", rest}}),
      "; all_gather: ", in_steps({{"doubling", all_gather}, {"ring", rest}}));
}

Plan plan_for(const Costs& costs, int ranks) {
  const double a = costs.latency;
  const double b = costs.per_byte;
  const double c = costs.per_byte_reduced;
  const double n = ranks;
  const double share = (n - 1) / n;
  const auto whole = std::bit_floor(static_cast<unsigned>(ranks));
  const double doublings = std::bit_width(whole) - 1;
  const double all_steps = std::bit_width(static_cast<unsigned>(ranks - 1));
  // Ranks beyond a power of two give their part and get the result.
  const double joins = whole == static_cast<unsigned>(ranks) ? 0 : 1;
  const double half_share = 1 - 1 / static_cast<double>(whole);

  const auto doubling = [&](double s) { return doublings * (a + s * (b + c)) + joins * (2 * a + s * (2 * b + c)); };
  const auto halving = [&](double s) {
    return 2 * doublings * a + half_share * s * (2 * b + c) + joins * (2 * a + s * (2 * b + c));
  };
  const auto ring = [&](double s) { return 2 * (n - 1) * a + share * s * (2 * b + c); };
  // What is as fast in the model is not in the network: the ring's messages go between neighbours only, so a few
  // percent are its.
  constexpr double rings_advance = 1.05;

  Plan plan;
  plan.costs = costs;
  plan.doubling = crossover(doubling, [&](double s) { return std::min(halving(s), ring(s)); });
  plan.halving = crossover([&](double s) { return rings_advance * halving(s); }, ring);
  plan.tree = crossover([&](double s) { return all_steps * (a + s * b); },
                        [&](double s) {
                          const double root = std::sqrt((n - 2) * a) + std::sqrt(s * b);
                          return std::max(root * root, (n - 1) * a + s * b);
                        });
  // A block that comes directly costs its handling, about half a latency; in a tree it is copied on its way.
  plan.block_tree = crossover([&](double s) { return all_steps * a + (n - 1) * s * b + n * s * c; },
                              [&](double s) { return a + (n - 2) * a / 2 + (n - 1) * s * b; });
  plan.all_gather = crossover([&](double s) { return all_steps * a + (n - 1) * s * b + n * s * c; },
                              [&](double s) { return (n - 1) * (a + s * b); });
  return plan;
}

Result<Costs> measure_costs(Peers& peers, Workspace& ws) {
  // All ranks of a machine share its memory and processors: the more they are, the less each sends.
  const std::size_t large = std::clamp((std::size_t{4} << 20U) / static_cast<std::size_t>(peers.size()),
                                       std::size_t{64} << 10U, std::size_t{512} << 10U);
  constexpr int repetitions = 9;
  const auto latency = time_exchanges(peers, ws.mine, ws.theirs, sizeof(double), repetitions);
  if (!latency) return tl::unexpected(latency.error());
  const auto long_ones = time_exchanges(peers, ws.mine, ws.theirs, large, 3);
  if (!long_ones) return tl::unexpected(long_ones.error());
  const std::array<double, 3> mine{*latency, std::max(*long_ones - *latency, 0.0) / static_cast<double>(large),
                                   time_reduction(ws)};
  Call call{Collective::all_reduce, DataType::float64, ReduceOp::max, mine.size()};
  std::array<double, 3> slowest{};
  call.in = reinterpret_cast<const std::byte*>(mine.data());
  call.out = reinterpret_cast<std::byte*>(slowest.data());
  if (auto agreed = all_reduce_by_doubling(peers, ws, call); !agreed) return tl::unexpected(agreed.error());
  return Costs{slowest[0], slowest[1], slowest[2]};
}

}  // namespace ddrun::collectives
