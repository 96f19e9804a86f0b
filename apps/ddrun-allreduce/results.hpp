#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::allreduce {

/// One way of reducing (out of place or in place) at one size, over all ranks. Times are those of the slowest rank.
struct Measurement {
  int iterations = 0;
  double microseconds = 0;  ///< per operation: the mean over the iterations
  double median = 0;        ///< microseconds; this and the next two: of `samples` timed one by one
  double p99 = 0;
  double minimum = 0;
  int samples = 0;
  double algbw = 0;                    ///< GB/s: bytes / time
  double busbw = 0;                    ///< GB/s: algbw * bus_bandwidth_factor()
  std::optional<std::uint64_t> wrong;  ///< elements, over all ranks; none: not checked
  std::string lacking;                 ///< why it was not run: the back end cannot; empty: it was
};

/// What is measured at one size after the other.
struct Case {
  collectives::Collective collective = collectives::Collective::all_reduce;
  collectives::DataType type = collectives::DataType::float32;
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  int root = 0;
};

struct Row {
  Case what;
  std::uint64_t bytes = 0;  ///< the larger of a rank's (the root's) input and output
  std::uint64_t count = 0;  ///< elements of a block
  Measurement out_of_place;
  Measurement in_place;
};

/// What is known before the first operation.
struct Setting {
  int size = 1;
  std::string backend;
  std::string note;  ///< why it is that back end, or another surprise; empty: none
  std::vector<collectives::Member> members;
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = 0;
  std::string collective;  ///< its name, or "all"
  std::string type;        ///< the same
  std::string op;
};

struct Summary {
  std::vector<Row> rows;
  std::uint64_t wrong = 0;
  double mean_busbw = 0;  ///< over all measurements
  std::string error;      ///< why the run ended early; empty: it did not
};

[[nodiscard]] Summary summarize(std::vector<Row> rows, std::string error);

}  // namespace ddrun::allreduce
