#include "program_format.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/worker_env/program_path.hpp"

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

std::string machine_name(unsigned machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_386: return "32-bit x86";
    case EM_AARCH64: return "arm64";
    case EM_ARM: return "32-bit ARM";
    case EM_PPC64: return "ppc64";
    case EM_RISCV: return "RISC-V";
    case EM_S390: return "s390x";
    default: return concat("machine type ", machine);
  }
}

/// Whether binfmt_misc has handlers for foreign formats (qemu, wine …): the format check is then inconclusive.
bool has_foreign_format_handlers() {
  return std::ranges::any_of(names_in("/proc/sys/fs/binfmt_misc"),
                             [](const std::string& name) { return name != "register" && name != "status"; });
}

tl::unexpected<Error> cannot_run(std::string_view name, std::string_view why) {
  return fail(Errc::not_executable, concat(name, ": ", why));
}

Result<void> check_script(std::string_view name, std::string_view head, std::string_view path, const std::string& cwd) {
  constexpr std::string_view blanks = " \t";
  std::string_view line = head.substr(2, head.substr(2).find('\n'));
  const bool dos = line.ends_with('\r');
  if (dos) line.remove_suffix(1);
  line = trim(line);
  const std::size_t blank = line.find_first_of(blanks);
  const std::string interpreter(line.substr(0, blank));
  const std::string argument(blank == std::string_view::npos ? std::string_view() : trim(line.substr(blank)));
  if (interpreter.empty()) return cannot_run(name, "its first line, '#!', names no interpreter");
  if (dos) {
    return cannot_run(name,
                      "its first line ends as on Windows, so its interpreter cannot be found; convert the file "
                      "with dos2unix or sed -i 's/\\r$//'");
  }
  // The kernel resolves the interpreter relative to the working directory, without PATH.
  const std::string file = interpreter.front() == '/' ? interpreter : concat(cwd, "/", interpreter);
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) {
    return cannot_run(name, concat("its first line asks for ", interpreter, ", which does not exist"));
  }
  if (!S_ISREG(info.st_mode) || !is_accessible(file, X_OK)) {
    return cannot_run(name, concat("its first line asks for ", interpreter, ", which is not executable"));
  }
  const bool by_env = interpreter == "/usr/bin/env" || interpreter == "/bin/env";
  const bool one_word = !argument.empty() && argument.find_first_of("-= \t") == std::string::npos;
  if (by_env && one_word) {
    if (const auto found = find_program(argument, path, cwd); !found && found.error().code == Errc::not_found) {
      return fail(Errc::not_found, concat(name, ": its first line asks for ", argument, ", which is not in PATH"));
    }
  }
  return {};
}

/// The dynamic loader of a 64-bit ELF file of this byte order; empty if there is none.
std::string dynamic_loader(int fd) {
  for (const Elf64_Phdr& part : read_headers(fd)) {
    if (part.p_type != PT_INTERP) continue;
    char text[512] = {};
    const std::size_t size = std::min<std::size_t>(part.p_filesz, sizeof text - 1);
    return read_at(fd, part.p_offset, text, size) ? text : "";
  }
  return {};
}

Result<void> check_elf(std::string_view name, int fd, std::string_view head) {
  if (head.size() < sizeof(Elf32_Ehdr)) return cannot_run(name, "the file is cut off: an ELF header and nothing more");
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(head[at]); };
  const bool little = byte(EI_DATA) == ELFDATA2LSB;
  const auto half = [&](std::size_t at) {
    return little ? byte(at) | byte(at + 1) << 8U : byte(at + 1) | byte(at) << 8U;
  };
  const unsigned type = half(offsetof(Elf64_Ehdr, e_type));
  const unsigned machine = half(offsetof(Elf64_Ehdr, e_machine));
  if (type != ET_EXEC && type != ET_DYN) {
    return cannot_run(name, type == ET_REL ? "an object file, not a program: link it first" : "not a program");
  }
  const bool own_order = little == (std::endian::native == std::endian::little);
  const bool runs_here = own_order && (machine == own_machine || machine == own_machine_32);
  if (own_machine != EM_NONE && !runs_here) {
    if (has_foreign_format_handlers()) return {};
    return cannot_run(name,
                      concat("built for ", machine_name(machine), ", but this machine is ", machine_name(own_machine)));
  }
  const std::string loader = dynamic_loader(fd);
  if (!loader.empty() && loader.front() == '/' && ::access(loader.c_str(), F_OK) != 0) {
    return cannot_run(name, concat("needs the dynamic loader ", loader,
                                   ", which this machine does not have (built for another distribution?)"));
  }
  return {};
}

