#include "ddrun/worker_env/linked_mpi.hpp"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::worker_env {

namespace {

// More than any program has; a file that claims more is not read to the end.
constexpr std::size_t most_headers = 128;
constexpr std::size_t most_entries = 4096;
constexpr std::size_t longest_name = 255;

/// All of `size` bytes, or false.
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
  std::vector<Elf64_Phdr> headers(std::min<std::size_t>(head.e_phnum, most_headers));
  if (!read_at(fd, head.e_phoff, headers.data(), headers.size() * sizeof(Elf64_Phdr))) return {};
  return headers;
}

/// Where in the file lies what is loaded to `address`.
std::optional<std::uint64_t> offset_of(const std::vector<Elf64_Phdr>& headers, std::uint64_t address) {
  for (const Elf64_Phdr& part : headers) {
    if (part.p_type != PT_LOAD || address < part.p_vaddr || address - part.p_vaddr >= part.p_filesz) continue;
    const std::uint64_t inside = address - part.p_vaddr;
    if (part.p_offset > std::numeric_limits<std::uint64_t>::max() - inside) return std::nullopt;
    return part.p_offset + inside;
  }
  return std::nullopt;
}

/// Open MPI's and Intel's libmpi.so.40, MPICH's libmpich.so.12, libmpi_cxx.so.40, libmpi_gnu_112.so.12 ...
bool is_mpi(std::string_view library) {
  for (const std::string_view start : {"libmpi.so", "libmpich", "libmpi_", "libmpicxx", "libmpifort"}) {
    if (library.starts_with(start)) return true;
  }
  return false;
}

}  // namespace

std::string linked_mpi(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return {};
  const auto headers = read_headers(fd.get());
  const auto dynamic =
      std::find_if(headers.begin(), headers.end(), [](const Elf64_Phdr& part) { return part.p_type == PT_DYNAMIC; });
  if (dynamic == headers.end()) return {};
  std::vector<Elf64_Dyn> entries(std::min<std::uint64_t>(dynamic->p_filesz / sizeof(Elf64_Dyn), most_entries));
  if (!read_at(fd.get(), dynamic->p_offset, entries.data(), entries.size() * sizeof(Elf64_Dyn))) return {};
  entries.erase(
      std::find_if(entries.begin(), entries.end(), [](const Elf64_Dyn& entry) { return entry.d_tag == DT_NULL; }),
      entries.end());

  std::uint64_t names_size = 0;
  std::optional<std::uint64_t> names;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_STRTAB) names = offset_of(headers, entry.d_un.d_ptr);
    if (entry.d_tag == DT_STRSZ) names_size = entry.d_un.d_val;
  }
  if (!names || *names > std::numeric_limits<std::uint64_t>::max() - names_size) return {};
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag != DT_NEEDED || entry.d_un.d_val >= names_size) continue;
    char name[longest_name + 1] = {};
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(longest_name, names_size - entry.d_un.d_val));
    if (read_at(fd.get(), *names + entry.d_un.d_val, name, size) && is_mpi(name)) return name;
  }
  return {};
}

}  // namespace ddrun::worker_env
