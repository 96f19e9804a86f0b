#include <algorithm>
#include <map>
#include <set>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/worker_env/worker_environment.hpp"

using namespace ddrun;
using namespace ddrun::worker_env;
using Entries = std::vector<std::string>;

namespace {

/// The inputs of one case: two nodes of which this is the second, four workers each.
struct Case {
  LaunchSpec spec;
  RankAssignment ranks;
  WorkerFacts facts;
  std::vector<const char*> parent = {"PATH=/bin", "HOME=/root"};

  Case() {
    ranks.run_id = "job7";
    ranks.round = 4;
    ranks.restart_count = 2;
    ranks.max_restarts = 5;
    ranks.node_rank = 1;
    ranks.node_count = 2;
    ranks.base_rank = 4;
    ranks.local_world_size = 4;
    ranks.world_size = 8;
    ranks.role_base_rank = 4;
    ranks.role_world_size = 8;
    ranks.master_addr = "127.0.0.1";
    ranks.master_port = 29501;
    facts.version = "1.2.3";
  }

  [[nodiscard]] Environment parent_environment() const {
    std::vector<const char*> entries = parent;
    entries.push_back(nullptr);
    return Environment(entries.data());
  }
  [[nodiscard]] Entries list(int local_rank) const {
    auto entries = worker_environment(spec, spec.first(), ranks, local_rank, parent_environment(), facts);
    if (!entries) return {"error: " + entries.error().message};
    return *entries;
  }
  [[nodiscard]] std::map<std::string, std::string> values(int local_rank) const {
    std::map<std::string, std::string> values;
    for (const auto& entry : list(local_rank)) {
      const auto equals = entry.find('=');
      const bool fresh = values.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second;
      INFO(entry);
      CHECK(fresh);
    }
    return values;
  }
  [[nodiscard]] std::string error() const {
    const auto entries = worker_environment(spec, spec.first(), ranks, 0, parent_environment(), facts);
    REQUIRE_FALSE(entries);
    CHECK(entries.error().code == Errc::invalid_argument);
    return entries.error().message;
  }
};

}  // namespace

TEST_CASE("a scheduler's rank variables are not inherited by workers") {
  Case test;
  const std::vector<const char*> misleading = {"SLURM_PROCID=0",
                                               "SLURM_LOCALID=0",
                                               "SLURM_NTASKS=2",
                                               "SLURM_NPROCS=2",
                                               "SLURM_GTIDS=0",
                                               "SLURM_TASK_PID=1",
                                               "PMI_RANK=0",
                                               "PMI_FD=3",
                                               "PMIX_RANK=0",
                                               "PMIX_NAMESPACE=x",
                                               "OMPI_COMM_WORLD_RANK=0",
                                               "OMPI_COMM_WORLD_LOCAL_SIZE=1",
                                               "OMPI_MCA_ess_base_jobid=1",
                                               "MPI_LOCALNRANKS=1",
                                               "MV2_COMM_WORLD_RANK=0",
                                               "FLUX_TASK_RANK=0",
                                               "JSM_NAMESPACE_RANK=0",
                                               "SLURM_STEP_NUM_TASKS=2",
                                               "PALS_RANKID=0"};
  const std::vector<const char*> harmless = {
      "SLURM_JOB_ID=1",   "SLURM_NODEID=1", "SLURMD_NODENAME=n", "SLURM_NTASKS_PER_NODE=1",
      "OMPI_MCA_btl=tcp", "FLUX_URI=x",     "PBS_JOBID=1",       "PMIX=x"};
  for (const char* entry : misleading) test.parent.push_back(entry);
  for (const char* entry : harmless) test.parent.push_back(entry);
  const auto has = [](const Entries& entries, const char* entry) {
    return std::find(entries.begin(), entries.end(), entry) != entries.end();
  };
  const Entries entries = test.list(0);
  for (const char* entry : misleading) {
    INFO(entry);
    CHECK_FALSE(has(entries, entry));
  }
  for (const char* entry : harmless) {
    INFO(entry);
    CHECK(has(entries, entry));
  }
  test.spec.first().env = {{"PMI_RANK", "7"}};
  CHECK(has(test.list(0), "PMI_RANK=7"));
  test.spec.first().env.clear();
  test.spec.keep_scheduler_env = true;
  for (const char* entry : misleading) CHECK(has(test.list(0), entry));
}

