#include "pairs.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/checker.hpp"

namespace ddrun::bench {

std::vector<Node> nodes_of(const std::vector<collectives::Member>& members, const std::vector<int>& local_ranks) {
  struct HostNodes {
    std::size_t last = 0;  ///< index of its latest node
    int nodes = 0;
  };
  std::map<std::string, HostNodes> hosts;
  std::vector<Node> nodes;
  std::vector<std::map<int, int>> by_local;  // by node: local rank to rank
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    HostNodes& host = hosts[members[rank].host];
    int local = local_ranks[rank];
    if (local < 0) local = host.nodes == 0 ? 0 : static_cast<int>(by_local[host.last].size());
    if (host.nodes == 0 || by_local[host.last].count(local) != 0) {
      host.last = nodes.size();
      ++host.nodes;
      const std::string& name = members[rank].host;
      nodes.push_back({host.nodes == 1 ? name : concat(name, '#', host.nodes), {}});
      by_local.emplace_back();
    }
    by_local[host.last].emplace(local, static_cast<int>(rank));
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& [local, rank] : by_local[i]) nodes[i].ranks.push_back(rank);
  }
  return nodes;
}

int round_robin_steps(int players) {
  if (players < 2) return 0;
  return players % 2 == 0 ? players - 1 : players;
}

int round_robin_partner(int player, int players, int step) {
  // With an odd number n of players, those whose numbers add up to `step` modulo n are partners. The remaining one is
  // idle, or plays the last player if their number is even.
  const int around = round_robin_steps(players);
  if (around == 0) return player;
  const bool even = players % 2 == 0;
  const int left_over = step * ((around + 1) / 2) % around;  // half of `step` modulo n
  if (even && player == players - 1) return left_over;
  if (player == left_over) return even ? players - 1 : player;
  return (step - player + around) % around;
}

namespace {

/// Bytes sent by each rank without -e, enough to measure bandwidth.
constexpr std::uint64_t usual_bytes = std::uint64_t{16} << 20U;
constexpr std::size_t small_count = 2;  // floats, 8 bytes
constexpr double pair_microseconds = 60e3;
/// A single exchange takes almost no time for the later rank, so latencies are timed in batches.
constexpr int small_batch = 10;
constexpr int small_samples = 21;

class PairBenchmark {
 public:
  PairBenchmark(const collectives::Connected& connected, const Buffers& buffers, const Options& options)
      : all_(*connected.communicator),
        control_(*connected.control),
        buffers_(buffers),
        options_(options),
        checker_(all_.memory(), all_.rank(), all_.size(), collectives::Collective::send_recv,
                 collectives::DataType::float32, collectives::ReduceOp::sum) {}

  /// This rank's bandwidth with `partner` in GB/s. With itself as partner it only keeps in step with the others.
  Result<double> bandwidth(int partner, std::uint64_t bytes) {
    const collectives::Call call = call_with(partner, bytes / sizeof(float));
    std::array<double, 1> slowest{};
    TRY(check(call));
    slowest[0] = TRY(all_.time(call, 1, options_.op_timeout));
    TRY(largest_of_all(control_, slowest, deadline()));
    const int times = options_.iterations != 0
                          ? options_.iterations
                          : std::clamp(static_cast<int>(pair_microseconds / std::max(slowest[0], 1.0)), 3, 100);
    TRY(control_.barrier(deadline()));
    const auto took = TRY(all_.time(call, times, options_.op_timeout));
    return static_cast<double>(call.bytes()) * times / took / 1e3;
  }

  struct Latency {
    double median = 0;
    double minimum = 0;
  };
  Result<Latency> latency(int partner) {
    const collectives::Call call = call_with(partner, small_count);
    TRY(checker_.prepare(call, 1));
    TRY(control_.barrier(deadline()));
    std::vector<double> times;
    for (int i = 0; i < small_samples; ++i) {
      times.push_back(TRY(all_.time(call, small_batch, options_.op_timeout)) / small_batch);
    }
    std::sort(times.begin(), times.end());
    return Latency{times[times.size() / 2], times.front()};
  }

  [[nodiscard]] Deadline deadline() const { return Clock::now() + options_.op_timeout; }
  [[nodiscard]] std::uint64_t wrong() const { return wrong_; }

 private:
  collectives::Call call_with(int partner, std::size_t count) {
    collectives::Call call;
    call.collective = collectives::Collective::send_recv;
    call.count = count;
    call.in = buffers_.send().data();
    call.out = buffers_.recv().data();
    call.to = partner;
    call.from = partner;
    return call;
  }

  /// Makes a call and checks its data. The returned value is unused.
  Result<double> check(const collectives::Call& call) {
    ++iteration_;
    TRY(checker_.prepare(call, iteration_));
    TRY(all_.perform(call, deadline()));
    if (options_.checks == 0) return 0.0;
    wrong_ += TRY(checker_.count_wrong(call, iteration_));
    return 0.0;
  }

  collectives::Communicator& all_;
  collectives::Communicator& control_;
  const Buffers& buffers_;
  const Options& options_;
  collectives::Checker checker_;
  std::uint64_t iteration_ = 0;
  std::uint64_t wrong_ = 0;
};

Result<std::vector<int>> exchange_local_ranks(collectives::Communicator& control, int local_rank, Deadline deadline) {
  std::vector<double> all(static_cast<std::size_t>(control.size()));
  all[static_cast<std::size_t>(control.rank())] = local_rank;
  TRY(sum_of_all(control, all, deadline));
  return std::vector<int>(all.begin(), all.end());
}

/// The nodes, or the ranks of a single node.
std::vector<Node> pair_members(std::vector<Node> nodes) {
  if (nodes.size() != 1) return nodes;
  std::vector<Node> ranks;
  for (const int rank : nodes[0].ranks) ranks.push_back({concat("rank ", rank), {rank}});
  return ranks;
}

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

}  // namespace

