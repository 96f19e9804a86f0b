#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"

// `ddrun env` shows the detected values, their variables and what overrides them.

namespace ddrun {

namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

std::string nodes_text(const RendezvousSpec& rendezvous) {
  return rendezvous.min_nodes == rendezvous.max_nodes ? std::to_string(rendezvous.max_nodes)
                                                      : concat(rendezvous.min_nodes, ":", rendezvous.max_nodes);
}

/// "n1:20001", "[fd00::1]:29400"; the user's endpoint as typed.
std::vector<std::string> coordinators_of(const RendezvousSpec& rendezvous) {
  std::vector<std::string> places;
  for (const Endpoint& endpoint : rendezvous.coordinators)
    places.push_back(host_port_text(endpoint.host, endpoint.port));
  if (places.empty() && !rendezvous.endpoint.empty()) places.push_back(rendezvous.endpoint);
  if (places.empty() && rendezvous.master_addr) {
    places.push_back(rendezvous.master_port ? concat(*rendezvous.master_addr, ":", *rendezvous.master_port)
                                            : *rendezvous.master_addr);
  }
  return places;
}

/// A table with aligned columns, separated by two blanks.
std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += "  " + row[i];
      if (i + 1 < row.size()) text += std::string(widths[i] - row[i].size(), ' ');
    }
    text += '\n';
  }
  return text;
}

std::vector<Row> evidence_rows(const std::vector<cluster::Evidence>& evidence) {
  std::vector<Row> rows;
  for (const auto& one : evidence) {
    std::string from = concat("from ", one.variable);
    if (!one.overridden_by.empty()) from += concat("; instead: ", one.overridden_by);
    rows.push_back({one.what, one.value, std::move(from)});
  }
  return rows;
}

struct JobView {
  const LaunchSpec& spec;
  const cluster::Completion& completion;
  [[nodiscard]] const RendezvousSpec& rendezvous() const { return spec.rendezvous; }
  [[nodiscard]] bool is_single_node() const { return !rendezvous().several_machines(); }
};

std::vector<Row> job_rows(const JobView& job) {
  const RendezvousSpec& rendezvous = job.rendezvous();
  std::vector<Row> rows;
  rows.push_back({"nodes", job.is_single_node() ? "1: this machine alone" : nodes_text(rendezvous)});
  if (!job.is_single_node()) {
    if (job.completion.start_agents) {
      rows.push_back({"agents", concat("started here through srun on ", job.completion.start_agents->nodes, " nodes")});
    }
    rows.push_back(
        {"node rank", rendezvous.node_rank ? std::to_string(*rendezvous.node_rank) : "given by the coordinator"});
    const auto places = coordinators_of(rendezvous);
    rows.push_back({"coordinator", places.empty() ? "not known: give --rdzv-endpoint" : join(places, ", ")});
    if (rendezvous.is_host) rows.push_back({"", *rendezvous.is_host ? "it runs here" : "it runs on another machine"});
    rows.push_back({"id", rendezvous.id});
  }
  for (const ProgramSpec& program : job.spec.programs) {
    rows.push_back({"workers per node", nproc_text(program.nproc)});
    if (!program.name.empty()) rows.push_back({"program", concat(program.name, ", not started")});
  }
  return rows;
}

std::string as_text(const cluster::Detected& detected, const JobView& job) {
  std::string text = concat("Found: ", detected.scheme.empty() ? "no scheduler" : detected.scheme, "\n");
  text += table(evidence_rows(job.completion.evidence));
  return text + "\nThis job:\n" + table(job_rows(job));
}

Json evidence_json(const std::vector<cluster::Evidence>& evidence) {
  Json list = Json::array();
  for (const auto& one : evidence) {
    list.push_back({{"what", one.what},
                    {"value", one.value},
                    {"from", one.variable},
                    {"used", one.overridden_by.empty()},
                    {"instead", one.overridden_by.empty() ? Json(nullptr) : Json(one.overridden_by)}});
  }
  return list;
}

std::string as_json(const cluster::Detected& detected, const JobView& job) {
  const RendezvousSpec& rendezvous = job.rendezvous();
  Json json;
  json["scheme"] = detected.scheme.empty() ? Json(nullptr) : Json(detected.scheme);
  json["evidence"] = evidence_json(job.completion.evidence);
  Json& out = json["job"];
  out["min_nodes"] = job.is_single_node() ? 1 : rendezvous.min_nodes;
  out["max_nodes"] = job.is_single_node() ? 1 : rendezvous.max_nodes;
  out["node_rank"] = rendezvous.node_rank ? Json(*rendezvous.node_rank) : Json(nullptr);
  out["coordinators"] = job.is_single_node() ? std::vector<std::string>{} : coordinators_of(rendezvous);
  out["coordinator_is_here"] = rendezvous.is_host ? Json(*rendezvous.is_host) : Json(nullptr);
  out["id"] = rendezvous.id;
  out["workers_per_node"] = nproc_text(job.spec.first().nproc);
  out["agents_through_srun"] = job.completion.start_agents ? Json(job.completion.start_agents->nodes) : Json(nullptr);
  return json.dump(2) + "\n";
}

int print_or_fail(const std::string& text, int code) {
  return write_shared(STDOUT_FILENO, text) ? code : exit_codes::launcher_failed;
}

}  // namespace

bool starts_env_program(std::string_view word) {
  if (word.empty()) return false;
  if (word.front() != '-' || word == "-") return true;
  if (word[1] != '-') return std::string_view("iu0CSa").find(word[1]) != std::string_view::npos;
  constexpr std::string_view only_of_env =
      "--argv0 --block-signal --default-signal --ignore-environment --ignore-signal --list-signal-handling --null "
      "--split-string --unset";
  const auto names = split(only_of_env, ' ');
  return std::find(names.begin(), names.end(), word.substr(0, word.find('='))) != names.end();
}

/// `ddrun env` with the options of a launch and an optional program, which is not started.
Parsed parse_env(std::span<const std::string> rest, const cli::ParseContext& context) {
  auto parsed = cli::parse_env_command(rest, context);
  if (const auto* text = std::get_if<cli::PrintAndExit>(&parsed)) return *text;
  auto& launch = std::get<cli::Launch>(parsed);
  const std::string& program = launch.spec.first().name;
  if (program.find('=') != std::string::npos && program.find('/') > program.find('=')) {
    return cli::usage_error(concat("'ddrun env' starts nothing; for env(1) with ", program,
                                   " write its options first: ddrun [options] -- env ", program, " ..."));
  }
  return ShowEnv{std::move(launch)};
}

int run_env(const Parsed& parsed) {
  ShowEnv command = std::get<ShowEnv>(parsed);
  cli::Launch& launch = command.launch;
  set_message_settings(launch.messages);
  const auto detected = detect_environment(launch, ::getpid());
  if (!detected) return say_failure(detected.error(), exit_codes::usage);
  const auto completion = complete_launch(launch, *detected);
  if (!completion) {
    // The evidence helps to understand the error.
    const std::string seen = concat("Found: ", detected->scheme, "\n", table(evidence_rows(detected->evidence)));
    const int code = launch.json ? exit_codes::usage : print_or_fail(seen, exit_codes::usage);
    say_error(completion.error().message);
    return code;
  }
  const JobView job{launch.spec, *completion};
  return print_or_fail(launch.json ? as_json(*detected, job) : as_text(*detected, job), 0);
}

}  // namespace ddrun
