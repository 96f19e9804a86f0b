#include <map>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/worker_env/worker_environment.hpp"

// Programs without a world, and what services have to be found by others.

using namespace ddrun;
using namespace ddrun::worker_env;
using Entries = std::vector<std::string>;

namespace {

/// A service with three workers.
struct Service {
  LaunchSpec spec;
  ProgramSpec& program = spec.first();
  RankAssignment ranks;
  WorkerFacts facts;
  std::vector<const char*> parent = {"PATH=/bin"};

  Service() {
    program.name = "./serve";
    program.is_service = true;
    ranks.run_id = "job7";
    ranks.round = 4;
    ranks.local_world_size = ranks.world_size = ranks.role_world_size = 3;
    ranks.master_addr = "127.0.0.1";
    ranks.master_port = 29501;
    facts.version = "1.2.3";
    facts.job_tag = "t4g";
    facts.error_file = [](int) { return "/logs/error.json"; };
    facts.timer_file = "/tmp/timer";
  }

  [[nodiscard]] Result<Entries> given(int local_rank) const {
    std::vector<const char*> entries = parent;
    entries.push_back(nullptr);
    return worker_environment(spec, program, ranks, local_rank, Environment(entries.data()), facts);
  }
  [[nodiscard]] Entries list(int local_rank) const {
    const auto entries = given(local_rank);
    if (!entries) return {"error: " + entries.error().message};
    return *entries;
  }
  [[nodiscard]] std::map<std::string, std::string> values(int local_rank) const {
    std::map<std::string, std::string> values;
    for (const std::string& entry : list(local_rank)) {
      const auto equals = entry.find('=');
      INFO(entry);
      CHECK(values.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second);
    }
    return values;
  }
  /// The value of a variable by worker.
  [[nodiscard]] Entries by_worker(const std::string& name) const {
    Entries all;
    for (int number = 0; number < 3; ++number) all.push_back(values(ranks.role_first_local_rank + number).at(name));
    return all;
  }
  [[nodiscard]] std::string error() const {
    const auto entries = given(0);
    REQUIRE_FALSE(entries);
    CHECK(entries.error().code == Errc::invalid_argument);
    return entries.error().message;
  }
};

const std::vector<const char*> of_torchrun = {"RANK",
                                              "LOCAL_RANK",
                                              "WORLD_SIZE",
                                              "LOCAL_WORLD_SIZE",
                                              "GROUP_RANK",
                                              "GROUP_WORLD_SIZE",
                                              "ROLE_NAME",
                                              "ROLE_RANK",
                                              "ROLE_WORLD_SIZE",
                                              "MASTER_ADDR",
                                              "MASTER_PORT",
                                              "TORCHELASTIC_RESTART_COUNT",
                                              "TORCHELASTIC_MAX_RESTARTS",
                                              "TORCHELASTIC_RUN_ID",
                                              "TORCHELASTIC_USE_AGENT_STORE",
                                              "TORCHELASTIC_ERROR_FILE",
                                              "TORCHELASTIC_SIGNALS_TO_HANDLE",
                                              "TORCHELASTIC_TIMER_FILE"};

}  // namespace

TEST_CASE("a program without a world has no variable of ranks, also none that is inherited") {
  Service c;
  const bool is_service = GENERATE(true, false);
  c.program.is_service = is_service;
  if (!is_service) c.program.world = "none";
  c.spec.keep_scheduler_env = GENERATE(false, true);
  CAPTURE(is_service, c.spec.keep_scheduler_env);
  Entries inherited;
  for (const char* name : of_torchrun) inherited.push_back(concat(name, "=9"));
  for (const char* name :
       {"TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_X", "PMI_RANK", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE",
        "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_LOCALID", "MPI_LOCALRANKID", "PALS_RANKID", "DDRUN_SEED",
        "DDRUN_ATTEMPT_DIR", "DDRUN_JOB_TAG", "DDRUN_ROUND", "DDRUN_LISTEN_PORT", "DDRUN_RDZV_ID"}) {
    inherited.push_back(concat(name, "=9"));
  }
  for (const std::string& entry : inherited) c.parent.push_back(entry.c_str());
  for (const char* entry : {"RANKS=9", "TORCH_LOGS=9", "SLURM_JOB_ID=9"}) c.parent.push_back(entry);
  const Entries expected{"PATH=/bin",           "RANKS=9",       "TORCH_LOGS=9",       "SLURM_JOB_ID=9",
                         "DDRUN_VERSION=1.2.3", "DDRUN_ROUND=4", "PYTHONUNBUFFERED=1", "DDRUN_JOB_TAG=t4g"};
  for (int number = 0; number < 3; ++number) CHECK(c.list(number) == expected);
}

