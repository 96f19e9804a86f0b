#include "memory.hpp"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

Result<ProcessMemory> ProcessMemory::open(pid_t pid) {
  const std::string path = concat("/proc/", pid, "/mem");
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail_errno(Errc::unavailable, path, errno);
  return ProcessMemory(std::move(file));
}

bool ProcessMemory::read(std::uint64_t address, void* to, std::size_t size) const {
  if (address > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) return false;
  return ::pread(file_.get(), to, size, static_cast<off_t>(address)) == static_cast<ssize_t>(size);
}

const CachedMemory::Page* CachedMemory::page(std::uint64_t address) const {
  if (pages_.size() == max_pages) pages_.clear();
  const auto [found, is_new] = pages_.try_emplace(address);
  if (is_new) {
    Page bytes;
    if (memory_.read(address, bytes.data(), bytes.size())) found->second = bytes;
  }
  return found->second ? &*found->second : nullptr;
}

bool CachedMemory::read(std::uint64_t address, void* to, std::size_t size) const {
  auto* out = static_cast<std::byte*>(to);
  while (size > 0) {
    const std::uint64_t within = address % page_size;
    const std::size_t part = std::min<std::size_t>(size, page_size - within);
    const Page* const bytes = page(address - within);
    if (bytes == nullptr) return false;
    std::memcpy(out, bytes->data() + within, part);
    out += part;
    address += part;
    size -= part;
  }
  return true;
}

}  // namespace ddrun::inspect
