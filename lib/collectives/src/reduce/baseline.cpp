#define DDRUN_KERNEL_TABLE kernels_baseline
#include "reduce/kernels.hpp"
