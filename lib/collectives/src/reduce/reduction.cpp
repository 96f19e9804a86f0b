#include "ddrun/collectives/reduction.hpp"

#include "reduce/tables.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ddrun::collectives {

namespace {

#if defined(__x86_64__)
/// F16C. Not every compiler's __builtin_cpu_supports knows it; its registers are saved if avx2 is supported.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

std::vector<SimdPath> find_paths() {
  std::vector<SimdPath> paths{SimdPath::baseline};
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks that the system saves the registers.
  __builtin_cpu_init();
  const bool half = has_f16c();
  if (half && __builtin_cpu_supports("avx2")) paths.push_back(SimdPath::avx2);
  if (half && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    paths.push_back(SimdPath::avx512);
  }
#endif
  return paths;
}

const KernelTable& table_of(SimdPath path) {
#if defined(__x86_64__)
  if (path == SimdPath::avx512) return kernels_avx512();
  if (path == SimdPath::avx2) return kernels_avx2();
#endif
  (void)path;
  return kernels_baseline();
}

}  // namespace

DataType accumulator_type(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16 ? DataType::float32 : type;
}

std::string_view name_of(SimdPath path) {
  switch (path) {
    case SimdPath::avx2: return "avx2";
    case SimdPath::avx512: return "avx512";
    default: return "baseline";
  }
}

const std::vector<SimdPath>& usable_paths() {
  static const std::vector<SimdPath> paths = find_paths();
  return paths;
}

const Kernels& kernels(DataType type, ReduceOp op, SimdPath path) {
  return table_of(path).of[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)];
}

const Kernels& kernels(DataType type, ReduceOp op) {
  static const KernelTable& fastest = table_of(usable_paths().back());
  return fastest.of[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)];
}

}  // namespace ddrun::collectives
