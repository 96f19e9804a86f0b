#include "ddrun/cluster/detect.hpp"

#include "scenario.hpp"

using namespace ddrun;
using namespace ddrun::cluster;

namespace {

using Lines = std::vector<std::string>;

Result<std::optional<StartedRank>> look_at(const Lines& lines) {
  std::vector<const char*> entries;
  for (const std::string& line : lines) entries.push_back(line.c_str());
  entries.push_back(nullptr);
  return find_started_rank(Environment(entries.data()));
}

/// "Open MPI 1/4, 1/2 here"
std::string found_in(const Lines& lines) {
  const auto found = look_at(lines);
  if (!found) return found.error().message;
  if (!*found) return "nothing";
  const StartedRank& one = **found;
  return concat(one.launcher, ' ', one.rank, '/', one.size, ", ", one.local_rank, '/', one.local_size, " here");
}

Lines with(Lines lines, const Lines& more) {
  lines.insert(lines.begin(), more.begin(), more.end());  // the first of two counts
  return lines;
}

const Lines open_mpi{"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                     "OMPI_COMM_WORLD_LOCAL_SIZE=2"};
const Lines mpich{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"};
const Lines slurm{"SLURM_JOB_ID=12", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[3-5]",       "SLURM_JOB_NODELIST=n[1-9]",
                  "SLURM_PROCID=4",  "SLURM_LOCALID=0", "SLURM_STEP_NUM_TASKS=5",           "SLURM_NTASKS=5",
                  "SLURM_NODEID=2",  "SLURM_NNODES=3",  "SLURM_STEP_TASKS_PER_NODE=2(x2),1"};

}  // namespace

TEST_CASE("the rank of a process of mpirun is found") {
  CHECK(found_in({"HOME=/root"}) == "nothing");
  CHECK(found_in(open_mpi) == "Open MPI 3/4, 1/2 here");
  CHECK(found_in(mpich) == "MPICH 1/2, 1/2 here");
  CHECK(found_in({"MV2_COMM_WORLD_RANK=0", "MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_LOCAL_RANK=0",
                  "MV2_COMM_WORLD_LOCAL_SIZE=1"}) == "MVAPICH2 0/2, 0/1 here");
}

TEST_CASE("the rank of a task of srun is found") {
  CHECK(found_in(slurm) == "srun 4/5, 0/1 here");
  CHECK(found_in(with(slurm, {"SLURM_NODEID=1", "SLURM_PROCID=3", "SLURM_LOCALID=1", "SLURM_RESTART_COUNT=2"})) ==
        "srun 3/5, 1/2 here");
}

TEST_CASE("mpirun inside a Slurm job takes precedence over Slurm") {
  CHECK(found_in(with(slurm, open_mpi)).starts_with("Open MPI 3/4"));
  // srun with PMI sets these two, without the local size.
  CHECK(found_in(with(slurm, {"PMI_RANK=4", "PMI_SIZE=5"})).starts_with("srun 4/5"));
}

TEST_CASE("a batch script is no rank") {
  CHECK(found_in({"SLURM_JOB_ID=12", "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=4"}) == "nothing");
  CHECK(found_in(with(slurm, {"SLURM_STEP_ID=4294967291"})) == "nothing");
}

TEST_CASE("invalid numbers are reported") {
  CHECK(found_in(with(open_mpi, {"OMPI_COMM_WORLD_RANK=4"})).starts_with("OMPI_COMM_WORLD_RANK=4: "));
  CHECK(found_in(with(open_mpi, {"OMPI_COMM_WORLD_LOCAL_RANK=2"})).starts_with("OMPI_COMM_WORLD_LOCAL_RANK=2: "));
  CHECK(found_in(with(mpich, {"PMI_SIZE=two"})).starts_with("PMI_SIZE=two: "));
  CHECK(found_in(with(slurm, {"SLURM_HET_SIZE=2"})).find("several parts") != std::string::npos);
}
