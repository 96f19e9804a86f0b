#pragma once

#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

struct KernelTable {
  Kernels of[all_types.size()][all_ops.size()];
};

// One per compilation of reduce/kernels.hpp.
[[nodiscard]] const KernelTable& kernels_baseline();
[[nodiscard]] const KernelTable& kernels_avx2();
[[nodiscard]] const KernelTable& kernels_avx512();

}  // namespace ddrun::collectives
