#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/agent/agent.hpp"
#include "ddrun/agent/events_file.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/rendezvous/rendezvous.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "job_record.hpp"
#include "preparation.hpp"

namespace ddrun::agent {

/// What a job needs on this machine before its output and its workers: each part is complete.
struct Job {
  /// Checks the specification, raises the descriptor limit, opens --events and the rendezvous, in this order. Blocks on
  /// files and name lookups. Fails as prepare(), Launcher::create(), EventsFile::open(), find_or_make_secret() and
  /// Rendezvous::open() do. The references are borrowed. A Job is never destroyed: the process ends after it.
  static Result<Job*> create(const LaunchSpec& spec, process::AgentContext& context, const char* const* environment,
                             const std::string& version, JobHooks& hooks, JobRecord& record);

  /// For the lines of a program that is no worker: "[host:NAME] ", or nothing.
  [[nodiscard]] std::string label(std::string_view name) const;
  /// Its environment: that of a worker of `program`, in a round with these ranks, without these variables.
  [[nodiscard]] Result<std::vector<std::string>> environment_without(const std::set<std::string_view>& names,
                                                                     const ProgramSpec& program,
                                                                     const RankAssignment& of_round) const;
  [[nodiscard]] const RankAssignment& ranks_of(const PreparedProgram& program) const {
    return world_ranks[static_cast<std::size_t>(&program - prepared.programs.data())];
  }
  [[nodiscard]] RankName rank_name(int slot) const {
    const int local_rank = prepared.places[static_cast<std::size_t>(slot)].local_rank;
    return {prepared.role_of(slot), ranks_of(prepared.of(slot)).rank_of(local_rank)};
  }
  /// The first of the programs that are served MPI.
  [[nodiscard]] const PreparedProgram& mpi_program() const {
    return prepared.of(prepared.slot_of(prepared.mpi_world, 0));
  }

  const LaunchSpec& spec;
  process::AgentContext& context;
  JobHooks& hooks;
  JobRecord& record;
  std::string version;
  Preparation prepared;
  process::Launcher launcher;
  EventsFile events_file;
  boost::asio::io_context& io;
  std::shared_ptr<rendezvous::Rendezvous> rendezvous{};
  rendezvous::RendezvousListener on_told{};   ///< to be set before rendezvous->join()
  RankAssignment ranks{};                     ///< of the present round, or the last one: of all workers
  std::vector<RankAssignment> world_ranks{};  ///< the same by program, in its world
};

}  // namespace ddrun::agent
