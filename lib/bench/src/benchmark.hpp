#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ddrun/bench/options.hpp"
#include "ddrun/collectives/checker.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/memory.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// The two arrays of this rank that calls work on: the back end's, or memory that no other process sees, as that of a
/// program that knows nothing of back ends. Outlives who uses the spans.
class Buffers {
 public:
  /// What the communicator has to be asked for.
  [[nodiscard]] static std::uint64_t back_end_bytes(const Options& options, std::uint64_t bytes);

  /// Once; `bytes` each. `invalid_argument` if the back end does not work on the host's memory and private memory is
  /// wanted, `unavailable` if there is too little.
  [[nodiscard]] Result<void> provide(collectives::Communicator& communicator, const Options& options,
                                     std::uint64_t bytes);

  [[nodiscard]] std::span<std::byte> send() const { return send_; }
  [[nodiscard]] std::span<std::byte> recv() const { return recv_; }

 private:
  std::span<std::byte> send_;
  std::span<std::byte> recv_;
  collectives::PrivateMemory own_;
};

// Numbers of all ranks made one, in the program's own memory, by all ranks at the same time.

template <class Number>
[[nodiscard]] Result<void> reduce_all(collectives::Communicator& control, std::span<Number> numbers,
                                      collectives::DataType type, collectives::ReduceOp op, Deadline deadline) {
  const auto bytes = std::as_writable_bytes(numbers);
  return control.all_reduce(bytes, bytes, type, op, deadline);
}

[[nodiscard]] inline Result<void> largest_of_all(collectives::Communicator& control, std::span<double> numbers,
                                                 Deadline deadline) {
  return reduce_all(control, numbers, collectives::DataType::float64, collectives::ReduceOp::max, deadline);
}

[[nodiscard]] inline Result<void> sum_of_all(collectives::Communicator& control, std::span<double> numbers,
                                             Deadline deadline) {
  return reduce_all(control, numbers, collectives::DataType::float64, collectives::ReduceOp::sum, deadline);
}

/// Bus bandwidth divided by algorithm bandwidth for `ranks` ranks, as nccl-tests defines it (doc/PERFORMANCE.md of
/// NVIDIA/nccl-tests): 2 (n - 1) / n for an all-reduce; (n - 1) / n for all_gather, reduce_scatter, gather, scatter and
/// all_to_all; 1 for broadcast, reduce and send_recv. 0 where nothing has to travel: one rank, or a barrier.
/// Algorithm bandwidth is the larger of a rank's (the root's) input and output divided by the time.
[[nodiscard]] double bus_bandwidth_factor(collectives::Collective collective, int ranks);

/// Runs one case, size after size. Every rank makes the same calls; every rank gets the same rows.
class Benchmark {
 public:
  /// What the references name outlives it.
  Benchmark(const collectives::Connected& connected, const Buffers& buffers, const Options& options,
            const Case& bench_case);

  /// `bytes` as from sizes(), at most what the back end's buffers hold. Fails when a peer is gone or late.
  [[nodiscard]] Result<Row> run(std::uint64_t bytes);

  /// Wrong elements that this rank itself has seen: counted without any communication.
  [[nodiscard]] std::uint64_t local_wrong() const { return local_wrong_; }

 private:
  enum class Placement { out_of_place, in_place };
  [[nodiscard]] Result<Measurement> measure(Placement placement, std::size_t count);
  [[nodiscard]] Result<double> time_calls(const collectives::Call& call, int times);
  [[nodiscard]] Result<void> time_each(const collectives::Call& call, Measurement& result);
  [[nodiscard]] Result<int> choose_iterations(double microseconds);
  [[nodiscard]] Result<std::uint64_t> check_one(const collectives::Call& call);
  [[nodiscard]] Result<void> prepare(const collectives::Call& call);
  [[nodiscard]] collectives::Call call_of(Placement placement, std::size_t count);
  /// Changes with size and iteration, so that no two of them have the same data.
  [[nodiscard]] std::uint64_t first_position(std::size_t count) const { return count * 7 + iteration_; }
  [[nodiscard]] Result<double> slowest(double microseconds);
  [[nodiscard]] Result<std::uint64_t> total(std::uint64_t wrong);
  [[nodiscard]] Deadline deadline() const { return Clock::now() + options_.op_timeout; }

  collectives::Communicator& communicator_;
  collectives::Communicator& control_;
  const Buffers& buffers_;
  const Options& options_;
  Case bench_case_;
  int rank_;
  int size_;
  std::size_t element_;
  collectives::Checker checker_;
  std::uint64_t iteration_ = 0;
  std::uint64_t local_wrong_ = 0;
};

// What is run: cases and sizes.

/// What is to be measured by `ranks` ranks, in this order: collectives, of each its types, operations and roots.
[[nodiscard]] std::vector<Case> cases(const Options& options, int ranks);

/// The sizes to run, ascending: bytes, rounded down to whole elements for each of `ranks` ranks where there is a block
/// for each, and at least one of these. A barrier has the size 0 alone.
[[nodiscard]] std::vector<std::uint64_t> sizes(const Options& options, std::uint64_t max_bytes, const Case& bench_case,
                                               int ranks);

/// Rows for all of them without measurements: `what`, `bytes` and `count`. Pairs have none.
[[nodiscard]] std::vector<Row> planned_rows(const Options& options, std::uint64_t max_bytes, int ranks);

/// What has to be equal on all ranks, as words "name=value".
[[nodiscard]] std::string must_agree(const Options& options);

/// The last size to run, for `ranks` ranks on this machine with two buffers each.
///
/// Asked for: that, or `invalid_argument` if the machine (or our cgroup) does not have the memory: better than an
/// out-of-memory kill of some innocent. Not asked for: 128 MiB, but all buffers together stay below half of what
/// is free and below 2 GiB, so that many ranks on a small machine still are a quick test.
[[nodiscard]] Result<std::uint64_t> max_bytes(const Options& options, int ranks);

}  // namespace ddrun::bench
