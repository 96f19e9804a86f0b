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

/// This rank's two arrays for calls: the back end's buffers, or private memory, as of a program that is unaware of back
/// ends. Must outlive users of the spans.
class Buffers {
 public:
  /// The buffer size to request from the communicator.
  [[nodiscard]] static std::uint64_t back_end_bytes(const Options& options, std::uint64_t bytes);

  /// To be called once; `bytes` each. `invalid_argument` for private memory with a back end that needs device memory,
  /// `unavailable` if there is too little memory.
  [[nodiscard]] Result<void> provide(collectives::Communicator& communicator, const Options& options,
                                     std::uint64_t bytes);

  [[nodiscard]] std::span<std::byte> send() const { return send_; }
  [[nodiscard]] std::span<std::byte> recv() const { return recv_; }

 private:
  std::span<std::byte> send_;
  std::span<std::byte> recv_;
  collectives::PrivateMemory own_;
};

// Reductions of numbers over all ranks, in host memory. Called on every rank.

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

/// Bus bandwidth divided by algorithm bandwidth, as defined by nccl-tests (doc/PERFORMANCE.md of NVIDIA/nccl-tests): 2
/// (n - 1) / n for an all-reduce; (n - 1) / n for all_gather, reduce_scatter, gather, scatter and all_to_all; 1 for
/// broadcast, reduce and send_recv. 0 without data transfer: one rank, or a barrier. Algorithm bandwidth is the larger
/// of a rank's (the root's) input and output divided by the time.
[[nodiscard]] double bus_bandwidth_factor(collectives::Collective collective, int ranks);

/// Runs one case at given sizes. Called on every rank, with equal results on all.
class Benchmark {
 public:
  /// All references must outlive the object.
  Benchmark(const collectives::Connected& connected, const Buffers& buffers, const Options& options, const Case& spec);

  /// `bytes` comes from sizes() and must fit the buffers. Fails if a peer is lost or a call times out.
  [[nodiscard]] Result<Row> run(std::uint64_t bytes);

  /// Wrong elements counted by this rank itself, without communication.
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
  /// Differs for each size and iteration, and with it the data.
  [[nodiscard]] std::uint64_t first_position(std::size_t count) const { return count * 7 + iteration_; }
  [[nodiscard]] Result<double> slowest(double microseconds);
  [[nodiscard]] Result<std::uint64_t> total(std::uint64_t wrong);
  [[nodiscard]] Deadline deadline() const { return Clock::now() + options_.op_timeout; }

  collectives::Communicator& communicator_;
  collectives::Communicator& control_;
  const Buffers& buffers_;
  const Options& options_;
  Case spec_;
  int rank_;
  int size_;
  std::size_t element_;
  collectives::Checker checker_;
  std::uint64_t iteration_ = 0;
  std::uint64_t local_wrong_ = 0;
};

/// The cases to measure with `ranks` ranks, ordered by collective, type, operation and root.
[[nodiscard]] std::vector<Case> cases(const Options& options, int ranks);

/// The sizes in bytes, ascending, rounded down to whole elements (of a block for each rank where the collective has
/// these), without 0. A barrier has only size 0.
[[nodiscard]] std::vector<std::uint64_t> sizes(const Options& options, std::uint64_t max_bytes, const Case& spec,
                                               int ranks);

/// Rows with case, `bytes` and `count` only. None with --pairs.
[[nodiscard]] std::vector<Row> planned_rows(const Options& options, std::uint64_t max_bytes, int ranks);

/// Options that must be equal on all ranks, as "name=value" fields.
[[nodiscard]] std::string must_agree(const Options& options);

/// The largest size, for `ranks` ranks on this machine with two buffers each.
///
/// If requested: that size, or `invalid_argument` if it exceeds the free memory of the machine or the cgroup, to
/// prevent an out-of-memory kill. Otherwise 128 MiB, or less so that all buffers together stay below half of the free
/// memory and below 2 GiB.
[[nodiscard]] Result<std::uint64_t> max_bytes(const Options& options, int ranks);

}  // namespace ddrun::bench
