#pragma once

#include <cstddef>
#include <span>

namespace ddrun::collectives {

/// What out-of-cache results should be written with.
enum class Stores {
  normal,    ///< in place, or anything that is read again soon
  streaming  ///< past the cache: saves reading lines that are overwritten anyway
};

/// For i in [begin, end): the sum over `in` of in[k][i], in that order, written to every out[k][i].
/// Each in[k] is out[k] or does not overlap any out.
void sum_to_all(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end,
                Stores stores);

/// out[i] = a[i] + b[i]; `out` may be `a` or `b`.
void add(float* out, const float* a, const float* b, std::size_t count);

}  // namespace ddrun::collectives
