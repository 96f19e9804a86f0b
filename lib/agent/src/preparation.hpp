#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/topology/cpus.hpp"

namespace ddrun::agent {

/// What is served to MPI programs.
struct MpiServing {
  bool pmi = false;     ///< PMI-1
  std::string libpmix;  ///< OpenPMIx's library, to serve PMIx by; empty: it is not served

  [[nodiscard]] bool is_on() const { return pmi || !libpmix.empty(); }
  /// For the other machines; empty when off.
  [[nodiscard]] std::string setting() const {
    if (libpmix.empty()) return pmi ? "pmi" : "";
    return pmi ? "pmi+pmix" : "pmix";
  }
};

/// What is resolved and checked before a process is started.
struct Preparation {
  int local_world_size = 1;
  std::string full_host;      ///< as the kernel has it
  std::string hostname;       ///< short; the coordinator may know a longer label
  std::string directory;      ///< of the workers, absolute
  ProgramSpec command;        ///< as given, with the kind of the file found
  std::string program;        ///< the executable: the program or a Python
  std::string python;         ///< empty for an executable
  std::string python_reason;  ///< the rule by which it was chosen
  MpiServing mpi;
  Environment parent;
  topology::CpuLayout cpus;       ///< only with --bind or --report-bindings
  topology::BindingPlan binding;  ///< .cpus is empty without --bind
};

/// Fails with an error that the user can correct, such as a missing program or directory. Blocks on files only.
[[nodiscard]] Result<Preparation> prepare(const LaunchSpec& spec, const char* const* environment);

/// The variables for workers of a round at `master_addr`: --interface for Gloo, NCCL and UCX. Without it, on several
/// machines, GLOO_SOCKET_IFNAME is the interface of the route to `master_addr`, unless the hosts file gives `host_name`
/// an address of this machine, or `master_addr` is a name or the loopback. Sends no packet and does not block.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> interface_variables(const LaunchSpec& spec,
                                                                                   const std::string& master_addr,
                                                                                   const std::string& host_name);

}  // namespace ddrun::agent
