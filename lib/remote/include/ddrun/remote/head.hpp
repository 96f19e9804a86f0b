#pragma once

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
  std::string name;          ///< as ssh gets it
  bool is_local = false;     ///< it is this very machine: started without ssh
  std::optional<int> slots;  ///< where the user said how many workers it is meant for
};

struct HeadOptions {
  std::vector<HeadHost> hosts;  ///< in the order of their node ranks; the first runs the coordinator
  std::string ssh = "ssh";      ///< a command with options
  std::string build_id;
  std::string program;                 ///< where this ddrun lies; also tried on the hosts
  bool portable = true;                ///< it needs no libraries
  Bootstrap job;                       ///< what is the same for all hosts
  std::string secret;                  ///< of the job, without a newline; wiped as soon as all hosts have it
  std::uint16_t coordinator_port = 0;  ///< on the first host; 0: a free one
  int min_nodes = 1;                   ///< so many are enough, once all have been started
  StdinSpec stdin_;
  std::set<int> ending_signals;
  std::size_t width = 32;             ///< so many are reached from here, and as many from each of those that start more
  Milliseconds start_limit{120'000};  ///< until ddrun runs on a host
  /// What the first host's ddrun writes to its --events, in whole lines; where it does not, this is not called.
  std::function<void(std::string_view lines)> on_events;
  /// Called once, at the end, with what that one has written to its --report, if that is complete.
  std::function<Result<void>(const std::string& json)> on_report;
};

/// Runs a job on other machines, from the process that the user has started: one ssh for each host (beyond `width` they
/// start each other), their output on our standard output and error line by line, our signals and standard input there.
/// Whatever ends this process ends the job on every host. Says what goes wrong on a host, once, naming it.
///
/// To be called in the agent process of run_guarded(). Blocks until all is over; returns the exit code: the job's, or
/// 125 if a host could not be started or was lost and the job cannot go on without it.
int run_head(HeadOptions options, process::AgentContext& context);

/// The lines of --dry-run.
[[nodiscard]] std::string describe_head(const HeadOptions& options);

}  // namespace ddrun::remote
