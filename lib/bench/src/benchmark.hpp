#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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
  [[nodiscard]] static std::uint64_t of_back_end(const Options& options, std::uint64_t bytes);

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
  Benchmark(const collectives::Connected& connected, const Buffers& buffers, const Options& options, const Case& what);

  /// `bytes` as from sizes(), at most what the back end's buffers hold. Fails when a peer is gone or late.
  [[nodiscard]] Result<Row> run(std::uint64_t bytes);

  /// Wrong elements that this rank itself has seen: counted without any communication.
  [[nodiscard]] std::uint64_t wrong_here() const { return wrong_here_; }

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
  Case what_;
  int rank_;
  int size_;
  std::size_t element_;
  collectives::Checker checker_;
  std::uint64_t iteration_ = 0;
  std::uint64_t wrong_here_ = 0;
};

}  // namespace ddrun::bench
