#define DDRUN_KERNEL_TABLE kernels_avx2
#include "reduce/kernels.hpp"
