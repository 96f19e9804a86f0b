#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/process/guard.hpp"
#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::remote {

struct HeadHost {
  std::string name;       ///< argument for ssh
  bool is_local = false;  ///< this machine: started without ssh
  int slots = 0;          ///< number of workers; 0: not given
};

struct HeadOptions {
  std::vector<HeadHost> hosts;  ///< in order of preference for the coordinator, and of node ranks
  std::string ssh = "ssh";      ///< a command with options
  std::string build_id;
  std::string program;                 ///< path of this executable; also tried on the hosts
  bool portable = true;                ///< statically linked
  Bootstrap job;                       ///< the common values of all hosts
  std::string worker_program;          ///< its name, for the list of jobs of `ddrun stacks`
  LogSpec log;                         ///< how this console shows their lines
  std::string secret;                  ///< the job's secret, without a newline; wiped once all hosts have it
  std::uint16_t coordinator_port = 0;  ///< on its host; 0: a free one
  int min_nodes = 1;                   ///< minimum of hosts
  Milliseconds last_call{30'000};      ///< limit for the wait for further hosts, once `min_nodes` are there
  StdinSpec stdin_;
  std::set<int> ending_signals;
  Milliseconds start_limit{120'000};  ///< limit for starting ddrun on a host, from the start of its ssh
  /// Receives the complete lines that the coordinator's ddrun writes to --events.
  std::function<void(std::string_view lines)> on_events;
  std::optional<Milliseconds> timeout;  ///< of the job, which its hosts observe
  /// Called at the end, before on_report, if output was dropped that the console did not take.
  std::function<void(std::uint64_t bytes, const std::string& why)> on_lost_output;
  /// Called once at the end with the coordinator's --report, if it is complete.
  std::function<Result<void>(const std::string& json)> on_report;
};

/// Runs a job on other machines from the user's ddrun: one ssh per host.
/// Forwards the hosts' output to stdout and stderr by lines, and signals and stdin to the hosts. The end of this
/// process, also by SIGKILL, ends the job on every host. Each failure of a host is reported once.
///
/// Call in the agent process of run_guarded(). Blocks until the job has ended; returns its exit code, or 125 if a host
/// could not be started or was lost and the job cannot continue without it.
int run_head(HeadOptions options, process::AgentContext& context);

/// The output of --dry-run.
[[nodiscard]] std::string describe_head(const HeadOptions& options);

}  // namespace ddrun::remote
