#include "benchmark.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ddrun::allreduce {

namespace {

// How long the timed sums of one measurement may take, and how long tiny ones should, to be more than noise.
constexpr double kMostMicroseconds = 300e3;
constexpr double kLeastMicroseconds = 20e3;
constexpr double kUsualIterations = 20;
constexpr double kMostIterations = 1000;

/// No sum of ours: an element that was never written is found.
constexpr float kPoison = -1;

}  // namespace

Benchmark::Benchmark(collectives::AllReduce& all_reduce, const Options& options, int rank, int size)
    : all_reduce_(all_reduce), options_(options), rank_(rank), size_(size), pattern_(rank, size) {}

Result<Row> Benchmark::run(std::uint64_t bytes) {
  if (rank_ == options_.kill_rank && bytes >= options_.kill_at) kill(getpid(), SIGKILL);
  Row row;
  row.count = bytes / sizeof(float);
  row.bytes = row.count * sizeof(float);
  auto measured = measure(Placement::out_of_place, row.count);
  if (!measured) return tl::unexpected(measured.error());
  row.out_of_place = *measured;
  measured = measure(Placement::in_place, row.count);
  if (!measured) return tl::unexpected(measured.error());
  row.in_place = *measured;
  return row;
}

Result<Measurement> Benchmark::measure(Placement placement, std::size_t count) {
  prepare(placement, count);
  // The last of the untimed sums, alone, tells how many timed ones are affordable.
  if (options_.warmup > 1) {
    if (auto warm = time_sums(placement, count, options_.warmup - 1); !warm) return tl::unexpected(warm.error());
  }
  Measurement result;
  result.iterations = options_.iterations;
  if (options_.warmup > 0 || result.iterations == 0) {
    const auto once = time_sums(placement, count, 1);
    if (!once) return tl::unexpected(once.error());
    if (result.iterations == 0) {
      const auto chosen = choose_iterations(*once);
      if (!chosen) return tl::unexpected(chosen.error());
      result.iterations = *chosen;
    }
  }
  const auto mean = time_sums(placement, count, result.iterations);
  if (!mean) return tl::unexpected(mean.error());
  const auto all = slowest(*mean);
  if (!all) return tl::unexpected(all.error());
  result.microseconds = *all;
  const double bytes = static_cast<double>(count) * sizeof(float);
  result.algbw = bytes / result.microseconds / 1e3;
  result.busbw = result.algbw * 2 * (size_ - 1) / size_;
  if (options_.check) {
    const auto wrong = check_one(placement, count);
    if (!wrong) return tl::unexpected(wrong.error());
    const auto everywhere = total(*wrong);
    if (!everywhere) return tl::unexpected(everywhere.error());
    result.wrong = *everywhere;
  }
  return result;
}

void Benchmark::prepare(Placement placement, std::size_t count) {
  const auto input = (placement == Placement::in_place ? all_reduce_.recv_buffer() : all_reduce_.send_buffer());
  pattern_.fill(input.first(count));
  if (placement == Placement::out_of_place) {
    const auto output = all_reduce_.recv_buffer().first(count);
    std::fill(output.begin(), output.end(), kPoison);
  }
}

/// Microseconds per sum, as this rank sees it. All ranks start together.
Result<double> Benchmark::time_sums(Placement placement, std::size_t count, int times) {
  const auto out = all_reduce_.recv_buffer().first(count);
  const std::span<const float> in = placement == Placement::in_place ? out : all_reduce_.send_buffer().first(count);
  if (auto met = all_reduce_.barrier(deadline()); !met) return tl::unexpected(met.error());
  const auto start = Clock::now();
  auto until = start + options_.timeout;
  for (int i = 0; i < times; ++i) {
    // A sum of microseconds does not need a look at the clock of its own.
    if (i % 64 == 63) until = deadline();
    if (auto summed = all_reduce_.sum(in, out, until); !summed) return tl::unexpected(summed.error());
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / times;
}

Result<int> Benchmark::choose_iterations(double microseconds) {
  const auto all = slowest(microseconds);
  if (!all) return tl::unexpected(all.error());
  const double time = std::max(*all, 0.1);
  const double wanted = std::clamp(kLeastMicroseconds / time, kUsualIterations, kMostIterations);
  return static_cast<int>(std::max(1.0, std::min(wanted, kMostMicroseconds / time)));
}

/// Fresh input, one more sum, and a look at every element of this rank's result.
Result<std::uint64_t> Benchmark::check_one(Placement placement, std::size_t count) {
  prepare(placement, count);
  const auto out = all_reduce_.recv_buffer().first(count);
  const auto in = placement == Placement::in_place ? out : all_reduce_.send_buffer().first(count);
  if (rank_ == options_.corrupt_rank) in[count / 2] += 1;
  if (auto summed = all_reduce_.sum(in, out, deadline()); !summed) return tl::unexpected(summed.error());
  const std::uint64_t wrong = pattern_.count_wrong(out);
  wrong_here_ += wrong;
  return wrong;
}

/// Each rank's number, by rank: what others give to a rank's place is 0.
Result<std::vector<float>> Benchmark::gather(float mine) {
  std::vector<float> all(static_cast<std::size_t>(size_));
  all[static_cast<std::size_t>(rank_)] = mine;
  if (auto summed = all_reduce_.sum_in_place(all, deadline()); !summed) return tl::unexpected(summed.error());
  return all;
}

Result<double> Benchmark::slowest(double microseconds) {
  const auto all = gather(static_cast<float>(microseconds));
  if (!all) return tl::unexpected(all.error());
  return static_cast<double>(*std::max_element(all->begin(), all->end()));
}

Result<std::uint64_t> Benchmark::total(std::uint64_t wrong) {
  // In parts that a float holds exactly.
  std::uint64_t sum = 0;
  for (unsigned shift = 0; shift < 48; shift += 16) {
    const auto all = gather(static_cast<float>((wrong >> shift) & 0xffffU));
    if (!all) return tl::unexpected(all.error());
    for (const float part : *all) sum += static_cast<std::uint64_t>(part) << shift;
  }
  return sum;
}

Summary summarize(std::vector<Row> rows, std::string error) {
  Summary summary;
  for (const Row& row : rows) {
    summary.wrong += row.out_of_place.wrong.value_or(0) + row.in_place.wrong.value_or(0);
    summary.mean_busbw += (row.out_of_place.busbw + row.in_place.busbw) / 2;
  }
  if (!rows.empty()) summary.mean_busbw /= static_cast<double>(rows.size());
  summary.rows = std::move(rows);
  summary.error = std::move(error);
  return summary;
}

}  // namespace ddrun::allreduce