bool looks_like_text(std::string_view head) {
  return std::none_of(head.begin(), head.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u < 0x20 && u != '\n' && u != '\t' && u != '\r' && u != '\f' && u != 0x1b;
  });
}

/// The second half of the magic number is constant in all versions.
bool is_compiled_python(std::string_view head) {
  return head.size() > 16 && head.substr(2, 2) == "\r\n" && !looks_like_text(head);
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

bool is_accessible(const std::string& file, int mode) {
  if (::faccessat(AT_FDCWD, file.c_str(), mode, AT_EACCESS) == 0) return true;
  // Not an answer about a file to read or execute: a sandbox refuses the system call (faccessat2), which it does not
  // know.
  return errno == EPERM && ::access(file.c_str(), mode) == 0;
}

FileFormat file_format(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char buffer[512];
  const ssize_t size = fd ? ::pread(fd.get(), buffer, sizeof buffer, 0) : -1;
  if (size < 0) return FileFormat::other;
  const std::string_view head(buffer, static_cast<std::size_t>(size));
  if (head.starts_with("PK\3\4") || is_compiled_python(head)) return FileFormat::python_code;
  if (head.starts_with("#!")) {
    const bool python = head.substr(0, head.find('\n')).find("python") != std::string_view::npos;
    return python ? FileFormat::python_script : FileFormat::other;
  }
  return looks_like_text(head) ? FileFormat::text : FileFormat::other;
}

Result<void> check_program_format(std::string_view name, const std::string& file, std::string_view path,
                                  const std::string& cwd) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return {};
  char buffer[512];
  const ssize_t size = ::pread(fd.get(), buffer, sizeof buffer, 0);
  if (size < 0) return {};
  const std::string_view head(buffer, static_cast<std::size_t>(size));
  if (head.empty()) return cannot_run(name, "the file is empty");
  if (head.starts_with("#!")) return check_script(name, head, path, cwd);
  if (head.starts_with(ELFMAG)) return check_elf(name, fd.get(), head);
  if (looks_like_text(head)) {
    return cannot_run(name, name.ends_with(".py")
                                ? "exec format error: a script without a '#!' line; leave out --no-python, or make "
                                  "'#!/usr/bin/env python3' its first line"
                                : "exec format error: a script without a '#!' line; make '#!/bin/sh', or what runs "
                                  "it, its first line; for a Python program give --run-path");
  }
  if (has_foreign_format_handlers()) return {};
  return cannot_run(name, "exec format error: neither a program for this machine nor a script");
}

// ---- MPI library

namespace {

/// Open MPI's libmpi.so.40, MPICH's and Intel's libmpi.so.12, libmpich.so.12, libmpi_cxx.so.40, libmpi_gnu_112.so.12.
bool is_mpi(std::string_view library) {
  for (const std::string_view start : {"libmpi.so", "libmpich", "libmpi_", "libmpicxx", "libmpifort"}) {
    if (library.starts_with(start)) return true;
  }
  return false;
}

}  // namespace

std::string linked_mpi(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const auto needed = dynamic_strings(fd.get(), DT_NEEDED);
  const auto mpi = std::find_if(needed.begin(), needed.end(), is_mpi);
  return mpi != needed.end() ? *mpi : std::string();
}

}  // namespace ddrun::worker_env
