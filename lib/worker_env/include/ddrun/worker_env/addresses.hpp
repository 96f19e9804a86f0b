#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::worker_env {

/// Where the workers of one of several programs are, by rank.
struct ProgramAddresses {
  std::string role;
  std::vector<std::string> hosts;
  std::vector<std::string> endpoints;  ///< HOST:PORT; none without --port
};

/// Replaces `${host:NAME}`, `${endpoint:NAME}` (of the first worker) and `${endpoints:NAME}` (of all, with commas) in a
/// program's arguments and variables, where NAME is the role of a program; a word with `${each:NAME}` is repeated for
/// each worker. Fails with `invalid_argument` for a role that no program has, and for an endpoint of a program without
/// a port. Other text that begins with `${` stays.
[[nodiscard]] Result<void> expand_addresses(ProgramSpec& program, const std::vector<ProgramAddresses>& all);

/// DDRUN_HOSTS_<NAME> and DDRUN_ENDPOINTS_<NAME>, in capitals and with '_' for '-'. One of over 64 KiB is left out: the
/// kernel's limit for a variable is 128.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> address_variables(
    const std::vector<ProgramAddresses>& all);

}  // namespace ddrun::worker_env
