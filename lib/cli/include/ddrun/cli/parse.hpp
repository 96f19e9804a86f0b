#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/cli/rendezvous_command.hpp"
#include "ddrun/cli/secret_command.hpp"
#include "ddrun/cli/store_command.hpp"
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
  std::vector<std::string> words_for_hosts;
  std::vector<std::string> warnings;  ///< to be said, once `messages` are set; one line each
  cluster::Given given;               ///< which options the user set, and where
  std::string env_detect = "auto";    ///< one of cluster::detect_words
};

/// `ddrun env`: show what is known about this machine's place in a job. The program may be missing in `launch`.
struct ShowPlace {
  Launch launch;
  bool json = false;
};

/// The answer is a text: --help, --version, `config show`, `completion`, or one line about wrong usage.
struct PrintAndExit {
  std::string text;  ///< complete, with its last newline
  bool to_stderr = false;
  int code = 0;  ///< 2 for wrong usage
};

/// Whether `ddrun env WORD ...` is the program env(1), which starts workers, and not `ddrun env`: WORD is an
/// assignment, a program, or an option that only env(1) has. Empty: there is none.
[[nodiscard]] bool starts_env_program(std::string_view word);

using Parsed = std::variant<Launch, PrintAndExit, StoreServe, StoreAsk, RendezvousServe, SecretNew, ShowPlace>;

/// Understands a command line. `arguments` are without the program's own name.
///
/// Every value is taken from the command line, else from a variable (DDRUN_* before PET_*), else from the file named
/// by --config or $DDRUN_CONFIG, else it is LaunchSpec's default. Pure but for reading that file. Never throws; nothing
/// is checked against the machine (programs, directories, GPUs): that is for those who use the result.
[[nodiscard]] Parsed parse(const std::vector<std::string>& arguments, const Environment& environment,
                           const VersionInfo& version, bool stderr_is_tty);

}  // namespace ddrun::cli
