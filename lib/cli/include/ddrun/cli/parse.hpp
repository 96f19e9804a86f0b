#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/cluster/complete.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cli {

/// What the build knows about itself.
struct VersionInfo {
  std::string version;  ///< "1.2.3"
  std::string commit;   ///< short hash; empty if unknown
  /// What was compiled in, in the order of showing: {"Boost", "1.81.0"}, {"linked", "static"}…
  std::vector<std::pair<std::string, std::string>> features;
};

/// The user wants workers started (or, with spec.dry_run, to see what would be started).
struct Launch {
  LaunchSpec spec;
  MessageSettings messages;
  /// With spec.remote: the command line for each host (options that this machine keeps are not in it).
  std::vector<std::string> forwarded_args;
  std::vector<std::string> warnings;  ///< to be said, once `messages` are set; one line each
  cluster::Given given;               ///< which options the user set, and where
  std::string env_detect = "auto";    ///< one of cluster::detect_schemes
  std::string ci = "auto";            ///< see agent/ci.hpp
  bool json = false;                  ///< of `ddrun env`
};

/// The answer is a text: --help, --version, `config show`, `completion`, or one line about wrong usage.
struct PrintAndExit {
  std::string text;  ///< complete, with its last newline
  bool to_stderr = false;
  int code = 0;  ///< 2 for wrong usage
};

/// "ddrun: error: …": one line, whatever control characters were in what was typed.
[[nodiscard]] PrintAndExit usage_error(std::string_view message);
[[nodiscard]] PrintAndExit stdout_text(std::string text);

/// What a command line is read with.
struct ParseContext {
  const Environment& environment;
  const VersionInfo& version;
  bool stderr_is_tty = false;
};

/// Understands `words`, a command line without ddrun's own name: options, and a program with its arguments.
///
/// Every value is taken from the command line, else from a variable (DDRUN_* before PET_*), else from the file named
/// by --config or $DDRUN_CONFIG, else it is LaunchSpec's default. Pure but for reading that file. Nothing is checked
/// against the machine (programs, directories, GPUs): that is for those who use the result. Throws only for want of
/// memory.
[[nodiscard]] std::variant<Launch, PrintAndExit> parse_launch(std::span<const std::string> args,
                                                              const ParseContext& context);
/// The same for `ddrun env`, where the program may be missing, and which has an option --json.
[[nodiscard]] std::variant<Launch, PrintAndExit> parse_env_command(std::span<const std::string> args,
                                                                   const ParseContext& context);
/// The same for `ddrun config show`: the settings, as a settings file or, with --json, as JSON.
[[nodiscard]] PrintAndExit show_config(std::span<const std::string> args, const ParseContext& context);

// Other answers.

/// --help: at most 80 columns.
[[nodiscard]] std::string help_text();
/// `ddrun config --help` and `ddrun env --help`.
extern const std::string_view config_help;
extern const std::string_view env_help;
/// --version, and `ddrun version`.
[[nodiscard]] std::string version_text(const VersionInfo& version);
/// `ddrun version --json`.
[[nodiscard]] std::string version_json(const VersionInfo& version);
/// A completion script; wrong usage for a shell that is not bash, zsh or fish.
[[nodiscard]] PrintAndExit completion(std::string_view shell);

}  // namespace ddrun::cli
