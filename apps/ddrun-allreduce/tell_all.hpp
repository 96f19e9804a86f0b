#pragma once

#include <span>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::allreduce {

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

}  // namespace ddrun::allreduce