TEST_CASE("a program without a world has the rest of what ddrun sets") {
  Service c;
  c.program.name = "python3";
  c.spec.seed = 1234567;
  c.facts.attempt_dir = "/logs/attempt_0";
  c.parent.push_back("OMP_NUM_THREADS=8");
  const auto values = c.values(2);
  CHECK(values.at("DDRUN_ATTEMPT_DIR") == "/logs/attempt_0");
  CHECK(values.at("DDRUN_SEED") == std::to_string(worker_seed(1234567, 2)));
  CHECK(values.at("PYTHONFAULTHANDLER") == "1");
  CHECK(values.at("OMP_NUM_THREADS") == "8");
  CHECK(c.values(0).at("DDRUN_SEED") != values.at("DDRUN_SEED"));
}

TEST_CASE("without a world env options may set torchrun's variables, not ddrun's") {
  Service c;
  c.parent.push_back("MASTER_PORT=2");
  for (const char* name : of_torchrun) {
    CAPTURE(name);
    c.program.env = {{name, "1"}};
    c.program.is_service = true;
    CHECK(c.values(1).at(name) == "1");
    c.program.is_service = false;
    CHECK_THAT(c.error(), test::contains(concat("--env ", name, ": ddrun sets ", name, " itself")));
    c.program.world = "none";
    CHECK(c.values(1).at(name) == "1");
    c.program.world.clear();
  }
  for (const char* name : {"DDRUN_VERSION", "DDRUN_ROUND", "DDRUN_JOB_TAG", "DDRUN_SEED", "DDRUN_ATTEMPT_DIR"}) {
    for (const bool is_service : {true, false}) {
      c.program.is_service = is_service;
      c.program.env = {{name, "1"}};
      CHECK_THAT(c.error(), test::contains(concat("--env ", name, ": ddrun sets ", name, " itself")));
    }
  }
  c.program.is_service = true;
  c.program.env = {{"", "1"}};
  CHECK(c.error() == "--env =1: give it as NAME=VALUE");
  c.program.env = {{"DDRUN_SECRET", "1"}};
  CHECK_THAT(c.error(), test::contains("--env DDRUN_SECRET: workers do not get it"));
}

TEST_CASE("a service in a world has all of a rank's variables") {
  Service c;
  c.program.is_service = false;
  const Entries of_rank = c.list(1);
  c.program.is_service = true;
  CHECK(c.list(1) != of_rank);
  c.program.world = "w";
  CHECK(c.list(1) == of_rank);
  const auto values = c.values(1);
  for (const char* name : of_torchrun) {
    CAPTURE(name);
    CHECK(values.count(name) == 1);
  }
  CHECK(values.at("RANK") == "1");
  CHECK(values.at("MASTER_PORT") == "29501");
  CHECK(values.at("OMP_NUM_THREADS") == "1");
}

TEST_CASE("each worker has a port of its own") {
  Service c;
  c.program.is_service = GENERATE(true, false);
  c.ranks.role_first_local_rank = GENERATE(0, 4);  // behind other programs of its world
  c.program.port = 8000;
  c.parent.push_back("DDRUN_LISTEN_PORT=1");
  c.parent.push_back("URL=x");
  c.program.env = {{"URL", "http://h:${port}/${port}"}, {"REST", "${rank} ${local_rank} $port ${PORT} ${port"}};
  CHECK(c.by_worker("DDRUN_LISTEN_PORT") == Entries{"8000", "8001", "8002"});
  CHECK(c.by_worker("URL") == Entries{"http://h:8000/8000", "http://h:8001/8001", "http://h:8002/8002"});
  CHECK(c.values(c.ranks.role_first_local_rank).at("REST") == "${rank} ${local_rank} $port ${PORT} ${port");
  // Of two the last one counts.
  c.program.env = {{"URL", "${port}"}, {"URL", "y"}, {"X", "y"}, {"X", "${port}"}};
  CHECK(c.by_worker("URL") == Entries{"y", "y", "y"});
  CHECK(c.by_worker("X") == Entries{"8000", "8001", "8002"});
}

