#pragma once

#include <string>
#include <string_view>

#include "ddrun/cli/parse.hpp"
#include "settings.hpp"

namespace ddrun::cli {

// What ddrun prints instead of launching. All of it ends with a newline.

/// --help: at most 80 columns.
[[nodiscard]] std::string help_text();
/// `ddrun config --help` and `ddrun env --help`.
extern const std::string_view config_help;
extern const std::string_view env_help;

/// --version, and `ddrun version`.
[[nodiscard]] std::string version_text(const VersionInfo& version);
/// `ddrun version --json`.
[[nodiscard]] std::string version_json(const VersionInfo& version);

/// `ddrun config show`: a TOML file that would give the same settings, with the origin of each value as a comment.
[[nodiscard]] std::string config_text(const Draft& draft, const Settings& settings, std::string_view program_origin);
/// `ddrun config show --json`: by option "value", null if it is not set, and "from".
[[nodiscard]] std::string config_json(const Draft& draft, const Settings& settings, std::string_view program_origin);

/// A completion script; empty for a shell that is not bash, zsh or fish.
[[nodiscard]] std::string completion_script(std::string_view shell);
[[nodiscard]] std::string bash_completion();
[[nodiscard]] std::string zsh_completion();
[[nodiscard]] std::string fish_completion();

}  // namespace ddrun::cli
