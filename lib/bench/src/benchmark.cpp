#include "benchmark.hpp"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::bench {

namespace {

// Limits of the total time of the timed calls: at most, and at least for tiny calls, to average out noise.
constexpr double max_microseconds = 300e3;
constexpr double min_microseconds = 20e3;
constexpr double usual_iterations = 20;
constexpr double max_iterations = 1000;

/// Limits of the calls that are timed one by one. Reading the clock affects these times, so they are not part of the
/// mean.
constexpr int max_samples = 1000;
constexpr double sample_microseconds = 100e3;

double at_quantile(const std::vector<double>& sorted, double quantile) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::ceil(last * quantile))];
}

}  // namespace

std::uint64_t Buffers::back_end_bytes(const Options& options, std::uint64_t bytes) {
  return options.private_buffers ? 0 : bytes;
}

Result<void> Buffers::provide(collectives::Communicator& communicator, const Options& options, std::uint64_t bytes) {
  if (!options.private_buffers) {
    send_ = communicator.send_buffer();
    recv_ = communicator.recv_buffer();
    return {};
  }
  if (&communicator.memory() != &collectives::host_memory()) {
    return fail(Errc::invalid_argument,
                concat("--buffers: ", communicator.name(), " works on a device's memory, not on private memory"));
  }
  // Page-aligned, like the back ends' buffers.
  const std::uint64_t distance = collectives::whole_pages(bytes);
  TRY(own_.allocate(distance, 2));
  send_ = {own_.data(), bytes};
  recv_ = {own_.data() + distance, bytes};
  return {};
}

double bus_bandwidth_factor(collectives::Collective collective, int ranks) {
  if (ranks == 1 || collective == collectives::Collective::barrier) return 0;
  const double share = static_cast<double>(ranks - 1) / ranks;
  if (collective == collectives::Collective::all_reduce) return 2 * share;
  const collectives::Blocks blocks = collectives::blocks_of(collective, ranks);
  return blocks.in > 1 || blocks.out > 1 ? share : 1;
}

Benchmark::Benchmark(const collectives::Connected& connected, const Buffers& buffers, const Options& options,
                     const Case& spec)
    : communicator_(*connected.communicator),
      control_(*connected.control),
      buffers_(buffers),
      options_(options),
      spec_(spec),
      rank_(communicator_.rank()),
      size_(communicator_.size()),
      element_(collectives::size_of(spec.type)),
      checker_(communicator_.memory(), rank_, size_, spec.collective, spec.type, spec.op) {}

Result<Row> Benchmark::run(std::uint64_t bytes) {
  if (rank_ == options_.kill_rank && bytes >= options_.kill_at) kill(getpid(), SIGKILL);
  const collectives::Blocks blocks = collectives::blocks_of(spec_.collective, size_);
  const std::size_t most = std::max(blocks.in, blocks.out);
  Row row;
  row.spec = spec_;
  row.count = bytes / element_ / most;
  row.bytes = row.count * element_ * most;
  row.out_of_place = TRY(measure(Placement::out_of_place, row.count));
  row.in_place = TRY(measure(Placement::in_place, row.count));
  return row;
}

Result<Measurement> Benchmark::measure(Placement placement, std::size_t count) {
  Measurement result;
  const collectives::Call call = call_of(placement, count);
  result.unsupported_reason =
      communicator_.unsupported_reason(spec_.collective, spec_.type, spec_.op, placement == Placement::in_place);
  if (!result.unsupported_reason.empty()) return result;
  TRY(prepare(call));
  // The last warmup call is timed alone, to estimate how many iterations fit.
  if (options_.warmup > 1) TRY(time_calls(call, options_.warmup - 1));
  result.iterations = options_.iterations;
  if (options_.warmup > 0 || result.iterations == 0) {
    const auto once = TRY(time_calls(call, 1));
    if (result.iterations == 0) result.iterations = TRY(choose_iterations(once));
  }
  const auto mean = TRY(time_calls(call, result.iterations));
  result.microseconds = TRY(slowest(mean));
  const collectives::Blocks blocks = collectives::blocks_of(spec_.collective, size_);
  const auto bytes = static_cast<double>(call.bytes() * std::max(blocks.in, blocks.out));
  // One rank in place moves no data.
  const bool moves = size_ > 1 || placement == Placement::out_of_place;
  result.algbw = moves ? bytes / result.microseconds / 1e3 : 0;
  result.busbw = result.algbw * bus_bandwidth_factor(spec_.collective, size_);
  TRY(time_each(call, result));
  if (options_.checks != 0 && spec_.collective != collectives::Collective::barrier) {
    std::uint64_t wrong = 0;
    for (int i = 0; i < options_.checks; ++i) wrong += TRY(check_one(call));
    result.wrong = TRY(total(wrong));
  }
  return result;
}

