#include "elf_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

namespace ddrun::worker_env {

namespace {

// Above any real program; a file that claims more is read up to this limit.
constexpr std::size_t max_headers = 128;
constexpr std::size_t max_entries = 4096;
constexpr std::size_t max_string_bytes = 16UL * 1024;

/// The file offset of a virtual address.
std::optional<std::uint64_t> offset_of(const std::vector<Elf64_Phdr>& headers, std::uint64_t address) {
  for (const Elf64_Phdr& part : headers) {
    if (part.p_type != PT_LOAD || address < part.p_vaddr || address - part.p_vaddr >= part.p_filesz) continue;
    const std::uint64_t inside = address - part.p_vaddr;
    if (part.p_offset > std::numeric_limits<std::uint64_t>::max() - inside) return std::nullopt;
    return part.p_offset + inside;
  }
  return std::nullopt;
}

}  // namespace

bool read_at(int fd, std::uint64_t at, void* to, std::size_t size) {
  if (at > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - size) return false;
  return ::pread(fd, to, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size);
}

std::vector<Elf64_Phdr> read_headers(int fd) {
  Elf64_Ehdr head;
  if (!read_at(fd, 0, &head, sizeof head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return {};
  constexpr unsigned char own_order = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != own_order) return {};
  if (head.e_phentsize != sizeof(Elf64_Phdr)) return {};
  std::vector<Elf64_Phdr> headers(std::min<std::size_t>(head.e_phnum, max_headers));
  if (!read_at(fd, head.e_phoff, headers.data(), headers.size() * sizeof(Elf64_Phdr))) return {};
  return headers;
}

std::vector<std::string> dynamic_strings(int fd, Elf64_Sxword tag) {
  const auto headers = read_headers(fd);
  const auto dynamic =
      std::find_if(headers.begin(), headers.end(), [](const Elf64_Phdr& part) { return part.p_type == PT_DYNAMIC; });
  if (dynamic == headers.end()) return {};
  std::vector<Elf64_Dyn> entries(std::min<std::uint64_t>(dynamic->p_filesz / sizeof(Elf64_Dyn), max_entries));
  if (!read_at(fd, dynamic->p_offset, entries.data(), entries.size() * sizeof(Elf64_Dyn))) return {};
  entries.erase(
      std::find_if(entries.begin(), entries.end(), [](const Elf64_Dyn& entry) { return entry.d_tag == DT_NULL; }),
      entries.end());

  std::uint64_t table_size = 0;
  std::optional<std::uint64_t> table;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_STRTAB) table = offset_of(headers, entry.d_un.d_ptr);
    if (entry.d_tag == DT_STRSZ) table_size = entry.d_un.d_val;
  }
  if (!table || *table > std::numeric_limits<std::uint64_t>::max() - table_size) return {};
  std::vector<std::string> strings;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag != tag || entry.d_un.d_val >= table_size) continue;
    std::string text(std::min<std::uint64_t>(max_string_bytes, table_size - entry.d_un.d_val), '\0');
    if (read_at(fd, *table + entry.d_un.d_val, text.data(), text.size())) strings.emplace_back(text.c_str());
  }
  return strings;
}

}  // namespace ddrun::worker_env
