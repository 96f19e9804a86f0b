#include <set>
#include <string_view>

#include "ddrun/agent/agent.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/rendezvous/coordinator_place.hpp"
#include "ddrun/rendezvous/local_rendezvous.hpp"
#include "ddrun/topology/bindings.hpp"
#include "ddrun/worker_env/worker_argv.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "preparation.hpp"

namespace ddrun::agent {

namespace {

std::string command_line(const Preparation& prepared, const std::vector<std::string>& argv) {
  std::string text = shell_quote(prepared.program);
  for (std::size_t i = 1; i < argv.size(); ++i) text += " " + shell_quote(argv[i]);
  return text;
}

/// Variables that are the same for all workers, and those of one alone.
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

/// What can be said of the meeting before it has taken place.
struct MeetingPlan {
  RankAssignment ranks;
  std::string note;                     ///< lines
  std::set<std::string> not_known_yet;  ///< variables
};

Result<MeetingPlan> plan_several(const LaunchSpec& spec, MeetingPlan plan) {
  const RendezvousSpec& meeting = spec.rendezvous;
  const auto place = rendezvous::find_coordinator(meeting, rendezvous::this_machine());
  if (!place) return tl::unexpected(place.error());
  const std::string nodes = meeting.min_nodes == meeting.max_nodes
                                ? std::to_string(meeting.max_nodes)
                                : concat(meeting.min_nodes, " to ", meeting.max_nodes);
  const Endpoint& first = place->candidates.front();
  plan.note = concat("once ", nodes, " machines have met at ", first.host, ":", first.port,
                     place->is_here ? ", where this one would run the coordinator" : "",
                     "; ranks and MASTER_ADDR are given then\n");
  plan.not_known_yet = {"RANK",      "WORLD_SIZE",      "GROUP_RANK",  "GROUP_WORLD_SIZE",
                        "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  plan.ranks.run_id = meeting.id;
  return plan;
}

Result<MeetingPlan> plan_meeting(const LaunchSpec& spec, int local_world_size) {
  MeetingPlan plan;
  plan.ranks = rendezvous::assign_ranks({{local_world_size, spec.role}}).front();
  plan.ranks.max_restarts = spec.restart.max_restarts;
  if (spec.rendezvous.several_machines()) return plan_several(spec, std::move(plan));
  auto place = rendezvous::choose_meeting_place(spec.rendezvous);
  if (!place) return tl::unexpected(place.error());
  plan.ranks.run_id = place->run_id;
  plan.ranks.master_addr = place->advertised;
  plan.ranks.master_port = place->port;
  if (place->port == 0) plan.note = "MASTER_PORT is chosen when the job starts: a free one\n";
  return plan;
}

}  // namespace

Result<std::string> describe_job(const LaunchSpec& spec, const char* const* environment, const std::string& version) {
  auto prepared = prepare(spec, environment);
  if (!prepared) return tl::unexpected(prepared.error());
  auto plan = plan_meeting(spec, prepared->local_world_size);
  if (!plan) return tl::unexpected(plan.error());
  const RankAssignment& ranks = plan->ranks;
  worker_env::WorkerFacts facts;
  facts.version = version;
  facts.job_tag = ranks.run_id;
  auto prepared_environment = worker_env::WorkerEnvironment::prepare(spec, ranks, prepared->parent, facts);
  if (!prepared_environment) return tl::unexpected(prepared_environment.error());
  const Differences differ = differences(*prepared_environment, *prepared, plan->not_known_yet);

  std::string text = concat("would start ", counted(prepared->local_world_size, "worker"), " on ", prepared->hostname,
                            " in ", shell_quote(prepared->directory), "\n");
  text += plan->note;
  if (!differ.common.empty()) text += "\nall workers:\n";
  for (const auto& entry : differ.common) text += concat("  ", quote_entry(entry), "\n");
  const auto bindings =
      spec.bind == BindMode::none
          ? std::vector<std::string>()
          : topology::describe_bindings(prepared->binding, prepared->local_world_size, prepared->cpus, 0);
  const bool several = !plan->not_known_yet.empty();
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