collectives::Call Benchmark::call_of(Placement placement, std::size_t count) {
  collectives::Call call;
  call.collective = spec_.collective;
  call.type = spec_.type;
  call.op = spec_.op;
  call.root = spec_.root;
  call.to = (rank_ + 1) % size_;
  call.from = (rank_ + size_ - 1) % size_;
  call.count = count;
  call.out = buffers_.recv().data();
  call.in = buffers_.send().data();
  if (placement == Placement::out_of_place) return call;
  const collectives::Blocks blocks = collectives::blocks_of(spec_.collective, size_);
  const std::size_t mine = static_cast<std::size_t>(rank_) * call.bytes();
  call.in = blocks.out > blocks.in ? call.out + mine : call.out;
  if (blocks.in > blocks.out) call.out += mine;
  return call;
}

Result<void> Benchmark::prepare(const collectives::Call& call) {
  ++iteration_;
  return checker_.prepare(call, first_position(call.count));
}

/// Returns this rank's microseconds per call. All ranks start together.
Result<double> Benchmark::time_calls(const collectives::Call& call, int times) {
  TRY(control_.barrier(deadline()));
  return TRY(communicator_.time(call, times, options_.op_timeout)) / times;
}

Result<void> Benchmark::time_each(const collectives::Call& call, Measurement& result) {
  const double affordable = std::max(1.0, sample_microseconds / std::max(result.microseconds, 0.1));
  const int samples = std::min({result.iterations, max_samples, static_cast<int>(std::min(affordable, 1e6))});
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(samples));
  TRY(control_.barrier(deadline()));
  for (int i = 0; i < samples; ++i) times.push_back(TRY(communicator_.time(call, 1, options_.op_timeout)));
  std::sort(times.begin(), times.end());
  result.samples = samples;
  for (const auto& [to, quantile] : {std::pair(&result.median, 0.5), {&result.p99, 0.99}, {&result.minimum, 0.0}}) {
    *to = TRY(slowest(at_quantile(times, quantile)));
  }
  return {};
}

Result<int> Benchmark::choose_iterations(double microseconds) {
  const double time = std::max(TRY(slowest(microseconds)), 0.1);
  const double wanted = std::clamp(min_microseconds / time, usual_iterations, max_iterations);
  return static_cast<int>(std::max(1.0, std::min(wanted, max_microseconds / time)));
}

/// Makes one call with new input and checks every element of this rank's result.
Result<std::uint64_t> Benchmark::check_one(const collectives::Call& call) {
  TRY(prepare(call));
  if (rank_ == options_.corrupt_rank) TRY(checker_.corrupt(call));
  TRY(communicator_.perform(call, deadline()));
  const auto wrong = checker_.count_wrong(call, first_position(call.count));
  if (wrong) local_wrong_ += *wrong;
  return wrong;
}

Result<double> Benchmark::slowest(double microseconds) {
  TRY(largest_of_all(control_, {&microseconds, 1}, deadline()));
  return microseconds;
}

Result<std::uint64_t> Benchmark::total(std::uint64_t wrong) {
  const std::span<std::uint64_t> one(&wrong, 1);
  TRY(reduce_all(control_, one, collectives::DataType::uint64, collectives::ReduceOp::sum, deadline()));
  return wrong;
}

}  // namespace ddrun::bench
