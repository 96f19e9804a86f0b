#include "memory.hpp"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

namespace {

constexpr unsigned max_segments = 64;
constexpr unsigned max_dynamic_entries = 256;
/// Symbols with the same hash, or in the same chain.
constexpr unsigned max_chain = 4096;
constexpr std::size_t max_name = 255;

std::uint32_t gnu_hash_of(std::string_view name) {
  std::uint32_t hash = 5381;
  for (const char c : name) hash = hash * 33 + static_cast<unsigned char>(c);
  return hash;
}

}  // namespace

std::optional<ElfImage> ElfImage::read(const Memory& memory, std::uint64_t base) {
  const auto header = memory.get<Elf64_Ehdr>(base);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  ElfImage image(memory);
  std::optional<std::uint64_t> first_load;
  Elf64_Phdr dynamic{};
  for (unsigned i = 0; i < std::min<unsigned>(header->e_phnum, max_segments); ++i) {
    const auto segment = memory.get<Elf64_Phdr>(base + header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!segment) return std::nullopt;
    if (segment->p_type == PT_LOAD && !first_load) first_load = segment->p_vaddr - segment->p_offset;
    if (segment->p_type == PT_GNU_EH_FRAME) image.eh_frame_header_ = segment->p_vaddr;
    if (segment->p_type == PT_DYNAMIC) dynamic = *segment;
  }
  if (!first_load) return std::nullopt;
  image.bias_ = base - *first_load;
  if (image.eh_frame_header_ != 0) image.eh_frame_header_ += image.bias_;
  if (dynamic.p_memsz != 0) image.read_dynamic(dynamic.p_vaddr + image.bias_, dynamic.p_memsz);
  return image;
}

void ElfImage::read_dynamic(std::uint64_t address, std::uint64_t size) {
  const std::uint64_t count = std::min<std::uint64_t>(size / sizeof(Elf64_Dyn), max_dynamic_entries);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto entry = memory_->get<Elf64_Dyn>(address + i * sizeof(Elf64_Dyn));
    if (!entry || entry->d_tag == DT_NULL) return;
    // glibc's loader has added the bias to these in memory, others have not.
    const std::uint64_t at = entry->d_un.d_ptr < bias_ ? entry->d_un.d_ptr + bias_ : entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols_ = at;
    if (entry->d_tag == DT_STRTAB) strings_ = at;
    if (entry->d_tag == DT_GNU_HASH) gnu_hash_ = at;
  }
}

std::uint64_t ElfImage::symbol(std::string_view name) const {
  if (symbols_ == 0 || strings_ == 0 || gnu_hash_ == 0 || name.size() > max_name) return 0;
  const auto header = memory_->get<std::array<std::uint32_t, 4>>(gnu_hash_);
  if (!header || (*header)[0] == 0) return 0;
  const auto [buckets, first_symbol, bloom_words, bloom_shift] = *header;
  const std::uint64_t bucket_table = gnu_hash_ + sizeof *header + std::uint64_t{bloom_words} * 8;
  const std::uint64_t chain_table = bucket_table + std::uint64_t{buckets} * 4;
  const std::uint32_t hash = gnu_hash_of(name);
  const auto first = memory_->get<std::uint32_t>(bucket_table + std::uint64_t{hash % buckets} * 4);
  if (!first || *first < first_symbol) return 0;
  for (std::uint64_t index = *first; index < *first + std::uint64_t{max_chain}; ++index) {
    const auto link = memory_->get<std::uint32_t>(chain_table + (index - first_symbol) * 4);
    if (!link) return 0;
    if ((*link | 1U) == (hash | 1U)) {
      if (const std::uint64_t value = value_if_named(index, name); value != 0) return value;
    }
    if ((*link & 1U) != 0) return 0;
  }
  return 0;
}

std::uint64_t ElfImage::value_if_named(std::uint64_t index, std::string_view name) const {
  const auto symbol = memory_->get<Elf64_Sym>(symbols_ + index * sizeof(Elf64_Sym));
  if (!symbol || symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0) return 0;
  std::array<char, max_name + 1> text{};
  if (!memory_->read(strings_ + symbol->st_name, text.data(), name.size() + 1)) return 0;
  return std::string_view(text.data(), name.size()) == name && text[name.size()] == '\0' ? symbol->st_value + bias_ : 0;
}

}  // namespace ddrun::inspect
