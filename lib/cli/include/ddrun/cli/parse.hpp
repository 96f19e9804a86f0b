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

/// Version and build information to show.
struct VersionInfo {
  std::string version;  ///< "1.2.3"
  std::string commit;   ///< short hash; empty if unknown
  /// Compiled-in components, in display order: {"Boost", "1.81.0"}, {"linked", "static"}…
  std::vector<std::pair<std::string, std::string>> features;
};

/// The error for a job of several programs that would have several machines.
inline constexpr std::string_view one_machine_only =
    "a job of several programs runs on one machine; leave --hosts, --hostfile and --nnodes out, or give one program";

/// A request to start workers, or with spec.dry_run to show what would be started.
struct Launch {
  LaunchSpec spec;
  MessageSettings messages;
  /// With spec.remote: the command line for each host, without the options in `not_forwarded`.
  std::vector<std::string> forwarded_args;
  std::vector<std::string> warnings;  ///< to show once `messages` is applied; one line each
  bool has_separator = false;         ///< a "--" stood before the program
  cluster::GivenOptions given;        ///< the options that were set, and their sources
  std::string env_detect = "auto";    ///< one of cluster::detect_schemes
  std::string ci = "auto";            ///< see agent/ci.hpp
  bool json = false;                  ///< of `ddrun env`
};

/// A command line that only prints: --help, --version, `config show`, `completion`, or a usage error.
struct PrintAndExit {
  std::string text;  ///< with its final newline
  bool to_stderr = false;
  int code = 0;  ///< 2 for wrong usage
};

/// "ddrun: error: …" on stderr with code 2; control characters in `message` become '?'.
[[nodiscard]] PrintAndExit usage_error(std::string_view message);
[[nodiscard]] PrintAndExit stdout_text(std::string text);

/// Inputs of parsing other than the arguments. Borrows both references.
struct ParseContext {
  const Environment& environment;
  const VersionInfo& version;
  bool stderr_is_tty = false;
};

/// Parses `args`, a command line without argv[0]: options, and a program with its arguments.
///
/// Precedence: command line, variables (DDRUN_* before PET_*), the file of --config or $DDRUN_CONFIG, the default in
/// LaunchSpec. Reads only that file; nothing is checked against the machine (programs, directories, GPUs). Throws only
/// std::bad_alloc.
[[nodiscard]] std::variant<Launch, PrintAndExit> parse_launch(std::span<const std::string> args,
                                                              const ParseContext& context);
/// The same for `ddrun env`: the program is optional, and there is an option --json.
[[nodiscard]] std::variant<Launch, PrintAndExit> parse_env_command(std::span<const std::string> args,
                                                                   const ParseContext& context);
/// The same for `ddrun config show`: the settings, as a settings file or, with --json, as JSON.
[[nodiscard]] PrintAndExit show_config(std::span<const std::string> args, const ParseContext& context);
/// `ddrun config schema`: a JSON schema of the settings file, made from the option table.
[[nodiscard]] std::string settings_schema();

/// A warning that names an option of ddrun in the program's arguments that may be why the program has failed: the first
/// that one of `messages`, its last lines on stderr, rejects; without messages the first that torchrun has too. Empty:
/// none.
[[nodiscard]] std::string misplaced_option(const ProgramSpec& program, std::span<const std::string> messages);

/// --help: all options, at most 80 columns.
[[nodiscard]] std::string help_text();
/// -h: one screen.
[[nodiscard]] std::string short_help_text();
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
