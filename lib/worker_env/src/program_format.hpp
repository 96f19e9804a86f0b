#pragma once

#include <elf.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::worker_env {

#if defined(__x86_64__)
inline constexpr unsigned own_machine = EM_X86_64;
inline constexpr unsigned own_machine_32 = EM_386;
#elif defined(__aarch64__)
inline constexpr unsigned own_machine = EM_AARCH64;
inline constexpr unsigned own_machine_32 = EM_ARM;
#elif defined(__powerpc64__)
inline constexpr unsigned own_machine = EM_PPC64;
inline constexpr unsigned own_machine_32 = EM_PPC;
#elif defined(__riscv)
inline constexpr unsigned own_machine = EM_RISCV;
inline constexpr unsigned own_machine_32 = EM_RISCV;
#else
inline constexpr unsigned own_machine = EM_NONE;  // not checked
inline constexpr unsigned own_machine_32 = EM_NONE;
#endif

// Any content is safe. `fd` may be -1: nothing is read.

/// Reads `size` bytes, or returns false.
[[nodiscard]] bool read_at(int fd, std::uint64_t at, void* to, std::size_t size);

/// The program headers of a 64-bit ELF file of this byte order; none for any other file.
[[nodiscard]] std::vector<Elf64_Phdr> read_headers(int fd);

/// The strings in the dynamic section of such a file with this tag: DT_NEEDED, DT_RPATH or DT_RUNPATH. A string is read
/// up to 16 KiB.
[[nodiscard]] std::vector<std::string> dynamic_strings(int fd, Elf64_Sxword tag);

/// access(2) with the effective IDs.
[[nodiscard]] bool is_accessible(const std::string& file, int mode);

/// Checks an executable file as the kernel will: a script's interpreter, an ELF file's machine and dynamic loader.
/// `name` is as typed, `file` is the path. A file without read permission passes. Fails with `not_executable`, or
/// `not_found` if `#!/usr/bin/env` would not find its program.
[[nodiscard]] Result<void> check_program_format(std::string_view name, const std::string& file, std::string_view path,
                                                const std::string& cwd);

/// The format of a file, by its first bytes, regardless of permissions.
enum class FileFormat {
  python_code,    ///< a zip archive or compiled Python
  python_script,  ///< python in its '#!' line
  text,           ///< no '#!' line
  other,          ///< also if it cannot be read
};
[[nodiscard]] FileFormat file_format(const std::string& file);

}  // namespace ddrun::worker_env
