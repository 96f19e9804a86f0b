#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "ddrun/collectives/collective.hpp"

namespace ddrun::collectives {

/// What out-of-cache results should be written with.
enum class Stores : unsigned char {
  normal,    ///< in place, or anything that is read again soon
  streaming  ///< past the cache: saves reading lines that are overwritten anyway
};

/// The loops of one type and operation. Counts are elements; arrays need not be aligned.
///
/// half and bfloat16 are computed as float and rounded once, at the end, to nearest, ties to even. Other types are
/// computed as themselves. Inputs are taken in their order, so equal calls give equal bits, whatever the processor
/// (of NaNs only that they are NaN).
struct Kernels {
  /// For i in [begin, end): the reduction of in[0][i], in[1][i], … is written to every out[k][i]. `ranks` is what avg
  /// divides by. Each in[k] is an out or does not overlap any.
  void (*reduce)(const void* const* in, std::size_t inputs, void* const* out, std::size_t outputs, std::size_t begin,
                 std::size_t end, Stores stores, int ranks);

  // The same in steps, for inputs that come one after the other. `acc` has elements of accumulator_type().
  void (*load)(void* acc, const void* in, std::size_t count);                ///< begins with the first input
  void (*accumulate)(void* acc, const void* in, std::size_t count);          ///< one input more
  void (*finish)(void* out, const void* acc, std::size_t count, int ranks);  ///< may be in place if types are equal
};

/// float for half and bfloat16, else the type itself.
[[nodiscard]] DataType accumulator_type(DataType type);

/// Which instructions the loops are made of.
enum class SimdPath : unsigned char { baseline, avx2, avx512 };
[[nodiscard]] std::string_view name_of(SimdPath path);

/// What this processor and this build can do, the fastest last.
[[nodiscard]] const std::vector<SimdPath>& usable_paths();

/// `path` must be a usable one. Without it: the fastest.
[[nodiscard]] const Kernels& kernels(DataType type, ReduceOp op, SimdPath path);
[[nodiscard]] const Kernels& kernels(DataType type, ReduceOp op);

}  // namespace ddrun::collectives
