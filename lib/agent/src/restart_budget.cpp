#include "ddrun/agent/restart_budget.hpp"

namespace ddrun::agent {

bool is_success(const ExitStatus& status, const RestartPolicy& policy) {
  const auto* exited = std::get_if<Exited>(&status);
  return exited != nullptr && policy.success_on.count(exited->code) != 0;
}

}  // namespace ddrun::agent
