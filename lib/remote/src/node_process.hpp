#pragma once

#include <sys/types.h>

#include <functional>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/remote/relay.hpp"

namespace ddrun::remote {

/// The process of a host that runs its part of the job, as its relay sees it.
struct NodeProcess {
  pid_t pid = -1;
  UniqueFd input, output, errors, events, report;
  UniqueFd control;  ///< to it: the Bootstrap and the secret, each behind its size; from it: frames
};

/// Forks it; it waits for its Bootstrap, and ends when there is none or when the relay is gone. To be called before
/// this process has done anything else. `node_main` runs there; its result is the exit code. Fails with `unavailable`.
[[nodiscard]] Result<NodeProcess> fork_node(const std::function<int(const Bootstrap&, const Home&)>& node_main);

/// What tells the job's ddrun that nobody at home hears it.
[[nodiscard]] int signal_for_lost(const Bootstrap& part);

}  // namespace ddrun::remote
