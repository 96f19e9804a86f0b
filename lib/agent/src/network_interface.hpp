#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

// The network interface that workers on several machines talk through. Gloo takes the one that has the address of the
// host's own name, which is often that of the loopback or none at all; NCCL and UCX choose by themselves.

namespace ddrun::agent {

/// --interface names one of this machine. Fails with `invalid_argument` and names those that are there.
[[nodiscard]] Result<void> check_interface(const std::string& name);

/// The variables for workers of a round at `master_addr`: --interface for Gloo, NCCL and UCX; without it, on several
/// machines and unless the hosts file says which address of this machine `host_name` means, for Gloo the interface by
/// which packets leave for `master_addr`. Nothing for a name or the loopback. Sends nothing and does not block.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> interface_variables(const LaunchSpec& spec,
                                                                                   const std::string& master_addr,
                                                                                   const std::string& host_name);

}  // namespace ddrun::agent
