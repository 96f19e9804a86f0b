#include "gpu/kernels.hpp"

#ifdef DDRUN_GPU_KERNELS
// The file as it is, between two symbols.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".globl ddrun_gpu_kernels\n"
    ".hidden ddrun_gpu_kernels\n"
    "ddrun_gpu_kernels:\n"
    ".incbin \"" DDRUN_GPU_KERNELS
    "\"\n"
    ".popsection\n");
extern "C" const unsigned char ddrun_gpu_kernels[];
#endif

namespace ddrun::collectives {

const void* gpu_kernels_image() {
#ifdef DDRUN_GPU_KERNELS
  return ddrun_gpu_kernels;
#else
  return nullptr;
#endif
}

}  // namespace ddrun::collectives
