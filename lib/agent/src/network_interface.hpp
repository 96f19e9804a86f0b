#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

// The network interface of workers on several machines. Gloo uses the address of the host's name, which is often the
// loopback or unknown; NCCL and UCX choose by themselves.

namespace ddrun::agent {

/// Checks --interface. Fails with `invalid_argument` and lists this machine's interfaces.
[[nodiscard]] Result<void> check_interface(const std::string& name);

/// The variables for workers of a round at `master_addr`: --interface for Gloo, NCCL and UCX. Without it, on several
/// machines, GLOO_SOCKET_IFNAME is the interface of the route to `master_addr`, unless the hosts file gives `host_name`
/// an address of this machine, or `master_addr` is a name or the loopback. Sends no packet and does not block.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> interface_variables(const LaunchSpec& spec,
                                                                                   const std::string& master_addr,
                                                                                   const std::string& host_name);

}  // namespace ddrun::agent
