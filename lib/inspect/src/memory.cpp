#include "memory.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "ddrun/base/proc.hpp"
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

namespace {

constexpr std::size_t max_maps_bytes = std::size_t{16} << 20U;

/// Takes a number and the character after it off `text`.
template <class T>
bool take_number(std::string_view& text, T& number, int base, char after) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end == text.data() + text.size() || *end != after) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

std::vector<Mapping> parse_mappings(std::string_view text, pid_t pid) {
  std::vector<Mapping> mappings;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    Mapping mapping;
    unsigned major = 0;
    unsigned minor = 0;
    ino_t inode = 0;
    if (!take_number(line, mapping.start, 16, '-') || !take_number(line, mapping.end, 16, ' ') || line.size() < 5) {
      continue;
    }
    mapping.executable = line[2] == 'x';
    line.remove_prefix(5);
    if (!take_number(line, mapping.offset, 16, ' ') || !take_number(line, major, 16, ':') ||
        !take_number(line, minor, 16, ' ') || !take_number(line, inode, 10, ' ')) {
      continue;
    }
    const std::size_t path = line.find_first_not_of(' ');
    if (path == std::string_view::npos || (!mapping.executable && mapping.offset != 0)) continue;
    line.remove_prefix(path);
    if (!mappings.empty() && mappings.back().module->path == line) mapping.module = mappings.back().module;
    else
      mapping.module = std::make_shared<const Module>(Module{std::string(line), pid, ::makedev(major, minor), inode});
    mappings.push_back(std::move(mapping));
  }
  return mappings;
}

std::vector<Mapping> read_mappings(pid_t pid) {
  const auto text = read_small_file(concat("/proc/", pid, "/maps"), max_maps_bytes);
  return text ? parse_mappings(*text, pid) : std::vector<Mapping>();
}

const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uint64_t address) {
  const auto after = std::ranges::upper_bound(mappings, address, {}, &Mapping::start);
  if (after == mappings.begin() || address >= std::prev(after)->end) return nullptr;
  return &*std::prev(after);
}

std::uint64_t base_of(const std::vector<Mapping>& mappings, const Mapping& mapping) {
  const Mapping* first = &mapping;
  while (first->offset != 0 && first != mappings.data() && (first - 1)->module == mapping.module) --first;
  return first->offset == 0 ? first->start : 0;
}

}  // namespace ddrun::inspect
