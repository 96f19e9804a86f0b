#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ddrun/agent/ci.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::agent {

/// What a caller of run_job() may pass and receive besides its result.
struct JobHooks {
  /// Written when no process of the job is left on this machine. The coordinator's agent is the last to do so: where
  /// machines share a path, its report replaces the others'.
  ReportSinks reports;

  /// Folds the output on stderr (ci.hpp) on the machine whose report is the whole job's.
  CiFold fold;

  // For a job on several machines.
  /// Replaces rendezvous::find_or_make_secret().
  std::optional<rendezvous::Secret> secret;
  /// Called once, before any worker is started, if the coordinator runs in this agent: the port it listens on.
  std::function<void(std::uint16_t)> on_listening;
  /// Called whenever a round begins on this machine, before its workers are started.
  std::function<void()> on_round;
};

/// Runs a job in the agent process (see process/guard.hpp). Blocks until no worker and no descendant of a worker is
/// left, every line is written, and the store is closed. Call it once per process.
///
/// All state belongs to the caller's thread; the worker store has its own thread. `environment` is what workers inherit
/// (null-terminated, borrowed). Errors in the specification, a missing program and a lack of descriptors are results
/// with Verdict::launcher_failed, found before a worker starts.
JobResult run_job(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                  const std::string& version, JobHooks hooks = {});

/// --dry-run: what run_job would start, as text: program, arguments, environment as far as it differs from ddrun's, and
/// CPUs, per worker. Starts no process and opens no port.
[[nodiscard]] Result<std::string> describe_job(const LaunchSpec& spec, const char* const* environment,
                                               const std::string& version);

}  // namespace ddrun::agent
