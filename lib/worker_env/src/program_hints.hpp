#pragma once

#include <string>
#include <string_view>
#include <vector>

// What the user most likely meant by a program that is not there or cannot be run. What is suggested exists and can be
// run. Blocks as the file system does.
namespace ddrun::worker_env {

enum class Sought { program, python_script };

// The ends of a message, " (did you mean ...?)" or "; ...", empty if nothing comes to mind.

/// For a name with a '/', whose file would have been `file`.
[[nodiscard]] std::string hint_for_path(std::string_view name, const std::string& file, Sought what);

/// For a name that was searched in `directories`, those of PATH. A file in `cwd` comes first.
[[nodiscard]] std::string hint_for_name(std::string_view name, const std::vector<std::string>& directories,
                                        const std::string& cwd);

// The whole of it, with what to do.

/// Of a regular file without execute permission: "not executable...".
[[nodiscard]] std::string not_executable(std::string_view name, const std::string& file);

/// Of a Jupyter notebook, which no program executes as it is.
[[nodiscard]] std::string notebook_hint(std::string_view name);

}  // namespace ddrun::worker_env
