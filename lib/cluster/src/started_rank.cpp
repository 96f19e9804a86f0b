#include "ddrun/cluster/detect.hpp"

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "schemes.hpp"

namespace ddrun::cluster {

namespace {

constexpr int rank_limit = 1'000'000;

Result<int> number(const Fact<std::string>& fact, int low, int high) {
  const auto parsed = parse_integer(fact.value, low, high);
  if (!parsed)
    return fail(Errc::invalid_argument, concat(fact.variable, "=", fact.value, ": ", parsed.error().message));
  return static_cast<int>(*parsed);
}

/// Parses and checks the four numbers.
Result<void> set_ranks(StartedRank& started, const Fact<std::string>& rank, const Fact<std::string>& size,
                       const Fact<std::string>& local_rank, const Fact<std::string>& local_size) {
  const auto world_size = TRY(number(size, 1, rank_limit));
  const auto rank_number = TRY(number(rank, 0, world_size - 1));
  const auto ranks_on_node = TRY(number(local_size, 1, world_size));
  const auto local_rank_number = TRY(number(local_rank, 0, ranks_on_node - 1));
  started.rank = rank_number;
  started.size = world_size;
  started.local_rank = local_rank_number;
  started.local_size = ranks_on_node;
  return {};
}

Result<std::optional<StartedRank>> find_mpi_rank(const Environment& variables, const MpiVariables& names) {
  const auto rank = text_of(variables, names.rank);
  const auto size = text_of(variables, names.size);
  const auto local_rank = text_of(variables, names.local_rank);
  const auto local_size = text_of(variables, names.local_size);
  if (!rank || !size || !local_rank || !local_size) return std::nullopt;
  StartedRank started;
  started.launcher = names.scheme;
  started.command = concat(names.scheme == open_mpi.scheme ? "mpirun " : "mpiexec ", names.pass);
  TRY(set_ranks(started, *rank, *size, *local_rank, *local_size));
  return started;
}

/// Item `index` of a list such as "2(x3),1", meaning 2, 2, 2, 1.
Maybe<std::string> tasks_on_node(const Environment& variables, int index) {
  const auto text = first_text_of(variables, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (!text) return std::nullopt;
  long long passed = 0;
  for (const std::string& item : split(text->value, ',')) {
    const std::size_t times_at = item.find("(x");
    long long times = 1;
    if (times_at != std::string::npos && item.back() == ')') {
      const auto parsed = parse_integer(item.substr(times_at + 2, item.size() - times_at - 3), 1, node_limit);
      if (!parsed) return std::nullopt;
      times = *parsed;
    }
    passed += times;
    if (index < passed) return Fact<std::string>{item.substr(0, times_at), text->variable};
  }
  return std::nullopt;
}

Result<std::optional<StartedRank>> find_slurm_rank(const Environment& variables) {
  const auto job = first_text_of(variables, slurm_job_names);
  const auto step = slurm_step(variables);
  const auto rank = text_of(variables, "SLURM_PROCID");
  const auto size = first_text_of(variables, slurm_step_tasks_names);
  const auto local_rank = text_of(variables, "SLURM_LOCALID");
  if (!job || !step || !rank || !size || !local_rank) return std::nullopt;
  if (is_heterogeneous_slurm(variables)) {
    return fail(Errc::invalid_argument,
                "SLURM_HET_SIZE says that this Slurm job has several parts, which are not put together: set RANK, "
                "WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  }
  StartedRank started;
  started.launcher = "srun";
  started.command = "srun --export=ALL,MASTER_ADDR=ADDRESS,MASTER_PORT=PORT";
  const auto node = TRY(number_of(variables, "SLURM_NODEID", 0, node_limit));
  const auto ranks_on_node = node ? tasks_on_node(variables, node->value) : std::nullopt;
  TRY(set_ranks(started, *rank, *size, *local_rank, ranks_on_node ? *ranks_on_node : *size));
  return started;
}

}  // namespace

Result<std::optional<StartedRank>> find_started_rank(const Environment& variables) {
  for (const MpiVariables& names : mpis) {
    auto found = find_mpi_rank(variables, names);
    if (!found || *found) return found;
  }
  return find_slurm_rank(variables);
}

}  // namespace ddrun::cluster
