#include "scenario.hpp"

using namespace ddrun;
using namespace ddrun::cluster;
using namespace ddrun::cluster::test;

namespace {

using Lines = std::vector<std::string>;

const Lines step = {"SLURM_JOB_ID=1",      "SLURM_STEP_ID=0",        "SLURM_STEP_NUM_NODES=4",
                    "SLURM_NODEID=2",      "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NODELIST=n[1-4]",
                    "SLURM_GPUS_ON_NODE=2"};
const Lines script = {"SLURM_JOB_ID=1", "SLURM_JOB_NUM_NODES=4", "SLURM_JOB_NODELIST=n[1-4]"};

struct Outcome {
  LaunchSpec spec;
  Completion completion;
};

Result<Completion> attempt(LaunchSpec& spec, const Lines& variables, const GivenOptions& given) {
  return complete(spec, given, detect_in({variables}));
}

Outcome completed(const Lines& variables, const GivenOptions& given = {}, LaunchSpec spec = {}) {
  auto done = attempt(spec, variables, given);
  if (!done) {
    INFO(done.error().message);
    REQUIRE(done);
  }
  return {spec, *done};
}

std::string refused(const Lines& variables, const GivenOptions& given = {}, LaunchSpec spec = {}) {
  const auto done = attempt(spec, variables, given);
  REQUIRE_FALSE(done);
  return done.error().message;
}

LaunchSpec with_nodes(int least, int most) {
  LaunchSpec spec;
  spec.rendezvous.min_nodes = least;
  spec.rendezvous.max_nodes = most;
  return spec;
}

}  // namespace

TEST_CASE("inside srun no option is needed") {
  const auto [spec, completion] = completed(step);
  const RendezvousSpec& meeting = spec.rendezvous;
  CHECK(meeting.min_nodes == 4);
  CHECK(meeting.max_nodes == 4);
  CHECK(meeting.agents_expected == 4);
  CHECK(meeting.node_rank == 2);
  CHECK(meeting.coordinators == candidates("n1", "1.0"));
  CHECK(meeting.is_host == false);
  CHECK(meeting.id == "slurm-1.0");
  CHECK(spec.first().nproc.count == 2);
  CHECK_FALSE(completion.start_agents);
  for (const Evidence& one : completion.evidence) CHECK(one.overridden_by.empty());
}

TEST_CASE("the user's options take precedence") {
  LaunchSpec mine = with_nodes(2, 2);
  mine.rendezvous.node_rank = 1;
  mine.rendezvous.endpoint = "other:1";
  mine.rendezvous.id = "mine";
  mine.first().nproc.count = 7;
  const auto [spec, completion] = completed(step,
                                            {{"nnodes", "--nnodes"},
                                             {"node-rank", "DDRUN_NODE_RANK"},
                                             {"rdzv-endpoint", "job.toml:3:1"},
                                             {"rdzv-id", "--rdzv-id"},
                                             {"nproc-per-node", "--nproc-per-node"}},
                                            mine);
  CHECK(spec.rendezvous.max_nodes == 2);
  CHECK(spec.rendezvous.node_rank == 1);
  CHECK(spec.rendezvous.coordinators.empty());
  CHECK_FALSE(spec.rendezvous.is_host);
  CHECK(spec.rendezvous.id == "mine");
  CHECK(spec.first().nproc.count == 7);
  CHECK(override_of(completion.evidence, "nodes") == "--nnodes");
  CHECK(override_of(completion.evidence, "node rank") == "DDRUN_NODE_RANK");
  CHECK(override_of(completion.evidence, "coordinator") == "job.toml:3:1");
  CHECK(override_of(completion.evidence, "job") == "--rdzv-id");
  CHECK(override_of(completion.evidence, "GPUs") == "--nproc-per-node");
}

