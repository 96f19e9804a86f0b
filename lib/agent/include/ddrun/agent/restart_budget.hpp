#pragma once

#include "ddrun/base/exit_status.hpp"
#include "ddrun/rendezvous/restart_budget.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::agent {

/// The same on one machine and for a whole job.
using rendezvous::RestartBudget;

/// Exit codes that a policy names are compared with real exit codes only; a signal is never among them.
[[nodiscard]] bool is_success(const ExitStatus& status, const RestartPolicy& policy);

}  // namespace ddrun::agent
