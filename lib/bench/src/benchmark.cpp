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
  if (auto got = own_.allocate(distance, 2); !got) return got;
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
  auto measured = measure(Placement::out_of_place, row.count);
  if (!measured) return tl::unexpected(measured.error());
  row.out_of_place = *measured;
  measured = measure(Placement::in_place, row.count);
  if (!measured) return tl::unexpected(measured.error());
  row.in_place = *measured;
  return row;
}

Result<Measurement> Benchmark::measure(Placement placement, std::size_t count) {
  Measurement result;
  const collectives::Call call = call_of(placement, count);
  result.unsupported_reason =
      communicator_.unsupported_reason(spec_.collective, spec_.type, spec_.op, placement == Placement::in_place);
  if (!result.unsupported_reason.empty()) return result;
  if (auto ready = prepare(call); !ready) return tl::unexpected(ready.error());
  // The last warmup call is timed alone, to estimate how many iterations fit.
  if (options_.warmup > 1) {
    if (auto warm = time_calls(call, options_.warmup - 1); !warm) return tl::unexpected(warm.error());
  }
  result.iterations = options_.iterations;
  if (options_.warmup > 0 || result.iterations == 0) {
    const auto once = time_calls(call, 1);
    if (!once) return tl::unexpected(once.error());
    if (result.iterations == 0) {
      const auto chosen = choose_iterations(*once);
      if (!chosen) return tl::unexpected(chosen.error());
      result.iterations = *chosen;
    }
  }
  const auto mean = time_calls(call, result.iterations);
  if (!mean) return tl::unexpected(mean.error());
  const auto all = slowest(*mean);
  if (!all) return tl::unexpected(all.error());
  result.microseconds = *all;
  const collectives::Blocks blocks = collectives::blocks_of(spec_.collective, size_);
  const auto bytes = static_cast<double>(call.bytes() * std::max(blocks.in, blocks.out));
  // One rank in place moves no data.
  const bool moves = size_ > 1 || placement == Placement::out_of_place;
  result.algbw = moves ? bytes / result.microseconds / 1e3 : 0;
  result.busbw = result.algbw * bus_bandwidth_factor(spec_.collective, size_);
  if (auto timed = time_each(call, result); !timed) return tl::unexpected(timed.error());
  if (options_.checks != 0 && spec_.collective != collectives::Collective::barrier) {
    std::uint64_t wrong = 0;
    for (int i = 0; i < options_.checks; ++i) {
      const auto once = check_one(call);
      if (!once) return tl::unexpected(once.error());
      wrong += *once;
    }
    const auto everywhere = total(wrong);
    if (!everywhere) return tl::unexpected(everywhere.error());
    result.wrong = *everywhere;
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
  if (auto synced = control_.barrier(deadline()); !synced) return tl::unexpected(synced.error());
  const auto all = communicator_.time(call, times, options_.op_timeout);
  if (!all) return all;
  return *all / times;
}

Result<void> Benchmark::time_each(const collectives::Call& call, Measurement& result) {
  const double affordable = std::max(1.0, sample_microseconds / std::max(result.microseconds, 0.1));
  const int samples = std::min({result.iterations, max_samples, static_cast<int>(std::min(affordable, 1e6))});
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(samples));
  if (auto synced = control_.barrier(deadline()); !synced) return synced;
  for (int i = 0; i < samples; ++i) {
    const auto once = communicator_.time(call, 1, options_.op_timeout);
    if (!once) return tl::unexpected(once.error());
    times.push_back(*once);
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
  const double wanted = std::clamp(min_microseconds / time, usual_iterations, max_iterations);
  return static_cast<int>(std::max(1.0, std::min(wanted, max_microseconds / time)));
}

/// Makes one call with new input and checks every element of this rank's result.
Result<std::uint64_t> Benchmark::check_one(const collectives::Call& call) {
  if (auto ready = prepare(call); !ready) return tl::unexpected(ready.error());
  if (rank_ == options_.corrupt_rank) {
    if (auto done = checker_.corrupt(call); !done) return tl::unexpected(done.error());
  }
  if (auto done = communicator_.perform(call, deadline()); !done) return tl::unexpected(done.error());
  const auto wrong = checker_.count_wrong(call, first_position(call.count));
  if (wrong) local_wrong_ += *wrong;
  return wrong;
}

Result<double> Benchmark::slowest(double microseconds) {
  if (auto done = largest_of_all(control_, {&microseconds, 1}, deadline()); !done) return tl::unexpected(done.error());
  return microseconds;
}

Result<std::uint64_t> Benchmark::total(std::uint64_t wrong) {
  const std::span<std::uint64_t> one(&wrong, 1);
  auto done = reduce_all(control_, one, collectives::DataType::uint64, collectives::ReduceOp::sum, deadline());
  if (!done) return tl::unexpected(done.error());
  return wrong;
}

}  // namespace ddrun::bench