TEST_CASE("one machine stays as it was") {
  const LaunchSpec standard;
  for (const auto& [variables, given] : std::vector<std::pair<Lines, GivenOptions>>{
           {step, {{"nnodes", "--nnodes"}}},
           {{"SLURM_JOB_ID=1", "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_NODELIST=n1", "SLURM_GPUS_ON_NODE=2"}, {}},
           {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=1", "SLURM_STEP_NODELIST=n1", "SLURM_NODEID=0",
             "SLURM_STEP_NUM_TASKS=1"},
            {}},
           {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_SIZE=1"}, {}}}) {
    const auto [spec, completion] = completed(variables, given);
    CHECK(spec.rendezvous.max_nodes == 1);
    CHECK_FALSE(spec.rendezvous.node_rank);
    CHECK(spec.rendezvous.coordinators.empty());
    CHECK(spec.rendezvous.id == standard.rendezvous.id);
    CHECK(spec.first().nproc.count == 1);
    CHECK_FALSE(completion.start_agents);
  }
  LaunchSpec alone;
  alone.rendezvous.standalone = true;
  CHECK(completed(step, {{"standalone", "--standalone"}}, alone).spec.rendezvous.max_nodes == 1);
  CHECK(completed({"PET_STANDALONE="}).spec.rendezvous.standalone);
}

TEST_CASE("a Slurm script gets its agents through srun") {
  CHECK(completed(script).completion.start_agents->nodes == 4);
  // Fewer nodes, all, or too many.
  CHECK(completed(script, {{"nnodes", "--nnodes"}}, with_nodes(2, 2)).completion.start_agents->nodes == 2);
  CHECK(completed(script, {{"nnodes", "--nnodes"}}, with_nodes(2, 8)).completion.start_agents->nodes == 4);
  CHECK_FALSE(completed(script, {{"nnodes", "--nnodes"}}).completion.start_agents);
  CHECK(refused(script, {{"nnodes", "--nnodes"}}, with_nodes(5, 5)) ==
        "--nnodes asks for 5 nodes, but the Slurm job has 4 (SLURM_JOB_NUM_NODES); ask Slurm for more, or give a "
        "smaller --nnodes");
  // The user numbers the machines.
  LaunchSpec numbered = with_nodes(4, 4);
  numbered.rendezvous.node_rank = 1;
  CHECK_FALSE(
      completed(script, {{"nnodes", "--nnodes"}, {"node-rank", "--node-rank"}}, numbered).completion.start_agents);
}

TEST_CASE("ranks and other scripts are rejected unless the user gives the number of machines") {
  const Lines ranks = {"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_SIZE=4"};
  CHECK(refused(ranks).find("mpirun started 8 ddruns, 4 of them here") == 0);
  CHECK(refused(ranks, {{"nnodes", "--nnodes"}}, with_nodes(2, 2)).find("mpirun started 8 ddruns") == 0);
  CHECK(completed(ranks, {{"nnodes", "--nnodes"}}).spec.rendezvous.max_nodes == 1);
  const Lines agents = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
  CHECK(refused(agents) ==
        "there are 2 machines, but Open MPI does not say where they meet; give --rdzv-endpoint=HOST[:PORT] with the "
        "host of node rank 0");
  CHECK(completed(agents, {{"rdzv-endpoint", "--rdzv-endpoint"}}).spec.rendezvous.node_rank == 1);
}

TEST_CASE("an elastic job has no fixed ranks and a small one has spares") {
  const auto elastic = completed(step, {{"nnodes", "--nnodes"}}, with_nodes(2, 4));
  CHECK_FALSE(elastic.spec.rendezvous.node_rank);
  CHECK(elastic.spec.rendezvous.is_host == false);
  CHECK(elastic.spec.rendezvous.coordinators.size() == 3);
  const auto spare = completed(step, {{"nnodes", "--nnodes"}}, with_nodes(2, 2));
  CHECK_FALSE(spare.spec.rendezvous.node_rank);
  CHECK(spare.spec.rendezvous.agents_expected == 4);
  CHECK(override_of(spare.completion.evidence, "node rank") == "a spare: there are only 2 nodes in the job");
}

TEST_CASE("an Indexed Job needs only its number of machines") {
  Scenario pod{{"KUBERNETES_SERVICE_HOST=10.96.0.1", "JOB_COMPLETION_INDEX=0"}, {"train-0", {}, 1}};
  pod.files["/etc/hosts"] = "10.1.0.7\ttrain-0.svc.default.svc.cluster.local\ttrain-0\n";
  LaunchSpec spec = with_nodes(3, 3);
  REQUIRE(complete(spec, {{"nnodes", "DDRUN_NNODES"}}, detect_in(pod)));
  CHECK(spec.rendezvous.node_rank == 0);
  CHECK(spec.rendezvous.is_host == true);
  CHECK(spec.rendezvous.coordinators == std::vector<Endpoint>{{"train-0.svc.default.svc.cluster.local", 29400}});
  CHECK(spec.rendezvous.id == "train");
  LaunchSpec alone;
  REQUIRE(complete(alone, {}, detect_in(pod)));
  CHECK(alone.rendezvous.max_nodes == 1);
}

TEST_CASE("variables of torchrun count as the user's and as evidence that is used") {
  LaunchSpec spec = with_nodes(2, 2);
  spec.rendezvous.node_rank = 1;
  const auto done =
      completed({"KUBERNETES_SERVICE_HOST=1", "PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=job-master-0",
                 "PET_MASTER_PORT=23456", "MASTER_ADDR=job-master-0"},
                {{"nnodes", "PET_NNODES"}, {"node-rank", "PET_NODE_RANK"}, {"master-addr", "PET_MASTER_ADDR"}}, spec);
  CHECK(override_of(done.completion.evidence, "nodes") == "");
  CHECK(override_of(done.completion.evidence, "node rank") == "");
  CHECK(override_of(done.completion.evidence, "coordinator") == "");
  CHECK(done.spec.rendezvous.coordinators == std::vector<Endpoint>{{"job-master-0", 23456}});
  CHECK(done.spec.rendezvous.is_host == false);
}

TEST_CASE("several programs are given no scheduler's count, and one node is one machine") {
  LaunchSpec spec;
  spec.programs.resize(2);
  const auto done =
      completed({"SLURM_JOB_ID=1", "SLURM_JOB_NUM_NODES=1", "SLURM_JOB_NODELIST=n1", "SLURM_GPUS_ON_NODE=4"},
                {{"nnodes", "--nnodes"}}, spec);
  for (const ProgramSpec& program : done.spec.programs) CHECK(program.nproc.count == 1);
  CHECK(override_of(done.completion.evidence, "GPUs") == "each program's own -n: a count would be for all of them");
  CHECK_FALSE(done.spec.rendezvous.several_machines());
  CHECK_FALSE(done.completion.start_agents);
}

TEST_CASE("GPUs of the scheduler are counted where the user asks for GPUs") {
  LaunchSpec spec;
  spec.first().nproc.kind = NprocSpec::Kind::gpu;
  const auto done = completed(step, {{"nproc-per-node", "--nproc-per-node"}}, spec);
  CHECK(done.spec.first().nproc.kind == NprocSpec::Kind::gpu);
  CHECK(override_of(done.completion.evidence, "GPUs") == "");
  spec.first().nproc.kind = NprocSpec::Kind::automatic;
  const auto automatic = completed(step, {{"nproc-per-node", "--nproc-per-node"}}, spec);
  CHECK(automatic.spec.first().nproc.kind == NprocSpec::Kind::automatic);
  CHECK(override_of(automatic.completion.evidence, "GPUs") == "");
}

TEST_CASE("workers have their grace time before the scheduler kills them") {
  using std::chrono::seconds;
  const std::int64_t now = 1'800'000'000;
  CHECK(time_before_end(now + 100, now, seconds(30)) == Milliseconds(95'000));
  CHECK(time_before_end(now + 3600, now, seconds(145)) == Milliseconds(3'480'000));
  // Slurm's KillWait is enough.
  CHECK_FALSE(time_before_end(now + 100, now, seconds(25)));
  CHECK_FALSE(time_before_end(now + 100, now, seconds(0)));
  // Too late for a timeout.
  CHECK_FALSE(time_before_end(now + 5, now, seconds(30)));
  CHECK_FALSE(time_before_end(now - 1, now, seconds(30)));
  CHECK_FALSE(time_before_end(0, now, seconds(30)));
}

TEST_CASE("with a lease the scheduler's name of the job is enough, and without one it must be typed") {
  LaunchSpec spec = with_nodes(4, 4);
  spec.rendezvous.lease = "lease.sh";
  CHECK(completed(step, {{"nnodes", "--nnodes"}}, spec).spec.rendezvous.id == "slurm-1.0");
  spec.rendezvous.id = RendezvousSpec().id;
  CHECK(refused({}, {}, spec).starts_with("with --rdzv-lease each job needs a name of its own: --rdzv-id"));
  spec.rendezvous.lease.clear();
  spec.rendezvous.backend = "etcd";
  CHECK(refused({}, {}, spec).starts_with("--rdzv-backend=etcd needs its members: --rdzv-endpoint"));
  spec.rendezvous.endpoint = "e1:2379,e2:2379,e3:2379";
  CHECK(refused({}, {}, spec).starts_with("with etcd each job needs a name of its own"));
  spec.rendezvous.min_nodes = spec.rendezvous.max_nodes = 1;
  CHECK(completed({}, {}, spec).spec.rendezvous.endpoint == "e1:2379,e2:2379,e3:2379");
}