TEST_CASE("a worker gets what torchrun would give it and what ddrun adds") {
  Case c;
  c.spec.first().role = "trainer";
  c.spec.seed = 1234567;
  c.facts.attempt_dir = "/logs/attempt_2";
  c.facts.error_file = [](int local_rank) { return "/logs/attempt_2/" + std::to_string(local_rank) + "/error.json"; };
  c.facts.timer_file = "/tmp/timer";
  c.facts.job_tag = "t4g";
  CHECK(c.list(3) == Entries{"PATH=/bin",
                             "HOME=/root",
                             "WORLD_SIZE=8",
                             "LOCAL_WORLD_SIZE=4",
                             "GROUP_RANK=1",
                             "GROUP_WORLD_SIZE=2",
                             "ROLE_NAME=trainer",
                             "ROLE_WORLD_SIZE=8",
                             "MASTER_ADDR=127.0.0.1",
                             "MASTER_PORT=29501",
                             "TORCHELASTIC_RESTART_COUNT=2",
                             "TORCHELASTIC_MAX_RESTARTS=5",
                             "TORCHELASTIC_RUN_ID=job7",
                             "TORCHELASTIC_USE_AGENT_STORE=True",
                             "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                             "DDRUN_VERSION=1.2.3",
                             "DDRUN_ROUND=4",
                             "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                             "OMP_NUM_THREADS=1",
                             "TORCHELASTIC_TIMER_FILE=/tmp/timer",
                             "PYTHONUNBUFFERED=1",
                             "DDRUN_ATTEMPT_DIR=/logs/attempt_2",
                             "DDRUN_JOB_TAG=t4g",
                             "RANK=7",
                             "LOCAL_RANK=3",
                             "ROLE_RANK=7",
                             "TORCHELASTIC_ERROR_FILE=/logs/attempt_2/3/error.json",
                             "DDRUN_SEED=5078158048327840177"});
}

TEST_CASE("missing values are not set, but the error file is empty") {
  const auto values = Case().values(0);
  CHECK(values.at("TORCHELASTIC_ERROR_FILE").empty());
  for (const char* name :
       {"DDRUN_SEED", "DDRUN_ATTEMPT_DIR", "DDRUN_JOB_TAG", "TORCHELASTIC_TIMER_FILE", "CUDA_VISIBLE_DEVICES"}) {
    INFO(name);
    CHECK(values.count(name) == 0);
  }
}

TEST_CASE("OMP_NUM_THREADS is 1 only if it is unset and there are several workers") {
  Case c;
  SECTION("several workers") { CHECK(c.values(0).at("OMP_NUM_THREADS") == "1"); }
  SECTION("one worker") {
    c.ranks.local_world_size = 1;
    CHECK(c.values(0).count("OMP_NUM_THREADS") == 0);
  }
  SECTION("inherited") {
    c.parent.push_back("OMP_NUM_THREADS=8");
    CHECK(c.values(0).at("OMP_NUM_THREADS") == "8");
  }
  SECTION("inherited empty is set") {
    c.parent.push_back("OMP_NUM_THREADS=");
    CHECK(c.values(0).at("OMP_NUM_THREADS").empty());
  }
  SECTION("given with env") {
    c.spec.first().env = {{"OMP_NUM_THREADS", "3"}};
    CHECK(c.values(0).at("OMP_NUM_THREADS") == "3");
  }
}

TEST_CASE("PYTHONFAULTHANDLER is set for Python workers unless the user has set it") {
  Case c;
  CHECK(c.values(0).count("PYTHONFAULTHANDLER") == 0);
  for (const char* name : {"python3", "/opt/venv/bin/python3.12"}) {
    c.spec.first().name = name;
    CHECK(c.values(0).at("PYTHONFAULTHANDLER") == "1");
  }
  c.spec.first().name = "/python/train";
  CHECK(c.values(0).count("PYTHONFAULTHANDLER") == 0);
  c.spec.first().kind = ProgramKind::python_script;
  CHECK(c.values(0).at("PYTHONFAULTHANDLER") == "1");
  c.parent.push_back("PYTHONFAULTHANDLER=");
  CHECK(c.values(0).at("PYTHONFAULTHANDLER").empty());
  c.spec.first().env = {{"PYTHONFAULTHANDLER", "0"}};
  CHECK(c.values(0).at("PYTHONFAULTHANDLER") == "0");
}

