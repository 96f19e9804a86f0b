#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun::worker_env {

/// `name` with the working directory, or what stands in its place, in front.
[[nodiscard]] std::string from_directory(std::string_view name, const std::string& cwd);

/// Looks into an executable file as the kernel will: the interpreter of a script, the machine of an ELF file, its
/// dynamic loader. `name` is what the user called it, `file` is its path. A file that may be executed but not read
/// passes. Fails with `not_executable`, or `not_found` for what `#!/usr/bin/env` will look for in vain.
[[nodiscard]] Result<void> check_program_format(std::string_view name, const std::string& file, std::string_view path,
                                                const std::string& cwd);

/// What the beginning of a file says, whether it may be executed or not.
enum class FileFormat {
  python_code,    ///< a zip archive or compiled Python
  python_script,  ///< python in its '#!' line
  text,           ///< no '#!' line
  other,          ///< also: cannot be read
};
[[nodiscard]] FileFormat file_format(const std::string& file);

}  // namespace ddrun::worker_env
