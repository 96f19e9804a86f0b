#define DDRUN_KERNEL_TABLE kernels_avx512
#include "reduce/kernels.hpp"
