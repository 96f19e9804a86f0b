#include <set>
#include <string_view>

#include "ddrun/agent/agent.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/topology/cpus.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "preparation.hpp"

namespace ddrun::agent {

namespace {

std::string command_line(const PreparedProgram& prepared, const std::vector<std::string>& argv) {
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
                        const PreparedProgram& program, const std::set<std::string>& left_out) {
  std::multiset<std::string_view> inherited;
  for (const char* entry : prepared.parent.entries()) inherited.insert(entry);
  std::vector<std::vector<std::string>> lists;
  for (int i = 0; i < program.workers; ++i) {
    lists.push_back(environment.list(program.first_local_rank + i));
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

/// Instead of a value that is not known before.
constexpr std::string_view at_start = "(set at the start)";

std::string quote_entry(const std::string& entry) {
  const std::size_t equals = entry.find('=');
  if (entry == "MASTER_PORT=0" || entry.ends_with(at_start)) return concat(entry.substr(0, equals + 1), at_start);
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
    const auto location = TRY(rendezvous::find_coordinator(wanted, rendezvous::this_machine()));
    const Endpoint& first = location.candidates.front();
    place = concat("at ", first.host, ":", first.port,
                   location.is_local ? ", where this one would run the coordinator" : "");
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
  plan.ranks = rendezvous::assign_ranks({{local_world_size, spec.first().role}}).front();
  plan.ranks.max_restarts = spec.restart.max_restarts;
  plan.ranks.round = 1;
  if (spec.rendezvous.several_machines()) return plan_several(spec, std::move(plan));
  auto endpoint = TRY(rendezvous::choose_local_endpoint(spec.rendezvous));
  plan.ranks.run_id = endpoint.run_id;
  plan.ranks.master_addr = endpoint.advertised;
  plan.ranks.master_port = endpoint.port;
  if (endpoint.port == 0) plan.note = "MASTER_PORT is chosen when the job starts: a free one\n";
  return plan;
}

/// Appends a program's workers.
Result<void> describe_program(std::string& text, const LaunchSpec& spec, const Preparation& prepared,
                              const PreparedProgram& program, const RankAssignment& ranks,
                              const worker_env::WorkerFacts& facts, const std::set<std::string>& unknown_variables) {
  auto variables = TRY(worker_env::WorkerEnvironment::prepare(spec, program.command, ranks, prepared.parent, facts));
  const Differences differ = differences(variables, prepared, program, unknown_variables);
  if (!differ.common.empty()) text += "\nall workers:\n";
  for (const auto& entry : differ.common) text += concat("  ", quote_entry(entry), "\n");
  const auto bindings = program.command.bind == BindMode::none ? std::vector<std::string>() : prepared.bindings();
  const bool several = !unknown_variables.empty();  // machines
  for (int i = 0; i < program.workers; ++i) {
    const int local_rank = program.first_local_rank + i;
    const int rank = ranks.rank_of(local_rank);
    const auto slot = static_cast<std::size_t>(program.first_slot + i);
    const std::string name =
        several ? concat("local rank ", local_rank) : RankName{prepared.role_of(static_cast<int>(slot)), rank}.text();
    text += concat("\n", name, ":\n  ",
                   command_line(program, worker_env::worker_argv(program.command, rank, local_rank, program.python,
                                                                 program.command.port_of(i))),
                   "\n");
    for (const auto& entry : differ.own[static_cast<std::size_t>(i)]) text += concat("  ", quote_entry(entry), "\n");
    if (slot < bindings.size()) text += concat("  ", bindings[slot], "\n");
  }
  return {};
}

}  // namespace

Result<std::string> describe_job(const LaunchSpec& spec, const char* const* environment, const std::string& version) {
  auto prepared = TRY(prepare(spec, environment));
  auto plan = TRY(plan_rendezvous(spec, prepared.workers()));
  worker_env::WorkerFacts facts;
  facts.version = version;
  // Without --rdzv-id a job has a new one.
  if (plan.ranks.run_id != spec.rendezvous.id) plan.ranks.run_id = at_start;
  facts.job_tag = plan.ranks.run_id;
  if (spec.log.dir != "/dev/null") facts.error_file = [](int) { return std::string(at_start); };
  facts.addresses = prepared.addresses;

  const bool several = spec.has_several_programs();
  std::string text = concat("would start ", counted(prepared.workers(), "worker"), " on ", prepared.hostname);
  if (!several) text += concat(" in ", shell_quote(prepared.first().directory));
  text += "\n";
  const auto add_program = [&](const PreparedProgram& program) {
    if (several) {
      text += concat("\n", program.command.role, program.command.is_service ? ": a service, " : ": ",
                     counted(program.workers, "worker"), " in ", shell_quote(program.directory), "\n");
    }
    if (!program.python_reason.empty()) text += concat("by ", program.python, ": ", program.python_reason, "\n");
    if (program.command.preload.empty()) return;
    text += concat("workers as forks of a process that has imported ", join(program.command.preload, ", "), "\n");
  };
  if (!several) add_program(prepared.first());
  const auto add_command = [&](std::string_view what, const std::string& command) {
    if (!command.empty()) text += concat(what, ": sh -c ", shell_quote(command), "\n");
  };
  add_command(spec.commands.before_each == BeforeEach::job ? "before the workers" : "before each attempt",
              spec.commands.before);
  add_command("after the workers", spec.commands.after);
  text += plan.note;
  std::vector<int> ports(static_cast<std::size_t>(prepared.worlds));
  ports.front() = plan.ranks.master_port;
  const std::vector<RankAssignment> ranks = ranks_by_program(prepared, plan.ranks, ports);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const PreparedProgram& program = prepared.programs[i];
    if (several) add_program(program);
    TRY(describe_program(text, spec, prepared, program, ranks[i], facts, plan.unknown_variables));
  }
  return text;
}

}  // namespace ddrun::agent
