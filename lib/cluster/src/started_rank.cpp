#include "ddrun/cluster/started_rank.hpp"

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cluster/hosts.hpp"
#include "findings.hpp"

namespace ddrun::cluster {

namespace {

constexpr int most_ranks = 1'000'000;

Result<int> number(const Fact<std::string>& fact, int low, int high) {
  const auto parsed = parse_integer(fact.value, low, high);
  if (!parsed)
    return fail(Errc::invalid_argument, concat(fact.variable, "=", fact.value, ": ", parsed.error().message));
  return static_cast<int>(*parsed);
}

/// The four numbers, from four variables.
Result<void> take(StartedRank& started, const Fact<std::string>& rank, const Fact<std::string>& size,
                  const Fact<std::string>& local_rank, const Fact<std::string>& local_size) {
  const auto all = number(size, 1, most_ranks);
  if (!all) return tl::unexpected(all.error());
  const auto mine = number(rank, 0, *all - 1);
  if (!mine) return tl::unexpected(mine.error());
  const auto here = number(local_size, 1, *all);
  if (!here) return tl::unexpected(here.error());
  const auto mine_here = number(local_rank, 0, *here - 1);
  if (!mine_here) return tl::unexpected(mine_here.error());
  started.rank = *mine;
  started.size = *all;
  started.local_rank = *mine_here;
  started.local_size = *here;
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
  if (auto done = take(started, *rank, *size, *local_rank, *local_size); !done) return tl::unexpected(done.error());
  return started;
}

/// Item `index` of "2(x3),1", which is 2, 2, 2, 1.
Maybe<std::string> tasks_here(const Environment& variables, int index) {
  const auto text = first_text_of(variables, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (!text) return std::nullopt;
  long long passed = 0;
  for (const std::string& item : split(text->value, ',')) {
    const std::size_t times_at = item.find("(x");
    long long times = 1;
    if (times_at != std::string::npos && item.back() == ')') {
      const auto parsed = parse_integer(item.substr(times_at + 2, item.size() - times_at - 3), 1, most_nodes);
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
  const auto node = number_of(variables, "SLURM_NODEID", 0, most_nodes);
  if (!node) return tl::unexpected(node.error());
  const auto here = *node ? tasks_here(variables, (*node)->value) : std::nullopt;
  if (auto done = take(started, *rank, *size, *local_rank, here ? *here : *size); !done) {
    return tl::unexpected(done.error());
  }
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
