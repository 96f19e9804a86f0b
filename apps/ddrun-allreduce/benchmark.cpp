#include "benchmark.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace ddrun::allreduce {

namespace {

// How long the timed calls of one measurement may take, and how long tiny ones should, to be more than noise.
constexpr double kMostMicroseconds = 300e3;
constexpr double kLeastMicroseconds = 20e3;
constexpr double kUsualIterations = 20;
constexpr double kMostIterations = 1000;

/// What the output is filled with: an element that was never written is found.
constexpr std::byte kPoison{0xa5};

/// How many calls are timed one by one at most, and for how long: their times are what is between looks at the clock,
/// so they are no part of the mean.
constexpr int kMostSamples = 1000;
constexpr double kSampleMicroseconds = 100e3;

double at_quantile(const std::vector<double>& sorted, double quantile) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::ceil(last * quantile))];
}

}  // namespace

Benchmark::Benchmark(collectives::Communicator& communicator, const Options& options, int rank, int size,
                     collectives::DataType type, collectives::ReduceOp op)
    : communicator_(communicator),
      options_(options),
      rank_(rank),
      size_(size),
      type_(type),
      op_(op),
      element_(collectives::size_of(type)),
      pattern_(rank, size, type, op) {}

Result<Row> Benchmark::run(std::uint64_t bytes) {
  if (rank_ == options_.kill_rank && bytes >= options_.kill_at) kill(getpid(), SIGKILL);
  Row row;
  row.type = type_;
  row.op = op_;
  row.count = bytes / element_;
  row.bytes = row.count * element_;
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
  // The last of the untimed calls, alone, tells how many timed ones are affordable.
  if (options_.warmup > 1) {
    if (auto warm = time_calls(placement, count, options_.warmup - 1); !warm) return tl::unexpected(warm.error());
  }
  Measurement result;
  result.iterations = options_.iterations;
  if (options_.warmup > 0 || result.iterations == 0) {
    const auto once = time_calls(placement, count, 1);
    if (!once) return tl::unexpected(once.error());
    if (result.iterations == 0) {
      const auto chosen = choose_iterations(*once);
      if (!chosen) return tl::unexpected(chosen.error());
      result.iterations = *chosen;
    }
  }
  const auto mean = time_calls(placement, count, result.iterations);
  if (!mean) return tl::unexpected(mean.error());
  const auto all = slowest(*mean);
  if (!all) return tl::unexpected(all.error());
  result.microseconds = *all;
  const double bytes = static_cast<double>(count) * static_cast<double>(element_);
  result.algbw = bytes / result.microseconds / 1e3;
  result.busbw = result.algbw * collectives::bus_bandwidth_factor(collectives::Collective::all_reduce, size_);
  if (auto timed = time_each(placement, count, result); !timed) return tl::unexpected(timed.error());
  if (options_.check) {
    const auto wrong = check_one(placement, count);
    if (!wrong) return tl::unexpected(wrong.error());
    const auto everywhere = total(*wrong);
    if (!everywhere) return tl::unexpected(everywhere.error());
    result.wrong = *everywhere;
  }
  return result;
}

std::span<std::byte> Benchmark::input(Placement placement, std::size_t count) {
  return placement == Placement::in_place ? output(count) : communicator_.send_buffer().first(count * element_);
}

std::span<std::byte> Benchmark::output(std::size_t count) {
  return communicator_.recv_buffer().first(count * element_);
}

void Benchmark::prepare(Placement placement, std::size_t count) {
  ++iteration_;
  pattern_.fill(input(placement, count), first_position(count));
  if (placement == Placement::out_of_place) {
    const auto to = output(count);
    std::fill(to.begin(), to.end(), kPoison);
  }
}

Result<void> Benchmark::reduce(Placement placement, std::size_t count, Deadline deadline) {
  return communicator_.all_reduce(input(placement, count), output(count), type_, op_, deadline);
}

/// Microseconds per call, as this rank sees it. All ranks start together.
Result<double> Benchmark::time_calls(Placement placement, std::size_t count, int times) {
  if (auto met = communicator_.barrier(deadline()); !met) return tl::unexpected(met.error());
  const auto start = Clock::now();
  auto until = start + options_.timeout;
  for (int i = 0; i < times; ++i) {
    // A call of microseconds does not need a look at the clock of its own.
    if (i % 64 == 63) until = deadline();
    if (auto done = reduce(placement, count, until); !done) return tl::unexpected(done.error());
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / times;
}

/// The times of single calls.
Result<void> Benchmark::time_each(Placement placement, std::size_t count, Measurement& result) {
  const double affordable = std::max(1.0, kSampleMicroseconds / std::max(result.microseconds, 0.1));
  const int samples = std::min({result.iterations, kMostSamples, static_cast<int>(std::min(affordable, 1e6))});
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(samples));
  if (auto met = communicator_.barrier(deadline()); !met) return met;
  auto before = Clock::now();
  for (int i = 0; i < samples; ++i) {
    if (auto done = reduce(placement, count, before + options_.timeout); !done) return done;
    const auto now = Clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(now - before).count());
    before = now;
  }
  std::sort(times.begin(), times.end());
  result.samples = samples;
  for (const auto& [to, quantile] : {std::pair(&result.median, 0.5), {&result.p99, 0.99}, {&result.minimum, 0.0}}) {
    const auto all = slowest(at_quantile(times, quantile));
    if (!all) return tl::unexpected(all.error());
    *to = *all;
  }
  return {};
}

Result<int> Benchmark::choose_iterations(double microseconds) {
  const auto all = slowest(microseconds);
  if (!all) return tl::unexpected(all.error());
  const double time = std::max(*all, 0.1);
  const double wanted = std::clamp(kLeastMicroseconds / time, kUsualIterations, kMostIterations);
  return static_cast<int>(std::max(1.0, std::min(wanted, kMostMicroseconds / time)));
}

/// Fresh input, one more call, and a look at every element of this rank's result.
Result<std::uint64_t> Benchmark::check_one(Placement placement, std::size_t count) {
  prepare(placement, count);
  if (rank_ == options_.corrupt_rank) pattern_.spoil(input(placement, count), count / 2);
  if (auto done = reduce(placement, count, deadline()); !done) return tl::unexpected(done.error());
  const std::uint64_t wrong = pattern_.count_wrong(output(count), first_position(count));
  wrong_here_ += wrong;
  return wrong;
}

Result<double> Benchmark::slowest(double microseconds) {
  const std::span<double> one(&microseconds, 1);
  const auto bytes = std::as_writable_bytes(one);
  if (auto done = communicator_.all_reduce(bytes, bytes, collectives::DataType::float64, collectives::ReduceOp::max,
                                           deadline());
      !done) {
    return tl::unexpected(done.error());
  }
  return microseconds;
}

Result<std::uint64_t> Benchmark::total(std::uint64_t wrong) {
  const std::span<std::uint64_t> one(&wrong, 1);
  const auto bytes = std::as_writable_bytes(one);
  if (auto done =
          communicator_.all_reduce(bytes, bytes, collectives::DataType::uint64, collectives::ReduceOp::sum, deadline());
      !done) {
    return tl::unexpected(done.error());
  }
  return wrong;
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
