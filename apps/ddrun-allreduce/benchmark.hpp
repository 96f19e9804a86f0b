#pragma once

#include <span>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "options.hpp"
#include "results.hpp"

namespace ddrun::allreduce {

/// Runs one type and operation, size after size. Every rank makes the same calls; every rank gets the same rows.
class Benchmark {
 public:
  Benchmark(collectives::Communicator& communicator, const Options& options, int rank, int size,
            collectives::DataType type, collectives::ReduceOp op);

  /// `bytes` as from sizes(), at most what the back end's buffers hold. Fails when a peer is gone or late.
  [[nodiscard]] Result<Row> run(std::uint64_t bytes);

  /// Wrong elements that this rank itself has seen: counted without any communication.
  [[nodiscard]] std::uint64_t wrong_here() const { return wrong_here_; }

 private:
  enum class Placement { out_of_place, in_place };
  [[nodiscard]] Result<Measurement> measure(Placement placement, std::size_t count);
  [[nodiscard]] Result<double> time_calls(Placement placement, std::size_t count, int times);
  [[nodiscard]] Result<void> time_each(Placement placement, std::size_t count, Measurement& result);
  [[nodiscard]] Result<int> choose_iterations(double microseconds);
  [[nodiscard]] Result<std::uint64_t> check_one(Placement placement, std::size_t count);
  void prepare(Placement placement, std::size_t count);
  [[nodiscard]] Result<void> reduce(Placement placement, std::size_t count, Deadline deadline);
  [[nodiscard]] std::span<std::byte> input(Placement placement, std::size_t count);
  [[nodiscard]] std::span<std::byte> output(std::size_t count);
  /// Changes with size and iteration, so that no two of them have the same data.
  [[nodiscard]] std::uint64_t first_position(std::size_t count) const { return count * 7 + iteration_; }
  [[nodiscard]] Result<double> slowest(double microseconds);
  [[nodiscard]] Result<std::uint64_t> total(std::uint64_t wrong);
  [[nodiscard]] Deadline deadline() const { return Clock::now() + options_.timeout; }

  collectives::Communicator& communicator_;
  const Options& options_;
  int rank_;
  int size_;
  collectives::DataType type_;
  collectives::ReduceOp op_;
  std::size_t element_;
  collectives::ExactPattern pattern_;
  std::uint64_t iteration_ = 0;
  std::uint64_t wrong_here_ = 0;
};

}  // namespace ddrun::allreduce
