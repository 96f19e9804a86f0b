#include "ddrun/bench/rank_env.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::bench;
using namespace std::chrono_literals;

namespace {

using Lines = std::vector<std::string>;

Result<RankEnv> rank_env_in(const Lines& lines) {
  std::vector<const char*> entries;
  for (const std::string& line : lines) entries.push_back(line.c_str());
  entries.push_back(nullptr);
  return rank_env_from(Environment(entries.data()));
}

/// "1/4, 0/2 here, at 10.0.0.1:29500", plus "served" if the launcher serves the store.
std::string describe(const Lines& lines) {
  const auto env = rank_env_in(lines);
  if (!env) return env.error().message;
  if (env->is_singleton) return "singleton";
  return concat(env->rank, '/', env->size, ", ", env->local_rank, '/', env->local_size, " here, at ",
                env->master_address, ':', env->master_port, env->launcher_serves_store ? ", served" : "");
}

const Lines torchrun{"RANK=1",           "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=10.0.0.1",
                     "MASTER_PORT=29500"};
const Lines two_hosts{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                      "OMPI_COMM_WORLD_LOCAL_SIZE=2"};
const Lines one_host{"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"};
const Lines srun{
    "SLURM_JOB_ID=12",        "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[3-4]",     "SLURM_PROCID=2", "SLURM_LOCALID=0",
    "SLURM_STEP_NUM_TASKS=4", "SLURM_NODEID=1",  "SLURM_STEP_TASKS_PER_NODE=2(x2)"};

Lines operator+(Lines left, const Lines& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

}  // namespace

TEST_CASE("RANK and WORLD_SIZE take precedence over the variables of mpirun and srun") {
  CHECK(describe({}) == "singleton");
  CHECK(describe(torchrun) == "1/4, 1/2 here, at 10.0.0.1:29500");
  CHECK(describe(torchrun + Lines{"TORCHELASTIC_USE_AGENT_STORE=True"}) == "1/4, 1/2 here, at 10.0.0.1:29500, served");
  CHECK(describe(torchrun + two_hosts + srun) == "1/4, 1/2 here, at 10.0.0.1:29500");
  CHECK(describe(two_hosts + Lines{"RANK=0"}).starts_with("WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set: "));
}

TEST_CASE("ranks out of range are refused") {
  CHECK(describe({"RANK=4", "WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=1"}).starts_with("RANK=4: "));
  CHECK(describe({"RANK=-1", "WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=1"}).starts_with("RANK=-1: "));
  CHECK(describe({"RANK=0", "WORLD_SIZE=0", "MASTER_ADDR=h", "MASTER_PORT=1"}).starts_with("WORLD_SIZE=0: "));
  CHECK(describe({"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=70000"}).starts_with("MASTER_PORT=70000: "));
}

TEST_CASE("ranks of mpirun and srun need an address, and the error says how to set it") {
  const std::string refusal = describe(two_hosts);
  CHECK(refusal.starts_with("MASTER_ADDR, MASTER_PORT are not set: Open MPI does not say where ranks can meet; "));
  CHECK(refusal.find("mpirun -x MASTER_ADDR=ADDRESS -x MASTER_PORT=PORT ddrun-allreduce, ") != std::string::npos);
  CHECK(describe(one_host).find("mpiexec -genv MASTER_ADDR ADDRESS -genv MASTER_PORT PORT ") != std::string::npos);
  CHECK(describe(srun).find("srun --export=ALL,MASTER_ADDR=ADDRESS,MASTER_PORT=PORT ") != std::string::npos);
  CHECK(describe(two_hosts + Lines{"MASTER_ADDR=h"}).starts_with("MASTER_PORT is not set: "));
  const Lines address{"MASTER_ADDR=h", "MASTER_PORT=7"};
  CHECK(describe(two_hosts + address) == "1/4, 1/2 here, at h:7");
  CHECK(describe(one_host + address) == "1/2, 1/2 here, at h:7");
  CHECK(describe(srun + address) == "2/4, 0/2 here, at h:7");
}

TEST_CASE("different values of WORLD_SIZE are reported") {
  const auto server = store::TcpServer::start();
  REQUIRE(server);
  RankEnv env;
  env.size = 2;
  env.master_address = "127.0.0.1";
  env.master_port = (*server)->port();
  env.launcher_serves_store = true;
  const auto first = rendezvous(env, Clock::now() + 10s);
  REQUIRE(first);
  env.rank = 1;
  env.size = 3;
  const auto second = rendezvous(env, Clock::now() + 10s);
  REQUIRE(!second);
  CHECK(second.error().code == Errc::invalid_argument);
  CHECK(second.error().message == "there are 3 ranks, but another rank says 2: WORLD_SIZE must be the same everywhere");
  env.rank = 0;
  env.size = 2;
  const auto third = rendezvous(env, Clock::now() + 10s);
  REQUIRE(!third);
  CHECK(third.error().message.starts_with("another process is rank 0 too: "));
}

TEST_CASE("an unreachable store is reported with its address") {
  RankEnv env;
  env.rank = 1;
  env.size = 2;
  env.master_address = "127.0.0.1";
  env.master_port = 9;
  const auto result = rendezvous(env, Clock::now() + 200ms);
  REQUIRE(!result);
  CHECK(result.error().message.starts_with("cannot reach the store at 127.0.0.1 port 9: "));
}
