#pragma once

#include <functional>

#include "ddrun/collectives/all_reduce.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "options.hpp"
#include "results.hpp"

namespace ddrun::allreduce {

/// Runs the sizes one after the other. Every rank makes the same calls; every rank gets the same rows.
class Benchmark {
 public:
  Benchmark(collectives::AllReduce& all_reduce, const Options& options, int rank, int size);

  /// `bytes` as from sizes(), at most what the back end's buffers hold. Fails when a peer is gone or late.
  [[nodiscard]] Result<Row> run(std::uint64_t bytes);

  /// Wrong elements that this rank itself has seen: counted without any communication.
  [[nodiscard]] std::uint64_t wrong_here() const { return wrong_here_; }

 private:
  enum class Placement { out_of_place, in_place };
  [[nodiscard]] Result<Measurement> measure(Placement placement, std::size_t count);
  [[nodiscard]] Result<double> time_sums(Placement placement, std::size_t count, int times);
  [[nodiscard]] Result<int> choose_iterations(double microseconds);
  [[nodiscard]] Result<std::uint64_t> check_one(Placement placement, std::size_t count);
  void prepare(Placement placement, std::size_t count);
  [[nodiscard]] Result<std::vector<float>> gather(float mine);
  [[nodiscard]] Result<double> slowest(double microseconds);
  [[nodiscard]] Result<std::uint64_t> total(std::uint64_t wrong);
  [[nodiscard]] Deadline deadline() const { return Clock::now() + options_.timeout; }

  collectives::AllReduce& all_reduce_;
  const Options& options_;
  int rank_;
  int size_;
  collectives::ExactPattern pattern_;
  std::uint64_t wrong_here_ = 0;
};

}  // namespace ddrun::allreduce
