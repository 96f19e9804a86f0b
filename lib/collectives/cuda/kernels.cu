// Kernels for device memory: each thread runs its part of sequence_walk.hpp. extern "C", as they are looked up by name;
// the arguments must match lib/collectives/src/gpu/device_memory.cpp.

#include "sequence_walk.hpp"

// With internal linkage its name would have a hash of this file's folder in it.
extern __shared__ std::uint32_t ddrun_shared_table[];

namespace {

using namespace ddrun::collectives::gpu;

__device__ std::uint64_t own_index() { return static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::uint64_t all_threads() { return static_cast<std::uint64_t>(gridDim.x) * blockDim.x; }

/// A copy of the table in the block's shared memory.
__device__ const std::uint32_t* load_table(const std::uint32_t* table, std::uint32_t period) {
  for (std::uint32_t i = threadIdx.x; i < table_words(period); i += blockDim.x) ddrun_shared_table[i] = table[i];
  __syncthreads();
  return ddrun_shared_table;
}

__device__ void add_all(std::uint64_t mine, unsigned long long* total) {
  unsigned long long sum = mine;
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffU, sum, distance);
  if (threadIdx.x % 32 == 0 && sum != 0) atomicAdd(total, sum);
}

}  // namespace

// The number of 512-thread blocks that gpu/device_memory.cpp starts per multiprocessor. Architecture 75 holds only 1024
// threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define DDRUN_BOUNDS __launch_bounds__(512, 2)
#else
#define DDRUN_BOUNDS __launch_bounds__(512, 3)
#endif

#define DDRUN_KERNELS_OF(ELEMENT)                                                                                      \
  extern "C" __global__ void DDRUN_BOUNDS ddrun_fill_##ELEMENT(std::uint8_t* data, std::uint64_t bytes,                \
                                                               const std::uint32_t* table, std::uint32_t period,       \
                                                               std::uint32_t shift, std::uint64_t first) {             \
    fill_part<ELEMENT>(data, bytes, load_table(table, period), Walk{period, shift}, first, own_index(), all_threads());\
  }                                                                                                                    \
  extern "C" __global__ void DDRUN_BOUNDS ddrun_count_wrong_##ELEMENT(                                                 \
      const std::uint8_t* data, std::uint64_t bytes, const std::uint32_t* table, std::uint32_t period,                 \
      std::uint32_t shift, std::uint64_t first, unsigned long long* wrong) {                                           \
    add_all(count_wrong_part<ELEMENT>(data, bytes, load_table(table, period), Walk{period, shift}, first, own_index(), \
                                      all_threads()),                                                                  \
            wrong);                                                                                                    \
  }

DDRUN_KERNELS_OF(1)
DDRUN_KERNELS_OF(2)
DDRUN_KERNELS_OF(4)
DDRUN_KERNELS_OF(8)
