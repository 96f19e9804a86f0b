#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ddrun/agent/ci.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::agent {

/// What the caller of an agent may know or want to know.
struct JobHooks {
  /// Called once, with the same that run_job returns, when nothing of the job is left here. On several machines the
  /// coordinator waits until it has returned on the others, so that of files with one name its machine's is the last.
  std::function<void(const JobResult&)> on_result;

  /// Folds the output on stderr (ci.hpp), where this agent's report is the job's.
  CiFold fold;

  // For a job on several machines.
  /// Instead of looking for one (rendezvous::find_or_make_secret).
  std::optional<rendezvous::Secret> secret;
  /// Called once, before any worker is started, if the coordinator runs in this agent: the port it listens on.
  std::function<void(std::uint16_t)> on_listening;
};

/// Runs a job from its first check to its end, in the agent process (see process/guard.hpp): blocks until no worker and
/// nothing that a worker started is left, every line is written, and the store is closed.
///
/// One thread, the caller's, owns everything; the worker store has a thread of its own. `environment` is what
/// workers inherit (null-terminated, borrowed). Never fails: a mistake in the specification, a missing program, a
/// full table of descriptors are results with Verdict::launcher_failed, found before anything is started.
JobResult run_job(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                  const std::string& version, JobHooks hooks = {});

/// --dry-run: what run_job would start, as text for people: program, arguments, environment where it differs from
/// ours, and CPUs, per worker. Starts nothing and opens no port.
[[nodiscard]] Result<std::string> describe_job(const LaunchSpec& spec, const char* const* environment,
                                               const std::string& version);

}  // namespace ddrun::agent
