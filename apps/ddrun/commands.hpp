#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
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

// The subcommands of ddrun. Each has its own file with options, help and implementation; those that only print text are
// in commands.cpp, with common helpers.

namespace ddrun {

/// `ddrun store`: serve a store until a signal.
struct StoreServe {
  std::vector<std::string> addresses{"127.0.0.1", "::1"};
  std::uint16_t port = 29500;             ///< 0: a free one
  std::uint64_t max_memory = 4ULL << 30;  ///< bytes; 0 for no limit
  bool stats = false;                     ///< print statistics at the end
};

/// `ddrun store get KEY` and the like: a request to a running store.
struct StoreRequest {
  enum class Operation { get, set, add, wait, list, del };
  Operation operation = Operation::get;
  std::string host;  ///< a name or an address
  std::uint16_t port = 0;
  std::vector<std::string> keys;  ///< empty for `list`
  std::string value;              ///< of `set`
  bool value_from_stdin = false;
  std::int64_t delta = 1;      ///< of `add`
  std::string prefix;          ///< prefix of all `keys`; not shown
  bool raw = false;            ///< values unchanged, without a newline or escapes
  Milliseconds timeout{5000};  ///< for the connection, and then for keys to exist
};

/// `ddrun rendezvous`: serve a coordinator for many jobs until a signal.
struct RendezvousServe {
  std::vector<std::string> addresses;  ///< empty: all of this machine
  std::uint16_t port = 29400;          ///< 0: a free one
  std::optional<std::string> secret_file;
  bool insecure = false;
  Milliseconds heartbeat_interval{1'000};
  int heartbeat_misses = 3;
  bool stats = false;  ///< print statistics at the end
};

/// `ddrun secret new`: create the secret that authenticates a job's agents.
struct SecretNew {
  bool print = false;  ///< print it instead of writing a file
};

/// `ddrun stacks`: where the ranks of a running job are.
struct StacksRequest {
  std::string job;    ///< PID or run id; empty: the only job of this user
  std::string ranks;  ///< "0-3,7"; empty: all
  bool json = false;
  bool all_threads = false;
};

/// `ddrun env`: show the detected job. The program in `launch` may be empty.
struct ShowEnv {
  cli::Launch launch;
};

using Parsed = std::variant<cli::Launch, cli::PrintAndExit, StoreServe, StoreRequest, RendezvousServe, SecretNew,
                            StacksRequest, ShowEnv>;

struct Command {
  std::string_view name;
  /// Parses the arguments after the subcommand.
  Parsed (*parse)(std::span<const std::string> rest, const cli::ParseContext& context);
  /// Runs a parsed command other than PrintAndExit; returns the exit code. Starts no process, so no guard is needed.
  /// Null: the command only prints.
  int (*run)(const Parsed& parsed) = nullptr;
};

/// The subcommand, or null if `arguments` (without argv[0]) start workers. Only the first argument can be a subcommand:
/// `ddrun -n 2 env` starts env.
[[nodiscard]] const Command* find_command(std::span<const std::string> arguments);

/// Parses a whole command line. Never throws.
[[nodiscard]] Parsed parse(const std::vector<std::string>& arguments, const Environment& environment,
                           const cli::VersionInfo& version, bool stderr_is_tty);

/// Prints the error; returns `code`, or the exit code for such an error before the start of workers.
int say_failure(const Error& error, std::optional<int> code = std::nullopt);

/// Returns 0, or launcher_failed after an error message on a full disk or closed pipe.
int print_to_stdout(const std::string& text);

/// "ddrun: error: … (see 'ddrun NAME --help')"
[[nodiscard]] cli::PrintAndExit wrong_usage(std::string_view name, std::string_view message);
[[nodiscard]] Result<std::uint16_t> parse_port(std::string_view text, int lowest);

inline constexpr argv::Option help_option{"help", "h", "", "Print this help", true};

/// Parses the arguments after `ddrun NAME`; `options` include help_option. The unexpected value is the help or a usage
/// error.
[[nodiscard]] tl::expected<argv::CommandLine, cli::PrintAndExit> read_arguments(std::string_view name,
                                                                                std::span<const argv::Option> options,
                                                                                std::string (*help)(),
                                                                                std::span<const std::string> rest);

Parsed parse_env(std::span<const std::string> rest, const cli::ParseContext& context);
Parsed parse_rendezvous(std::span<const std::string> rest, const cli::ParseContext& context);
Parsed parse_secret(std::span<const std::string> rest, const cli::ParseContext& context);
Parsed parse_stacks(std::span<const std::string> rest, const cli::ParseContext& context);
Parsed parse_store(std::span<const std::string> rest, const cli::ParseContext& context);
int run_env(const Parsed& parsed);
int run_rendezvous(const Parsed& parsed);
int run_secret(const Parsed& parsed);
int run_stacks(const Parsed& parsed);
int run_store(const Parsed& parsed);

/// Whether `ddrun env WORD ...` runs env(1) as the workers' program: WORD is an assignment, a program, or an option
/// that only env(1) has. Empty: no argument.
[[nodiscard]] bool starts_env_program(std::string_view name);

// Detection of the job from this machine's environment (detect.cpp). Does not block.

/// `started_pid`: the process that was started as ddrun.
[[nodiscard]] Result<cluster::Detected> detect_environment(const cli::Launch& launch, pid_t started_pid);
/// Fills in what the user did not set in `launch`; `gpu` and `auto` are limited to the scheduler's allocation.
[[nodiscard]] Result<cluster::Completion> complete_launch(cli::Launch& launch, const cluster::Detected& detected);

struct DetectedCluster {
  cluster::Detected detected;
  cluster::Completion completion;
};

/// Both of the above, for a launch: with remarks, and a time limit before the scheduler's end of the job.
[[nodiscard]] Result<DetectedCluster> detect_cluster(cli::Launch& launch, pid_t started_pid);

/// Prints a notice if one worker is started by default but more GPUs are visible. `gpu_limit`: GPUs allocated by the
/// scheduler.
void note_unused_gpus(const cli::Launch& launch, int gpu_limit = std::numeric_limits<int>::max());

// Agents on other machines (hosts.cpp).

/// The ending signal that workers are least likely to ignore: with an ignored SIGHUP the end would take the whole grace
/// time. SIGKILL if there is none.
[[nodiscard]] int preferred_ending_signal(const std::set<int>& ending);

/// What the agents of a job are started with.
struct StartRequest {
  const cli::Launch& launch;
  const std::vector<std::string>& arguments;   ///< ddrun's as typed
  std::optional<cluster::SlurmScript> script;  ///< this process is in the script of a Slurm job
};

/// A way to start agents on other machines from this one: over ssh (--hosts, --hostfile) or by srun.
struct AgentStarter {
  /// In the agent process: starts the agents, forwards signals to them and blocks until they have ended. Returns the
  /// program's exit code; nullopt, at once, if the job is not started this way.
  std::function<std::optional<int>(const StartRequest&, process::AgentContext&)> run;
  /// In the guard, after the agent process: if that was killed, stops agents that do not end by themselves. May block
  /// for 20 s.
  std::function<void()> stop_orphans;
};

/// Must be called before guard and agent process are forked: they share memory about the agents.
[[nodiscard]] std::array<AgentStarter, 2> make_agent_starters();

/// Runs this host's part of a job of the head.
using RunLaunch = std::function<int(const cli::Launch&, process::AgentContext&, const remote::Bootstrap&,
                                    const remote::HeadConnection&)>;

/// Whether `name` is the internal subcommand on a host of --hosts: "relay", or its former name "agent".
[[nodiscard]] bool is_relay_command(std::string_view name);
/// `ddrun relay`, on each of the hosts. Internal.
int serve_host(int argc, char** argv, const cli::VersionInfo& version, const RunLaunch& run);

}  // namespace ddrun
