#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ddrun/argv/argv.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/cli/parse.hpp"
#include "ddrun/cluster/complete.hpp"

namespace ddrun::process {
struct AgentContext;
}
namespace ddrun::remote {
struct Bootstrap;
class HeadConnection;
}  // namespace ddrun::remote

// What the first word of a command line may be, but a program. Each has a file of its name, with its options, its help
// and what it does; those that only print a text are in commands.cpp, with what
// several of them need.

namespace ddrun {

/// `ddrun store`: run a store by itself until a signal ends it.
struct StoreServe {
  std::vector<std::string> addresses{"127.0.0.1", "::1"};
  std::uint16_t port = 29500;             ///< 0: any free one
  std::uint64_t max_memory = 4ULL << 30;  ///< bytes; 0 for no limit
  bool stats = false;                     ///< print them at the end
};

/// `ddrun store get KEY` and the like: ask a store that is running.
struct StoreRequest {
  enum class Operation { get, set, add, wait, list, del };
  Operation operation = Operation::get;
  std::string host;  ///< a name or an address
  std::uint16_t port = 0;
  std::vector<std::string> keys;  ///< none for `list`
  std::string value;              ///< of `set`
  bool value_from_stdin = false;
  std::int64_t delta = 1;      ///< of `add`
  std::string prefix;          ///< what each of `keys` begins with; not shown
  bool raw = false;            ///< values as they are, without a newline or escapes
  Milliseconds timeout{5000};  ///< for the server to answer, and then for keys to come
};

/// `ddrun rendezvous`: run a coordinator by itself, for many jobs, until a signal ends it.
struct RendezvousServe {
  std::vector<std::string> addresses;  ///< none: all of this machine's
  std::uint16_t port = 29400;          ///< 0: any free one
  std::optional<std::string> secret_file;
  bool insecure = false;
  Milliseconds heartbeat_interval{1'000};
  int heartbeat_misses = 3;
  bool stats = false;  ///< print them at the end
};

/// `ddrun secret new`: make the secret by which the agents of a job know each other.
struct SecretNew {
  bool print = false;  ///< only print one; write no file
};

/// `ddrun env`: show what is known about this machine's place in a job. The program may be missing in `launch`.
struct ShowEnv {
  cli::Launch launch;
};

using Parsed =
    std::variant<cli::Launch, cli::PrintAndExit, StoreServe, StoreRequest, RendezvousServe, SecretNew, ShowEnv>;

struct Command {
  std::string_view name;
  /// What stands behind the word.
  Parsed (*parse)(std::span<const std::string> rest, const cli::ParseContext& context);
  /// Does what was asked for, if that is not a text, and returns the program's exit code. None of them starts a
  /// process, so that nothing needs to be guarded. Null: the answer is always a text.
  int (*run)(const Parsed& parsed) = nullptr;
};

/// Null if `arguments`, without ddrun's own name, start workers. Only the very first word can be one of ddrun's own:
/// `ddrun -n 2 env` starts env.
[[nodiscard]] const Command* find_command(std::span<const std::string> arguments);

/// Understands a whole command line. Never throws.
[[nodiscard]] Parsed parse(const std::vector<std::string>& arguments, const Environment& environment,
                           const cli::VersionInfo& version, bool stderr_is_tty);

/// Says the error, and returns `code`, or else the exit code for such an error before anything was started.
int say_failure(const Error& error, std::optional<int> code = std::nullopt);

/// "ddrun: error: … (see 'ddrun WORD --help')"
[[nodiscard]] cli::PrintAndExit wrong_usage(std::string_view name, std::string_view message);
[[nodiscard]] Result<std::uint16_t> parse_port(std::string_view text, int lowest);

inline constexpr argv::Option help_option{"help", "h", "", "Print this help", true};

/// Reads what stands behind `ddrun WORD`, with help_option among the options; or what is to be answered: the help,
/// or what is wrong.
[[nodiscard]] tl::expected<argv::CommandLine, cli::PrintAndExit> read_arguments(std::string_view name,
                                                                                std::span<const argv::Option> options,
                                                                                std::string (*help)(),
                                                                                std::span<const std::string> rest);

Parsed parse_env(std::span<const std::string> rest, const cli::ParseContext& context);
Parsed parse_rendezvous(std::span<const std::string> rest, const cli::ParseContext& context);
Parsed parse_secret(std::span<const std::string> rest, const cli::ParseContext& context);
Parsed parse_store(std::span<const std::string> rest, const cli::ParseContext& context);
int run_env(const Parsed& parsed);
int run_rendezvous(const Parsed& parsed);
int run_secret(const Parsed& parsed);
int run_store(const Parsed& parsed);

/// Whether `ddrun env WORD ...` is the program env(1), which starts workers, and not `ddrun env`: WORD is an
/// assignment, a program, or an option that only env(1) has. Empty: there is none.
[[nodiscard]] bool starts_env_program(std::string_view name);

/// What this machine's environment says about the job (env.cpp).
struct DetectedCluster {
  cluster::Detected detected;
  cluster::Completion completion;
};

/// Looks at this process's environment and fills in `launch` what the user did not say. `started_pid` is the process
/// that was started as ddrun. Does not block, costs nothing worth mentioning where no scheduler is.
[[nodiscard]] Result<DetectedCluster> detect_cluster(cli::Launch& launch, pid_t started_pid);

/// Says that this machine has GPUs for more than the one worker it gets because nothing was said of their number.
/// `most`: GPUs that the scheduler gives.
void note_unused_gpus(const cli::Launch& launch, int most = std::numeric_limits<int>::max());

// A job on hosts that are reached through ssh (hosts.cpp). Both return the program's exit code.

/// On the user's machine (--hosts, --hostfile), in the agent process.
int run_on_hosts(const cli::Launch& launch, process::AgentContext& context);

/// How a host's ddrun runs its part of a job that was decided elsewhere.
using RunLaunch = std::function<int(const cli::Launch&, process::AgentContext&, const remote::Bootstrap&,
                                    const remote::HeadConnection&)>;

/// What stands behind `ddrun` on a host of --hosts: relay, or as it was called first, agent.
[[nodiscard]] bool is_relay_command(std::string_view name);
/// `ddrun relay`, on each of the hosts. Not for people.
int serve_host(int argc, char** argv, const cli::VersionInfo& version, const RunLaunch& run);

}  // namespace ddrun
