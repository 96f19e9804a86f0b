#include "ddrun/process/startup_pages.hpp"

#include <elf.h>
#include <link.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>

#include "ddrun/base/proc.hpp"

// From the linker: the start of the program in memory.
extern "C" const ElfW(Ehdr) __ehdr_start;

namespace ddrun::process {

bool keeps_replaced_programs(long file_system) {
  constexpr std::uint32_t zfs = 0x2FC12FC1;
  constexpr std::uint32_t local[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,       BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, zfs,
                                     TMPFS_MAGIC,      OVERLAYFS_SUPER_MAGIC, SQUASHFS_MAGIC};
  return std::find(std::begin(local), std::end(local), static_cast<std::uint32_t>(file_system)) != std::end(local);
}

void drop_startup_pages() {
  struct statfs program {};
  if (::statfs("/proc/self/exe", &program) != 0 || !keeps_replaced_programs(program.f_type)) return;
  // A debugger's breakpoints are in copies of such pages.
  if (read_small_file("/proc/self/status").value_or("").find("TracerPid:\t0\n") == std::string::npos) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto base = reinterpret_cast<std::uintptr_t>(&__ehdr_start);
  const auto* const segments = reinterpret_cast<const ElfW(Phdr)*>(base + __ehdr_start.e_phoff);
  std::uintptr_t linked_at = 0;  // address of the first segment in the file
  for (const auto* segment = segments; segment != segments + __ehdr_start.e_phnum; ++segment) {
    if (segment->p_type != PT_LOAD) continue;
    if (segment->p_offset == 0) linked_at = segment->p_vaddr;
    // What is never written, not even by relocations.
    if ((segment->p_flags & PF_W) != 0) continue;
    const std::uintptr_t at = base - linked_at + segment->p_vaddr;
    const std::uintptr_t begin = at & ~(page - 1);
    const std::uintptr_t end = (at + segment->p_memsz) & ~(page - 1);
    if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace ddrun::process