TEST_CASE("without a port its placeholder stays") {
  Service c;
  c.program.is_service = GENERATE(true, false);
  c.program.env = {{"URL", "http://h:${port}"}};
  const auto values = c.values(1);
  CHECK(values.at("URL") == "http://h:${port}");
  CHECK(values.count("DDRUN_LISTEN_PORT") == 0);
}

TEST_CASE("each worker has its share of a program's GPUs") {
  Service c;
  const bool is_service = GENERATE(true, false);
  c.program.is_service = is_service;
  c.ranks.role_first_local_rank = GENERATE(0, 4);
  c.program.virtual_local_rank = true;
  c.program.gpus_per_worker = 2;
  c.parent.push_back("CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7");
  c.program.env = {{"CUDA_VISIBLE_DEVICES", "7,2,3,GPU-1a,5,6"}};
  const int first = c.ranks.role_first_local_rank;
  SECTION("of CUDA") {
    CHECK(c.by_worker("CUDA_VISIBLE_DEVICES") == Entries{"7,2", "3,GPU-1a", "5,6"});
    CHECK(c.values(first).count("HIP_VISIBLE_DEVICES") == 0);
    CHECK(c.values(first).count("LOCAL_RANK") == (is_service ? 0 : 1));
  }
  SECTION("of HIP") {
    c.parent.push_back("HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7");
    c.program.env.emplace_back("HIP_VISIBLE_DEVICES", "7,2,3,GPU-1a,5,6");
    CHECK(c.by_worker("CUDA_VISIBLE_DEVICES") == Entries{"7,2", "3,GPU-1a", "5,6"});
    CHECK(c.by_worker("HIP_VISIBLE_DEVICES") == Entries{"7,2", "3,GPU-1a", "5,6"});
  }
  SECTION("one each") {
    c.program.gpus_per_worker = 1;
    c.program.env = {{"CUDA_VISIBLE_DEVICES", "4,5,6"}};
    CHECK(c.by_worker("CUDA_VISIBLE_DEVICES") == Entries{"4", "5", "6"});
  }
  SECTION("beside a port") {
    c.program.port = 8000;
    CHECK(c.by_worker("CUDA_VISIBLE_DEVICES") == Entries{"7,2", "3,GPU-1a", "5,6"});
    CHECK(c.by_worker("DDRUN_LISTEN_PORT") == Entries{"8000", "8001", "8002"});
  }
}

TEST_CASE("env options cannot set what names the job's addresses") {
  Service c;
  c.program.is_service = GENERATE(true, false);
  for (const std::string name : {"DDRUN_HOSTS_X", "DDRUN_ENDPOINTS_X", "DDRUN_HOSTS_", "DDRUN_ENDPOINTS_A_B"}) {
    c.program.env = {{name, "h"}};
    CHECK(c.error() == concat("--env ", name, ": ddrun sets ", name, " itself"));
  }
  c.program.env = {{"DDRUN_LISTEN_PORT", "1"}};
  CHECK(c.error() == "--env DDRUN_LISTEN_PORT: ddrun sets DDRUN_LISTEN_PORT itself; use --port");
  c.program.env = {{"DDRUN_HOSTS", "h"}, {"DDRUN_ENDPOINTS", "h"}};
  CHECK(c.values(0).at("DDRUN_HOSTS") == "h");
}

TEST_CASE("the job's addresses replace inherited ones") {
  Service c;
  c.program.is_service = GENERATE(true, false);
  c.facts.addresses = {{"DDRUN_HOSTS_A", "10.0.0.1,10.0.0.2"}, {"DDRUN_ENDPOINTS_A", "10.0.0.1:80,10.0.0.2:81"}};
  for (const char* outer : {"DDRUN_HOSTS_A=x", "DDRUN_ENDPOINTS_A=x:1", "DDRUN_HOSTS_A=y"}) c.parent.push_back(outer);
  for (int number = 0; number < 3; ++number) {
    CHECK(c.values(number).at("DDRUN_HOSTS_A") == "10.0.0.1,10.0.0.2");
    CHECK(c.values(number).at("DDRUN_ENDPOINTS_A") == "10.0.0.1:80,10.0.0.2:81");
  }
}
