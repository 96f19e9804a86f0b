#pragma once

#include <cstddef>
#include <optional>
#include <set>
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

/// One of the job's programs.
struct PreparedProgram {
  ProgramSpec command;         ///< as given, with the kind of the file found
  int workers = 1;             ///< of this machine
  int first_slot = 0;          ///< of these
  std::optional<int> world{};  ///< number of its world, if it has one; the programs of one share ranks and store
  int first_local_rank = 0;    ///< in its world
  std::string directory;       ///< of the workers, absolute
  std::string program;         ///< the executable: the program or a Python
  std::string python;          ///< empty for an executable
  std::string python_reason;   ///< the rule by which it was chosen
  std::string meets_by;        ///< "train.py has Accelerator(": of several workers, by worker_env::meeting_call()
};

/// What is resolved and checked before a process is started.
struct Preparation {
  std::vector<PreparedProgram> programs;
  std::vector<WorkerPlace> places;  ///< by slot
  std::string full_host;            ///< as the kernel has it
  std::string hostname;             ///< short; the coordinator may know a longer label
  int worlds = 1;
  MpiServing mpi;
  int mpi_world = -1;  ///< whose programs are served, if MPI is on
  Environment parent;
  topology::CpuLayout cpus;       ///< only with --bind or --report-bindings
  topology::BindingPlan binding;  ///< .cpus, by slot, is empty without --bind

  std::size_t first_main = 0;  ///< its index
  /// DDRUN_HOSTS_<NAME> and the like; none in a job of one program.
  std::vector<std::pair<std::string, std::string>> addresses;

  [[nodiscard]] const PreparedProgram& first() const { return programs[first_main]; }
  [[nodiscard]] const PreparedProgram& program_of(const WorkerPlace& place) const {
    return programs[static_cast<std::size_t>(place.program)];
  }
  [[nodiscard]] const PreparedProgram& of(int slot) const { return program_of(places[static_cast<std::size_t>(slot)]); }
  [[nodiscard]] int workers() const { return static_cast<int>(places.size()); }
  [[nodiscard]] bool is_service(int slot) const { return of(slot).command.is_service; }
  /// Slots of the workers of services.
  [[nodiscard]] std::set<int> services() const;
  /// Part of the worker's name; empty in a job of one program.
  [[nodiscard]] std::string role_of(int slot) const { return programs.size() > 1 ? of(slot).command.role : ""; }
  /// The slot of a worker in a world.
  [[nodiscard]] int slot_of(int world, int local_rank) const;
  /// --report-bindings: a line for each worker, by slot, with ranks as on the machine of rank 0.
  [[nodiscard]] std::vector<std::string> bindings() const;
  /// The program whose workers are forks of a server; null without --preload.
  [[nodiscard]] const PreparedProgram* preloading() const;
};

/// The ranks of each program in its world. `node`: those of all workers of this machine; `ports`: of the worlds'
/// stores.
[[nodiscard]] std::vector<RankAssignment> ranks_by_program(const Preparation& prepared, const RankAssignment& node,
                                                           const std::vector<int>& ports);

/// Fails with an error that the user can correct, such as a missing program or directory. Blocks on files only.
[[nodiscard]] Result<Preparation> prepare(const LaunchSpec& spec, const char* const* environment);

/// The variables for workers of a round at `master_addr`: --interface for Gloo, NCCL and UCX. Without it, on several
/// machines, GLOO_SOCKET_IFNAME is the interface of the route to `master_addr`, unless the hosts file gives `host_name`
/// an address of this machine, or `master_addr` is a name or the loopback. Sends no packet and does not block.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> interface_variables(const LaunchSpec& spec,
                                                                                   const std::string& master_addr,
                                                                                   const std::string& host_name);

}  // namespace ddrun::agent
