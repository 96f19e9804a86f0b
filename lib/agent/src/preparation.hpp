#pragma once

#include <string>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/topology/cpus.hpp"

namespace ddrun::agent {

/// What is decided, and checked, before anything is started.
struct Preparation {
  int local_world_size = 1;
  std::string full_host;      ///< as the kernel has it
  std::string hostname;       ///< short; the coordinator may know a longer label
  std::string directory;      ///< of the workers, absolute
  ProgramSpec command;        ///< what was asked for, with the kind that the file turned out to be
  std::string program;        ///< what is executed: the program itself or a Python
  std::string python;         ///< empty for an executable
  std::string python_reason;  ///< by which rule it was chosen
  Environment parent;
  topology::CpuLayout cpus;       ///< only with --bind or --report-bindings
  topology::BindingPlan binding;  ///< .cpus is empty without --bind
};

/// Looks at the machine and at the program. Fails with what the user has to mend.
[[nodiscard]] Result<Preparation> prepare(const LaunchSpec& spec, const char* const* environment);

}  // namespace ddrun::agent