Result<Pairs> measure_pairs(const collectives::Connected& connected, const Buffers& buffers, const Options& options,
                            int local_rank) {
  collectives::Communicator& all = *connected.communicator;
  collectives::Communicator& control = *connected.control;
  const std::string reason = all.unsupported_reason(collectives::Collective::send_recv, collectives::DataType::float32,
                                                    collectives::ReduceOp::sum, false);
  if (!reason.empty()) return fail(Errc::invalid_argument, concat("--pairs: ", reason));
  if (all.size() == 1) return fail(Errc::invalid_argument, "--pairs: one rank has no other to meet");
  PairBenchmark benchmark(connected, buffers, options);
  const auto local_ranks = TRY(exchange_local_ranks(control, local_rank, benchmark.deadline()));
  const std::vector<Node> players = pair_members(nodes_of(connected.members, local_ranks));

  const int count = static_cast<int>(players.size());
  std::size_t active = players[0].ranks.size();
  for (const Node& one : players) active = std::min(active, one.ranks.size());
  int own_player = 0;
  std::size_t local = active;
  for (int player = 0; player < count; ++player) {
    const auto& ranks = players[static_cast<std::size_t>(player)].ranks;
    const auto found = std::find(ranks.begin(), ranks.end(), all.rank());
    if (found == ranks.end()) continue;
    own_player = player;
    local = static_cast<std::size_t>(found - ranks.begin());
  }

  Pairs pairs;
  for (const Node& one : players) pairs.nodes.push_back(one.name);
  pairs.steps = round_robin_steps(count);
  pairs.ranks_per_node = static_cast<int>(active);
  const std::uint64_t room = buffers.recv().size() - collectives::Checker::guard_bytes;
  pairs.bytes = (options.max_bytes ? room : std::min(room, usual_bytes)) / sizeof(float) * sizeof(float);
  const std::size_t cells = pairs.nodes.size() * pairs.nodes.size();
  pairs.gbps.resize(cells);
  pairs.median_us.resize(cells);
  pairs.minimum_us.resize(cells);
  for (int step = 0; step < pairs.steps; ++step) {
    const int other = round_robin_partner(own_player, count, step);
    const bool has_partner = other != own_player && local < active;
    const int partner = has_partner ? players[static_cast<std::size_t>(other)].ranks[local] : all.rank();
    // An idle rank copies as much, as all ranks must make the same calls.
    const auto bandwidth = TRY(benchmark.bandwidth(partner, pairs.bytes));
    const auto latency = TRY(benchmark.latency(partner));
    if (!has_partner) continue;
    pairs.gbps[pairs.at(own_player, other)] = bandwidth;
    pairs.median_us[pairs.at(own_player, other)] = latency.median;
    pairs.minimum_us[pairs.at(own_player, other)] = latency.minimum;
  }
  std::vector<double> wrong{static_cast<double>(benchmark.wrong())};
  for (auto* numbers : {&pairs.gbps, &wrong}) TRY(sum_of_all(control, *numbers, benchmark.deadline()));
  for (auto* numbers : {&pairs.median_us, &pairs.minimum_us}) {
    TRY(largest_of_all(control, *numbers, benchmark.deadline()));
  }
  pairs.wrong = static_cast<std::uint64_t>(wrong[0]);
  // Both sides measured the pair; use the slower one.
  for (int first = 0; first < count; ++first) {
    for (int second = 0; second < first; ++second) {
      const auto one = pairs.at(first, second);
      const auto two = pairs.at(second, first);
      pairs.gbps[one] = pairs.gbps[two] = std::min(pairs.gbps[one], pairs.gbps[two]);
      pairs.median_us[one] = pairs.median_us[two] = std::max(pairs.median_us[one], pairs.median_us[two]);
      pairs.minimum_us[one] = pairs.minimum_us[two] = std::max(pairs.minimum_us[one], pairs.minimum_us[two]);
    }
  }
  find_worst(pairs);
  return pairs;
}

int worst_node_of(const Pairs& pairs, const std::vector<double>& values, double sign) {
  const int count = static_cast<int>(pairs.nodes.size());
  int worst = -1;
  double least = INFINITY;
  for (int node = 0; node < count && count > 2; ++node) {
    std::vector<double> own;
    for (int other = 0; other < count; ++other) {
      if (other != node) own.push_back(values[pairs.at(node, other)]);
    }
    const double value = sign * median(std::move(own));
    if (value < least) worst = node;
    least = std::min(least, value);
  }
  return worst;
}

void find_worst(Pairs& pairs) {
  const int count = static_cast<int>(pairs.nodes.size());
  for (int first = 0; first < count; ++first) {
    for (int second = first + 1; second < count; ++second) {
      const auto worse = [&](const Pairs::Worst& worst, const std::vector<double>& in, double sign) {
        return worst.first < 0 || sign * in[pairs.at(first, second)] > sign * in[pairs.at(worst.first, worst.second)];
      };
      if (worse(pairs.slowest, pairs.gbps, -1)) pairs.slowest = {first, second};
      if (worse(pairs.latest, pairs.median_us, 1)) pairs.latest = {first, second};
    }
  }
  pairs.worst_node = worst_node_of(pairs, pairs.gbps, 1);
}

}  // namespace ddrun::bench
