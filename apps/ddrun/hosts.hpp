#pragma once

#include <functional>
#include <string_view>

#include "ddrun/cli/parse.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/remote/relay.hpp"

// A job on hosts that are reached through ssh. All return the program's exit code.

/// On the user's machine (--hosts, --hostfile), in the agent process.
int run_on_hosts(const ddrun::cli::Launch& launch, ddrun::process::AgentContext& context);

/// How a host's ddrun runs its part of a job that was decided elsewhere.
using RunLaunch = std::function<int(const ddrun::cli::Launch&, ddrun::process::AgentContext&,
                                    const ddrun::remote::Bootstrap&, const ddrun::remote::Home&)>;

/// What stands behind `ddrun` on a host of --hosts: relay, or as it was called first, agent.
[[nodiscard]] bool is_relay_word(std::string_view word);
/// `ddrun relay`, on each of the hosts. Not for people.
int serve_host(int argc, char** argv, const ddrun::cli::VersionInfo& version, const RunLaunch& run);
