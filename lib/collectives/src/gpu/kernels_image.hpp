#pragma once

namespace ddrun::collectives {

/// cuda/kernels.cu as nvcc has compiled it, for cuModuleLoadData(); null in a build without nvcc.
[[nodiscard]] const void* gpu_kernels_image();

}  // namespace ddrun::collectives
