#include <set>
#include <string_view>

#include "ddrun/agent/agent.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/rendezvous/local_rendezvous.hpp"
#include "ddrun/topology/cpus.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "preparation.hpp"

namespace ddrun::agent {

namespace {

std::string command_line(const Preparation& prepared, const std::vector<std::string>& argv) {
  std::string text = shell_quote(prepared.program);
  for (std::size_t i = 1; i < argv.size(); ++i) text += " " + shell_quote(argv[i]);
  return text;
}

/// Variables common to all workers, and those of single workers.
struct Differences {
  std::vector<std::string> common;
  std::vector<std::vector<std::string>> own;
};

Differences differences(worker_env::WorkerEnvironment& environment, const Preparation& prepared,
                        const std::set<std::string>& left_out) {
  std::multiset<std::string_view> inherited;
  for (const char* entry : prepared.parent.entries()) inherited.insert(entry);
  std::vector<std::vector<std::string>> lists;
  for (int local_rank = 0; local_rank < prepared.local_world_size; ++local_rank) {
    lists.push_back(environment.list(local_rank));
  }
  Differences result;
  result.own.resize(lists.size());
  const std::set<std::string> last(lists.back().begin(), lists.back().end());
  const std::set<std::string> first(lists.front().begin(), lists.front().end());
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    for (const auto& entry : lists[rank]) {
      if (inherited.count(entry) != 0 || left_out.count(entry.substr(0, entry.find('='))) != 0) continue;
      const bool shared = lists.size() > 1 ? first.count(entry) != 0 && last.count(entry) != 0 : false;
      if (!shared) result.own[rank].push_back(entry);
      else if (rank == 0) result.common.push_back(entry);
    }
  }
  return result;
}

std::string quote_entry(const std::string& entry) {
  const std::size_t equals = entry.find('=');
  return entry.substr(0, equals + 1) + (equals + 1 < entry.size() ? shell_quote(entry.substr(equals + 1)) : "");
}

/// What is known of the rendezvous in advance.
struct RendezvousPlan {
  RankAssignment ranks;
  std::string note;                         ///< lines
  std::set<std::string> unknown_variables;  ///< variables
};

Result<RendezvousPlan> plan_several(const LaunchSpec& spec, RendezvousPlan plan) {
  const RendezvousSpec& wanted = spec.rendezvous;
  const std::string nodes = wanted.min_nodes == wanted.max_nodes ? std::to_string(wanted.max_nodes)
                                                                 : concat(wanted.min_nodes, " to ", wanted.max_nodes);
  std::string place;
  if (wanted.has_lease()) {
    place = concat("where ", wanted.is_etcd() ? concat("etcd at ", wanted.endpoint, " says")
                                              : concat("'", wanted.lease, "' says"));
  } else {
    const auto location = rendezvous::find_coordinator(wanted, rendezvous::this_machine());
    if (!location) return tl::unexpected(location.error());
    const Endpoint& first = location->candidates.front();
    place = concat("at ", first.host, ":", first.port,
                   location->is_local ? ", where this one would run the coordinator" : "");
  }
  plan.note = concat("once ", nodes, " machines have met ", place, "; ranks and MASTER_ADDR are given then\n");
  plan.unknown_variables = {"RANK",       "WORLD_SIZE",      "GROUP_RANK",  "GROUP_WORLD_SIZE",
                            "ROLE_RANK",  "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                            "DDRUN_ROUND"};
  plan.ranks.run_id = wanted.id;
  return plan;
}

Result<RendezvousPlan> plan_rendezvous(const LaunchSpec& spec, int local_world_size) {
  RendezvousPlan plan;
  plan.ranks = rendezvous::assign_ranks({{local_world_size, spec.role}}).front();
  plan.ranks.max_restarts = spec.restart.max_restarts;
  plan.ranks.round = 1;
  if (spec.rendezvous.several_machines()) return plan_several(spec, std::move(plan));
  auto endpoint = rendezvous::choose_local_endpoint(spec.rendezvous);
  if (!endpoint) return tl::unexpected(endpoint.error());
  plan.ranks.run_id = endpoint->run_id;
  plan.ranks.master_addr = endpoint->advertised;
  plan.ranks.master_port = endpoint->port;
  if (endpoint->port == 0) plan.note = "MASTER_PORT is chosen when the job starts: a free one\n";
  return plan;
}

}  // namespace

Result<std::string> describe_job(const LaunchSpec& spec, const char* const* environment, const std::string& version) {
  auto prepared = prepare(spec, environment);
  if (!prepared) return tl::unexpected(prepared.error());
  auto plan = plan_rendezvous(spec, prepared->local_world_size);
  if (!plan) return tl::unexpected(plan.error());
  const RankAssignment& ranks = plan->ranks;
  worker_env::WorkerFacts facts;
  facts.version = version;
  facts.job_tag = ranks.run_id;
  auto prepared_environment = worker_env::WorkerEnvironment::prepare(spec, ranks, prepared->parent, facts);
  if (!prepared_environment) return tl::unexpected(prepared_environment.error());
  const Differences differ = differences(*prepared_environment, *prepared, plan->unknown_variables);

  std::string text = concat("would start ", counted(prepared->local_world_size, "worker"), " on ", prepared->hostname,
                            " in ", shell_quote(prepared->directory), "\n");
  if (!prepared->python_reason.empty()) text += concat("by ", prepared->python, ": ", prepared->python_reason, "\n");
  if (!spec.preload.empty())
    text += concat("workers as forks of a process that has imported ", join(spec.preload, ", "), "\n");
  const auto add_command = [&](std::string_view what, const std::string& command) {
    if (!command.empty()) text += concat(what, ": sh -c ", shell_quote(command), "\n");
  };
  add_command(spec.commands.before_each == BeforeEach::job ? "before the workers" : "before each attempt",
              spec.commands.before);
  add_command("after the workers", spec.commands.after);
  text += plan->note;
  if (!differ.common.empty()) text += "\nall workers:\n";
  for (const auto& entry : differ.common) text += concat("  ", quote_entry(entry), "\n");
  const auto bindings =
      spec.bind == BindMode::none
          ? std::vector<std::string>()
          : topology::describe_bindings(prepared->binding, prepared->local_world_size, prepared->cpus, 0);
  const bool several = !plan->unknown_variables.empty();
  for (int local_rank = 0; local_rank < prepared->local_world_size; ++local_rank) {
    const auto index = static_cast<std::size_t>(local_rank);
    text += concat(several ? "\nlocal rank " : "\nrank ", several ? local_rank : ranks.rank_of(local_rank), ":\n  ",
                   command_line(*prepared, worker_env::worker_argv(prepared->command, ranks.rank_of(local_rank),
                                                                   local_rank, prepared->python)),
                   "\n");
    for (const auto& entry : differ.own[index]) text += concat("  ", quote_entry(entry), "\n");
    if (index < bindings.size()) text += concat("  ", bindings[index], "\n");
  }
  return text;
}

}  // namespace ddrun::agent
