#pragma once

#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

struct KernelTable {
  Kernels of[all_types.size()][all_ops.size()];
};

// One per way of compiling reduce_kernels.hpp.
[[nodiscard]] const KernelTable& kernels_baseline();
[[nodiscard]] const KernelTable& kernels_avx2();
[[nodiscard]] const KernelTable& kernels_avx512();

}  // namespace ddrun::collectives
