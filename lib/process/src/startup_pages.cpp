#include "startup_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

// From the linker: where the program's file begins in memory and where its code ends. All of it is mapped read-only
// and never written, relocations included, so that dropping it loses nothing.
extern "C" const char __executable_start;
extern "C" const char etext;

namespace ddrun::process {

void drop_startup_pages() {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(&__executable_start) & ~(page - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(&etext) & ~(page - 1);
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace ddrun::process