TEST_CASE("NCCL error handling and Python's buffering are inherited or 1") {
  Case c;
  CHECK(c.values(0).at("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "1");
  CHECK(c.values(0).at("PYTHONUNBUFFERED") == "1");
  c.parent.push_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=3");
  CHECK(c.values(0).at("TORCH_NCCL_ASYNC_ERROR_HANDLING") == "3");
  c.parent.push_back("PYTHONUNBUFFERED=");
  CHECK(c.values(0).at("PYTHONUNBUFFERED").empty());
}

TEST_CASE("the agent store is shared unless disabled outside the static rendezvous") {
  Case c;
  c.parent.push_back("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1");
  const auto value = [&] { return c.values(0).at("TORCHELASTIC_USE_AGENT_STORE"); };
  CHECK(value() == "False");  // standalone by itself
  c.spec.rendezvous.backend = "c10d";
  CHECK(value() == "False");
  c.spec.rendezvous.backend = "static";
  c.spec.rendezvous.master_port = 29500;
  CHECK(value() == "True");
  c.spec.rendezvous.standalone = true;
  CHECK(value() == "False");
  c.parent.back() = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=0";
  CHECK(value() == "True");
}

TEST_CASE("signals to handle come in torchrun's order and then by number") {
  Case c;
  c.spec.stop.ending_signals = {10, 1, 15, 12};
  CHECK(c.values(0).at("TORCHELASTIC_SIGNALS_TO_HANDLE") == "SIGTERM,SIGHUP,SIGUSR1,SIGUSR2");
}

TEST_CASE("the rest is inherited unchanged with doubles and odd entries") {
  Case c;
  c.parent = {"A=1", "no equals", "A=2", "=C:=dir", "", "RANK=9", "B=x=y", "RANK=8", "RANKS=all", "WORLD_SIZE"};
  const Entries entries = c.list(0);
  const Entries first(entries.begin(), entries.begin() + 8);
  CHECK(first == Entries{"A=1", "no equals", "A=2", "=C:=dir", "", "B=x=y", "RANKS=all", "WORLD_SIZE"});
  CHECK(std::count(entries.begin(), entries.end(), "RANK=4") == 1);
  CHECK(std::count_if(entries.begin(), entries.end(), [](const auto& e) { return e.starts_with("RANK="); }) == 1);
}

TEST_CASE("variables of an outer ddrun are not inherited") {
  Case c;
  c.parent = {"DDRUN_ATTEMPT_DIR=/outer", "DDRUN_SEED=5",  "DDRUN_JOB_TAG=outer", "TORCHELASTIC_ERROR_FILE=/outer.json",
              "DDRUN_VERSION=0",          "DDRUN_ROUND=99"};
  const auto values = c.values(1);
  CHECK(values.at("DDRUN_ROUND") == "4");
  CHECK(values.count("DDRUN_ATTEMPT_DIR") == 0);
  CHECK(values.count("DDRUN_SEED") == 0);
  CHECK(values.count("DDRUN_JOB_TAG") == 0);
  CHECK(values.at("TORCHELASTIC_ERROR_FILE").empty());
  CHECK(values.at("DDRUN_VERSION") == "1.2.3");
}

TEST_CASE("env options replace what is inherited and the last one counts") {
  Case c;
  c.parent = {"A=1", "B=2", "A=3"};
  c.spec.first().env = {{"A", "x"}, {"C", ""}, {"A", "y=z"}};
  const Entries entries = c.list(0);
  CHECK(Entries(entries.begin(), entries.begin() + 3) == Entries{"B=2", "C=", "A=y=z"});
}

TEST_CASE("env options cannot change rank variables") {
  Case c;
  c.spec.first().env = {{"RANK", "5"}};
  CHECK(c.error() == "--env RANK: ddrun sets RANK itself");
  c.spec.first().env = {{"MASTER_PORT", "1"}};
  CHECK(c.error() == "--env MASTER_PORT: ddrun sets MASTER_PORT itself; use --master-port");
  c.spec.first().env = {{"", "x"}};
  CHECK(c.error() == "--env =x: give it as NAME=VALUE");
}

TEST_CASE("with PMIx workers get their helper's variables and those of mpirun, none of an outer job") {
  Case c;
  c.parent = {"PMIX_RANK=9", "OMPI_COMM_WORLD_SIZE=9", "OMPI_MCA_btl_sm_backing_directory=/x", "JSM_NAMESPACE_RANK=1"};
  c.facts.pmix = {{{"PMIX_RANK=4"}, {"PMIX_RANK=5"}, {"PMIX_RANK=6"}}, "/dev/shm/ddrun-1/2", false};
  auto values = c.values(2);
  CHECK(values.at("PMIX_RANK") == "6");
  CHECK(values.at("OMPI_COMM_WORLD_RANK") == "6");
  CHECK(values.at("OMPI_COMM_WORLD_LOCAL_RANK") == "2");
  CHECK(values.at("OMPI_COMM_WORLD_NODE_RANK") == "2");
  CHECK(values.at("OMPI_COMM_WORLD_SIZE") == values.at("WORLD_SIZE"));
  CHECK(values.at("OMPI_COMM_WORLD_LOCAL_SIZE") == values.at("LOCAL_WORLD_SIZE"));
  CHECK(values.at("JSM_JSRUN_PORT") == "ddrun");
  CHECK(values.at("OMPI_MCA_btl_sm_backing_directory") == "/dev/shm/ddrun-1/2");
  CHECK(values.at("OMPI_MCA_btl_vader_backing_directory") == "/dev/shm/ddrun-1/2");
  CHECK(values.count("JSM_NAMESPACE_RANK") == 0);
  CHECK(values.count("OMPI_MCA_mpi_oversubscribe") == 0);
  c.facts.pmix->oversubscribed = true;
  CHECK(c.values(2).at("OMPI_MCA_mpi_oversubscribe") == "1");
  c.spec.first().env = {{"OMPI_MCA_btl_sm_backing_directory", "/fast"}};
  CHECK(c.values(2).at("OMPI_MCA_btl_sm_backing_directory") == "/fast");
  c.spec.first().env = {{"JSM_JSRUN_PORT", "1"}};
  CHECK(c.error() == "--env JSM_JSRUN_PORT: ddrun sets JSM_JSRUN_PORT itself with --mpi");
}

TEST_CASE("virtual local rank gives each worker one device of the list") {
  Case c;
  c.spec.first().virtual_local_rank = true;
  SECTION("no list: the local rank itself") {
    CHECK(c.values(2).at("CUDA_VISIBLE_DEVICES") == "2");
    CHECK(c.values(2).at("LOCAL_RANK") == "0");
    CHECK(c.values(2).at("RANK") == "6");
  }
  SECTION("from the parent") {
    c.parent.push_back("CUDA_VISIBLE_DEVICES=7,GPU-1a2b, 3,1");
    CHECK(c.values(0).at("CUDA_VISIBLE_DEVICES") == "7");
    CHECK(c.values(1).at("CUDA_VISIBLE_DEVICES") == "GPU-1a2b");
    CHECK(c.values(2).at("CUDA_VISIBLE_DEVICES") == "3");
  }
  SECTION("from an env option") {
    c.parent.push_back("CUDA_VISIBLE_DEVICES=0,1,2,3");
    c.spec.first().env = {{"CUDA_VISIBLE_DEVICES", "9,8,7,6"}};
    CHECK(c.values(3).at("CUDA_VISIBLE_DEVICES") == "6");
  }
  SECTION("too short a list") {
    c.parent.push_back("CUDA_VISIBLE_DEVICES=0,1");
    CHECK(c.error() ==
          "CUDA_VISIBLE_DEVICES=0,1 names 2 devices, too few for 4 workers with --virtual-local-rank, where each gets "
          "one; give a longer list or a smaller --nproc-per-node");
  }
  SECTION("switched off: inherited") {
    c.spec.first().virtual_local_rank = false;
    c.parent.push_back("CUDA_VISIBLE_DEVICES=0,1");
    CHECK(c.values(3).at("CUDA_VISIBLE_DEVICES") == "0,1");
    CHECK(c.values(3).at("LOCAL_RANK") == "3");
  }
}

TEST_CASE("virtual local rank takes the device of HIP where its list is set and sets both") {
  Case c;
  c.spec.first().virtual_local_rank = true;
  c.parent.push_back("CUDA_VISIBLE_DEVICES=0,1,2,3");
  SECTION("HIP's list is the one that counts") {
    c.parent.push_back("HIP_VISIBLE_DEVICES=7, 5,6,4");
    CHECK(c.values(1).at("HIP_VISIBLE_DEVICES") == "5");
    CHECK(c.values(1).at("CUDA_VISIBLE_DEVICES") == "5");
    CHECK(c.values(3).at("HIP_VISIBLE_DEVICES") == "4");
  }
  SECTION("from an env option") {
    c.parent.push_back("HIP_VISIBLE_DEVICES=3,2,1,0");
    c.spec.first().env = {{"HIP_VISIBLE_DEVICES", "9,8,7,6"}};
    CHECK(c.values(2).at("HIP_VISIBLE_DEVICES") == "7");
    CHECK(c.values(2).at("CUDA_VISIBLE_DEVICES") == "7");
  }
  SECTION("too short a list") {
    c.parent.push_back("HIP_VISIBLE_DEVICES=0,1");
    CHECK(c.error().starts_with("HIP_VISIBLE_DEVICES=0,1 names 2 devices, too few for 4 workers"));
  }
  SECTION("empty: as if it were not set") {
    c.parent.push_back("HIP_VISIBLE_DEVICES=");
    CHECK(c.values(2).at("CUDA_VISIBLE_DEVICES") == "2");
    CHECK(c.values(2).at("HIP_VISIBLE_DEVICES").empty());
  }
  SECTION("switched off: inherited") {
    c.spec.first().virtual_local_rank = false;
    c.parent.push_back("HIP_VISIBLE_DEVICES=0,1");
    CHECK(c.values(3).at("HIP_VISIBLE_DEVICES") == "0,1");
  }
}

TEST_CASE("The secret between agents is not for workers") {
  Case c;
  c.parent.push_back("DDRUN_SECRET=correct horse battery staple");
  for (const auto* one : {"DDRUN_ETCD_USER=ddrun:a password", "ETCDCTL_USER=ddrun", "ETCDCTL_PASSWORD=a password"}) {
    c.parent.emplace_back(one);
  }
  CHECK(c.values(0).count("DDRUN_SECRET") == 0);
  for (const auto* one : {"DDRUN_ETCD_USER", "ETCDCTL_USER", "ETCDCTL_PASSWORD"}) CHECK(c.values(0).count(one) == 0);
  c.spec.first().env = {{"DDRUN_SECRET", "another one that is long"}};
  CHECK(c.error() ==
        "--env DDRUN_SECRET: workers do not get it; use --secret-file, or set the variable for ddrun itself");
}

TEST_CASE("A ddrun that a worker starts does not join the worker's own job") {
  const char* const places[] = {"DDRUN_NNODES",     "DDRUN_NODE_RANK", "DDRUN_RDZV_BACKEND", "DDRUN_RDZV_ENDPOINT",
                                "DDRUN_RDZV_ID",    "DDRUN_RDZV_CONF", "DDRUN_MASTER_ADDR",  "DDRUN_MASTER_PORT",
                                "DDRUN_LOCAL_ADDR", "DDRUN_HOSTS",     "DDRUN_HOSTFILE"};
  std::vector<std::string> entries;
  for (const char* name : places) entries.push_back(std::string(name) + "=1");
  Case c;
  for (const auto& entry : entries) c.parent.push_back(entry.c_str());
  for (const char* other : {"DDRUN_LOG_DIR=/logs", "DDRUN_STANDALONE=1", "DDRUN_HOSTS_FILE=x", "PET_NNODES=2"}) {
    c.parent.push_back(other);
  }
  auto values = c.values(0);
  for (const char* name : places) {
    INFO(name);
    CHECK(values.count(name) == 0);
  }
  CHECK(values["DDRUN_LOG_DIR"] == "/logs");
  CHECK(values["DDRUN_STANDALONE"] == "1");
  CHECK(values["DDRUN_HOSTS_FILE"] == "x");
  CHECK(values["PET_NNODES"] == "2");
  c.spec.first().env = {{"DDRUN_NNODES", "2"}};
  values = c.values(0);
  CHECK(values["DDRUN_NNODES"] == "2");
}
