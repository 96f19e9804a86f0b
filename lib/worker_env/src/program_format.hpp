#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun::worker_env {

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
