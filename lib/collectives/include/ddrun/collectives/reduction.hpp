#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "ddrun/collectives/collective.hpp"

namespace ddrun::collectives {

/// How results are stored.
enum class Stores : unsigned char {
  normal,    ///< ordinary stores: in place, or if the result is read again soon
  streaming  ///< non-temporal stores, which save reading the overwritten lines
};

/// Reduction loops of one type and operation. Counts are in elements; arrays need not be aligned. Thread-safe.
///
/// half and bfloat16 are computed in float and rounded once at the end, to nearest even. Inputs are reduced in order,
/// so equal calls give equal bits on every processor (except for the payload of NaNs).
struct Kernels {
  /// For i in [begin, end): writes the reduction of in[0][i], in[1][i], … to every out[k][i]. `ranks` is the divisor of
  /// avg. Each in[k] either equals an output or overlaps none.
  void (*reduce)(const void* const* in, std::size_t inputs, void* const* out, std::size_t outputs, std::size_t begin,
                 std::size_t end, Stores stores, int ranks);

  // The same in steps, for inputs that arrive one after the other. `acc` has elements of accumulator_type().
  void (*load)(void* acc, const void* in, std::size_t count);                ///< initialise with the first input
  void (*accumulate)(void* acc, const void* in, std::size_t count);          ///< add one input
  void (*finish)(void* out, const void* acc, std::size_t count, int ranks);  ///< may be in place if the types are equal
};

/// float for half and bfloat16, else `type`.
[[nodiscard]] DataType accumulator_type(DataType type);

/// Instruction set of the loops.
enum class SimdPath : unsigned char { baseline, avx2, avx512 };
[[nodiscard]] std::string_view name_of(SimdPath path);

/// The paths that this build and this processor support, fastest last.
[[nodiscard]] const std::vector<SimdPath>& usable_paths();

/// The loops for `path`, one of usable_paths(); by default the fastest.
[[nodiscard]] const Kernels& kernels(DataType type, ReduceOp op, SimdPath path);
[[nodiscard]] const Kernels& kernels(DataType type, ReduceOp op);

}  // namespace ddrun::collectives
