#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddrun::worker_env {

// What the user most likely meant by a program that is not there: the end of the message, " (did you mean ...?)" or
// "; ...", empty if nothing comes to mind. What is suggested exists and can be run.

enum class Sought { program, python_script };

/// `name` with the working directory, or what stands in its place, in front.
[[nodiscard]] std::string from_directory(std::string_view name, const std::string& cwd);

/// For a name with a '/', whose file would have been `file`.
[[nodiscard]] std::string hint_for_path(std::string_view name, const std::string& file, Sought what);

/// For a name that was searched in `directories`, those of PATH. A file in `cwd` comes first.
[[nodiscard]] std::string hint_for_name(std::string_view name, const std::vector<std::string>& directories,
                                        const std::string& cwd);

/// Of a regular file that nobody may execute: "not executable...", with what to do about it.
[[nodiscard]] std::string not_executable(std::string_view name, const std::string& file);

/// For a notebook, which nobody can execute.
[[nodiscard]] std::string notebook_hint(std::string_view name);

}  // namespace ddrun::worker_env
