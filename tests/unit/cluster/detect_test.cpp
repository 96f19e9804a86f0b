#include <algorithm>
#include <set>

#include "scenario.hpp"

using namespace ddrun;
using namespace ddrun::cluster;
using namespace ddrun::cluster::test;

namespace {

using Lines = std::vector<std::string>;

Lines operator+(Lines left, const Lines& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// Captured with Slurm 22.05: srun --nodes=2 --ntasks-per-node=1 in a job of four nodes.
const Lines slurm_step = {"SLURM_JOB_ID=123",
                          "SLURM_JOBID=123",
                          "SLURM_JOB_NAME=train",
                          "SLURM_JOB_NODELIST=n[1-4]",
                          "SLURM_JOB_NUM_NODES=4",
                          "SLURM_NNODES=2",
                          "SLURM_NODEID=1",
                          "SLURM_NODELIST=n[1-4]",
                          "SLURM_NTASKS=2",
                          "SLURM_PROCID=1",
                          "SLURM_LOCALID=0",
                          "SLURM_STEPID=7",
                          "SLURM_STEP_ID=7",
                          "SLURM_STEP_NODELIST=n[3-4]",
                          "SLURM_STEP_NUM_NODES=2",
                          "SLURM_STEP_NUM_TASKS=2",
                          "SLURM_STEP_TASKS_PER_NODE=1(x2)",
                          "SLURM_TASK_PID=4711",
                          "SLURM_TASKS_PER_NODE=1(x4)",
                          "SLURMD_NODENAME=n4"};

/// The same Slurm, in the script of a job of three nodes.
const Lines slurm_script = {"SLURM_JOB_ID=123",           "SLURM_JOB_NAME=b.sh",  "SLURM_JOB_NODELIST=n[1-3]",
                            "SLURM_JOB_NUM_NODES=3",      "SLURM_NNODES=3",       "SLURM_NODEID=0",
                            "SLURM_NODELIST=n[1-3]",      "SLURM_PROCID=0",       "SLURM_LOCALID=0",
                            "SLURM_TASKS_PER_NODE=1(x3)", "SLURM_GPUS_ON_NODE=2", "SLURMD_NODENAME=n1"};

}  // namespace

TEST_CASE("nothing is found where nothing is") {
  const Detected found = detect_in({{"PATH=/bin", "HOME=/root", "HOSTNAME=host"}});
  CHECK(found.scheme.empty());
  CHECK(found.evidence.empty());
  CHECK(summary_in({slurm_step, {"n4", {}, 4711}, {}, "none"}) == "");
}

TEST_CASE("a Slurm step counts and not its job") {
  const Detected found = detect_in({slurm_step + Lines{"SLURM_GPUS_ON_NODE=8"}});
  CHECK(summary(found) == "Slurm step; nodes 2; rank 1; at n3:*; there; job slurm-123.7; GPUs 8");
  CHECK(found.shape == Shape::agents);
  CHECK(found.nodes->variable == "SLURM_STEP_NUM_NODES");
  CHECK(found.hosts->value == Lines{"n3", "n4"});
  CHECK(found.coordinators->variable == "SLURM_STEP_NODELIST");
  CHECK(found.refusal.empty());
}

TEST_CASE("a Slurm script has to start its agents") {
  const Detected found = detect_in({slurm_script});
  CHECK(found.shape == Shape::slurm_script);
  CHECK_FALSE(found.in_step);
  CHECK(summary(found) == "Slurm job; nodes 3; at n1:*; job slurm-123; GPUs 2");
}

TEST_CASE("a shell in a Slurm step counts as the job") {
  const Lines pty = slurm_step + Lines{"SLURM_PTY_PORT=4000"};
  const Detected shell = detect_in({pty, {"n4", {}, 99}});
  CHECK(shell.shape == Shape::slurm_script);
  CHECK(shell.in_step);
  CHECK(shell.nodes->value.max == 4);
  CHECK(shell.hosts->value == Lines{"n1", "n2", "n3", "n4"});
  // srun --pty ddrun: the terminal is for ddrun itself.
  CHECK(detect_in({pty, {"n4", {}, 4711}}).shape == Shape::agents);
  // The internal steps of salloc and sbatch.
  for (const std::string id : {"4294967290", "4294967291"}) {
    const Detected own = detect_in({slurm_script + Lines{"SLURM_STEP_ID=" + id}});
    CHECK(own.shape == Shape::slurm_script);
    CHECK_FALSE(own.in_step);
  }
}

TEST_CASE("a requeued Slurm job is another job") {
  CHECK(detect_in({slurm_script + Lines{"SLURM_RESTART_COUNT=2"}}).job_id->value == "slurm-123.r2");
  CHECK(detect_in({slurm_step + Lines{"SLURM_RESTART_COUNT=1"}}).job_id->value == "slurm-123.7.r1");
  CHECK(detect_in({slurm_step + Lines{"SLURM_JOB_END_TIME=1795312800"}}).end_time->value == 1795312800);
}

TEST_CASE("one ddrun per rank is rejected with the command to use") {
  Scenario scenario{slurm_step};
  for (std::string& variable : scenario.variables) {
    if (variable == "SLURM_STEP_NUM_TASKS=2") variable = "SLURM_STEP_NUM_TASKS=16";
  }
  const Detected found = detect_in(scenario);
  CHECK(found.shape == Shape::ranks);
  CHECK(found.refusal ==
        "srun started 16 ddruns on 2 nodes (SLURM_STEP_NUM_TASKS), and each would start workers of its own; write: "
        "srun --nodes=2 --ntasks-per-node=1 ddrun --nproc-per-node=8 ... (or --nnodes=1, if each is meant to be a job "
        "of its own)");
  const Detected mpi =
      detect_in({{"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_SIZE=4"}});
  CHECK(mpi.shape == Shape::ranks);
  CHECK(mpi.refusal ==
        "mpirun started 8 ddruns, 4 of them here (OMPI_COMM_WORLD_LOCAL_SIZE), and each would start workers of its "
        "own; write: mpirun --map-by ppr:1:node ddrun --nproc-per-node=4 ... (or --nnodes=1, if each is meant to be a "
        "job of its own)");
  CHECK(detect_in({{"PMI_RANK=0", "PMI_SIZE=8", "MPI_LOCALNRANKS=8"}}).shape == Shape::ranks);
  CHECK(detect_in({{"FLUX_JOB_ID=f1", "FLUX_TASK_RANK=0", "FLUX_JOB_NNODES=2", "FLUX_JOB_SIZE=8"}}).shape ==
        Shape::ranks);
}

TEST_CASE("a heterogeneous Slurm job is not guessed at") {
  const Detected found = detect_in({slurm_script + Lines{"SLURM_HET_SIZE=2"}});
  CHECK_FALSE(found.nodes);
  CHECK(found.refusal.find("SLURM_HET_SIZE says that this Slurm job has several parts") == 0);
}

TEST_CASE("contradictory variables of Slurm are an error that names both") {
  Scenario scenario{slurm_step};
  std::replace(scenario.variables.begin(), scenario.variables.end(), std::string("SLURM_STEP_NUM_NODES=2"),
               std::string("SLURM_STEP_NUM_NODES=5"));
  CHECK(refusal_of(scenario).find(
            "SLURM_STEP_NUM_NODES=5 and SLURM_STEP_NODELIST=n[3-4], which names 2 nodes, contradict "
            "each other") == 0);
  Scenario other{slurm_step};
  std::replace(other.variables.begin(), other.variables.end(), std::string("SLURM_NODEID=1"),
               std::string("SLURM_NODEID=2"));
  CHECK(refusal_of(other).find("SLURM_NODEID=2 and SLURM_STEP_NUM_NODES=2 contradict each other") == 0);
  CHECK(refusal_of({slurm_step + Lines{"SLURM_GPUS_ON_NODE=x"}}) ==
        "SLURM_GPUS_ON_NODE=x is not a whole number from 0 to 1000; unset it, or give --env-detect=none");
}

TEST_CASE("mpirun inside of a Slurm job decides") {
  const Lines mpi = {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=1",
                     "OMPI_COMM_WORLD_NODE_RANK=0"};
  // mpirun's own node has no step, the others have one: all must find the same coordinator.
  Scenario on_first{{"SLURM_JOB_ID=123", "SLURM_JOB_NODELIST=n[1-4]", "SLURM_JOB_NUM_NODES=4", "SLURM_NNODES=4"}};
  on_first.variables = on_first.variables + mpi;
  const Detected first = detect_in(on_first);
  const Detected other = detect_in({slurm_step + mpi});
  CHECK(summary(other) == "Open MPI, then Slurm job; nodes 4; rank 2; at n1:*; there; job slurm-123");
  CHECK(first.coordinators->value == other.coordinators->value);
  CHECK(other.shape == Shape::agents);
  // mpirun alone gives no coordinator: the user must.
  CHECK(summary_in({mpi}) == "Open MPI; nodes 4; rank 2; there");
  CHECK(summary_in({{"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALNRANKS=1"}}) == "MPICH; nodes 2; rank 0; here");
  CHECK(summary_in({{"MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_LOCAL_SIZE=1"}}) ==
        "MVAPICH2; nodes 2; rank 1; there");
  // Slurm's and Flux's PMI are not mpirun's.
  CHECK(detect_in({slurm_step + Lines{"PMI_RANK=1", "PMI_SIZE=2"}}).scheme == "Slurm step");
}

TEST_CASE("torchrun's variables win over the scheduler's") {
  const Detected found = detect_in(
      {slurm_step + Lines{"PET_NNODES=4", "PET_NODE_RANK=3", "PET_MASTER_ADDR=10.0.0.1", "PET_MASTER_PORT=1234"}});
  CHECK(summary(found) ==
        "torchrun's PET_ variables, then Slurm step; nodes 4; rank 3; at 10.0.0.1:1234; there; job slurm-123.7");
  bool told = false;
  for (const Evidence& one : found.evidence) {
    if (one == Evidence{"nodes", "2", "SLURM_STEP_NUM_NODES", "PET_NNODES"}) told = true;
  }
  CHECK(told);
  CHECK(refusal_of({{"PET_NNODES=2", "PET_NODE_RANK=2"}}) ==
        "PET_NODE_RANK=2 and PET_NNODES=2 contradict each other; node ranks begin with 0; correct the wrong one");
  CHECK(summary_in({{"PET_NNODES=1", "PET_NODE_RANK=3"}}) == "torchrun's PET_ variables; nodes 1; rank 3; there");
  CHECK(summary_in({{"PET_NNODES=2:4"}}) == "torchrun's PET_ variables; nodes 2:4");
  CHECK(refusal_of({{"PET_NNODES=4:2"}}).find("PET_NNODES=4:2 is neither N nor MIN:MAX") == 0);
  CHECK(summary_in({{"PET_NNODES=", "PET_NODE_RANK="}}) == "");
}

TEST_CASE("Kubeflow's RANK is the pod's index") {
  const Lines pod = {"KUBERNETES_SERVICE_HOST=10.96.0.1",
                     "PYTHONUNBUFFERED=1",
                     "MASTER_PORT=23456",
                     "PET_MASTER_PORT=23456",
                     "MASTER_ADDR=job-master-0",
                     "PET_MASTER_ADDR=job-master-0",
                     "WORLD_SIZE=16",
                     "RANK=1",
                     "PET_NPROC_PER_NODE=8",
                     "PET_NODE_RANK=1",
                     "PET_NNODES=2"};
  const Detected found = detect_in({pod, {"job-worker-0", {}, 1}});
  CHECK(summary(found) == "Kubeflow PyTorchJob; nodes 2; rank 1; at job-master-0:23456; there");
  CHECK(override_of(found.evidence, "RANK") == "nothing: it is the pod's index here");
  CHECK(override_of(found.evidence, "WORLD_SIZE") == "nothing: ddrun counts workers itself");
  // Elastic: no ranks, and the endpoint is a pod.
  const Lines elastic = {"KUBERNETES_SERVICE_HOST=10.96.0.1",
                         "PET_NNODES=1:3",
                         "PET_RDZV_BACKEND=c10d",
                         "PET_RDZV_ENDPOINT=job-worker-0:23456",
                         "PET_RDZV_ID=job",
                         "PET_RDZV_CONF=timeout=900,",
                         "PET_MAX_RESTARTS=10"};
  CHECK(summary_in({elastic, {"job-worker-0", {}, 1}}) == "torchrun's PET_ variables; nodes 1:3; here");
  CHECK(summary_in({elastic, {"job-worker-1", {}, 1}}) == "torchrun's PET_ variables; nodes 1:3; there");
  CHECK(detect_in({{"KUBERNETES_SERVICE_HOST=10.96.0.1", "PET_STANDALONE=", "PET_NNODES=1"}}).standalone);
  CHECK_FALSE(detect_in({{"PET_STANDALONE=0", "PET_NNODES=1"}}).standalone);
}

TEST_CASE("Kubeflow's trainer gives five variables") {
  CHECK(summary_in({{"KUBERNETES_SERVICE_HOST=10.96.0.1", "PET_NNODES=2", "PET_NPROC_PER_NODE=auto", "PET_NODE_RANK=0",
                     "PET_MASTER_ADDR=job-node-0-0.job", "PET_MASTER_PORT=29500"}}) ==
        "Kubeflow Trainer; nodes 2; rank 0; at job-node-0-0.job:29500; here");
}

TEST_CASE("an Indexed Job gives the pod's index and its name the coordinator") {
  Scenario pod{{"KUBERNETES_SERVICE_HOST=10.96.0.1", "JOB_COMPLETION_INDEX=2"}, {"train-2", {}, 1}};
  CHECK(summary_in(pod) == "Kubernetes Indexed Job; rank 2; there; job train");
  pod.files["/etc/hosts"] =
      "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"
      "10.1.0.7\ttrain-2.train-svc.default.svc.cluster.local\ttrain-2\n";
  CHECK(summary_in(pod) ==
        "Kubernetes Indexed Job; rank 2; at train-0.train-svc.default.svc.cluster.local:29400; there; job train");
  // A JobSet's pods are called so as well.
  pod.machine.host_name = "set-workers-0-2";
  pod.files["/etc/hosts"] = "10.1.0.7\tset-workers-0-2.set.default.svc.cluster.local\tset-workers-0-2\n";
  CHECK(summary_in(pod) ==
        "Kubernetes Indexed Job; rank 2; at set-workers-0-0.set.default.svc.cluster.local:29400; there; job "
        "set-workers-0");
  // hostNetwork: the host name is not the pod's.
  pod.machine.host_name = "gpu-node";
  CHECK(summary_in(pod) == "Kubernetes Indexed Job; rank 2; there");
  // Without Kubernetes the index may be anything.
  CHECK(summary_in({{"JOB_COMPLETION_INDEX=2"}}) == "");
}

TEST_CASE("a LeaderWorkerSet gives size, index and leader") {
  const Lines pod = {"LWS_LEADER_ADDRESS=set-0.set.default", "LWS_GROUP_SIZE=4", "KUBERNETES_SERVICE_HOST=10.96.0.1"};
  CHECK(summary_in({pod + Lines{"LWS_WORKER_INDEX=0"}}) ==
        "Kubernetes LeaderWorkerSet; nodes 4; rank 0; at set-0.set.default:29400; here; job set-0");
  CHECK(refusal_of({pod + Lines{"LWS_WORKER_INDEX=4"}}).find("LWS_WORKER_INDEX=4 and LWS_GROUP_SIZE=4") == 0);
}

TEST_CASE("PBS and SGE name a file of hosts") {
  Scenario pbs{{"PBS_ENVIRONMENT=PBS_BATCH", "PBS_JOBID=9.server", "PBS_NODEFILE=/var/spool/pbs/aux/9"},
               {"b.example.org", {}, 1},
               {{"/var/spool/pbs/aux/9", "a.cluster\na.cluster\nb.cluster\nb.cluster\n"}}};
  CHECK(summary_in(pbs) == "PBS; nodes 2; rank 1; at a.cluster:*; there; job pbs-9.server");
  CHECK(detect_in(pbs).shape == Shape::script);
  CHECK(detect_in(pbs).refusal ==
        "this PBS job has 2 machines (PBS_NODEFILE), and its script runs on one of them; for all of them write: ddrun "
        "--hostfile=$PBS_NODEFILE ... (over ssh), or start one ddrun on each with --nnodes=2 (pbsdsh -u), the rest is "
        "found; for this machine alone: --nnodes=1");
  pbs.variables.emplace_back("PBS_NODENUM=0");
  CHECK(summary_in(pbs) == "PBS; nodes 2; rank 0; at a.cluster:*; here; job pbs-9.server");
  pbs.files.clear();
  CHECK(refusal_of(pbs) == "PBS_NODEFILE: cannot read /var/spool/pbs/aux/9; give --env-detect=none");
  const Scenario sge{{"JOB_ID=5", "PE_HOSTFILE=/f"},
                     {"x", {"10.0.0.2"}, 1},
                     {{"/f", "10.0.0.1 4 q@a UNDEFINED\n10.0.0.2 4 q@b 0,0\n"}}};
  CHECK(summary_in(sge) == "SGE; nodes 2; rank 1; at 10.0.0.1:*; there; job sge-5");
  CHECK(detect_in(sge).refusal.find("write: ddrun --hostfile=$PE_HOSTFILE ... (over ssh)") != std::string::npos);
  // One machine: no error.
  CHECK(detect_in({{"JOB_ID=5", "PE_HOSTFILE=/f"}, {"x", {}, 1}, {{"/f", "x 4 q@a UNDEFINED\n"}}}).refusal.empty());
}

TEST_CASE("machines with the same short name are distinguished") {
  const auto rank_of = [](const std::string& name, const std::string& hosts) {
    return summary_in(
        {{"PBS_ENVIRONMENT=PBS_BATCH", "PBS_JOBID=9", "PBS_NODEFILE=/f\r\n"}, {name, {}, 1}, {{"/f", hosts}}});
  };
  CHECK(rank_of("w.2.net", "w.1\nw.2\n").find("rank 1") != std::string::npos);
  CHECK(rank_of("10.0.0.2", "10.0.0.1\n10.0.0.2\n").find("rank 1") != std::string::npos);
  CHECK(rank_of("w.3.net", "w.1\nw.2\n").find("rank") == std::string::npos);
  // A byte order mark is no part of a name.
  CHECK(rank_of("n1", "\xef\xbb\xbfn1\nn2\n").find("at n1:") != std::string::npos);
}

TEST_CASE("LSF's first host only launches where jsrun does") {
  CHECK(summary_in({{"LSB_JOBID=7", "LSB_MCPU_HOSTS=a 4 b 4"}, {"b", {}, 1}}) ==
        "LSF; nodes 2; rank 1; at a:*; there; job lsf-7");
  CHECK(summary_in({{"LSB_JOBID=7", "LSB_DJOB_HOSTFILE=/h"}, {"a", {}, 1}, {{"/h", "a\na\nb\n"}}}) ==
        "LSF; nodes 2; rank 0; at a:*; here; job lsf-7");
  // The suggestion uses a list or variable that exists.
  CHECK(detect_in({{"LSB_JOBID=7", "LSB_MCPU_HOSTS=a 4 b 4"}}).refusal.find("write: ddrun --hosts=a,b ...") !=
        std::string::npos);
  CHECK(detect_in({{"LSB_JOBID=7", "LSB_MCPU_HOSTS=a 4 b 4", "LSB_DJOB_HOSTFILE=/h"}})
            .refusal.find("write: ddrun --hostfile=$LSB_DJOB_HOSTFILE ...") != std::string::npos);
  CHECK(summary_in({{"LSB_JOBID=7", "LSB_MCPU_HOSTS=batch 1 a 40 b 40", "JSM_NAMESPACE_RANK=1",
                     "JSM_NAMESPACE_SIZE=2"}}) == "LSF; nodes 2; rank 1; at a:*; there; job lsf-7");
  CHECK(detect_in({{"LSB_JOBID=7", "LSB_MCPU_HOSTS=batch 1 a 40", "JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE=6"}})
            .shape == Shape::ranks);
}

TEST_CASE("Flux starts tasks") {
  CHECK(summary_in({{"FLUX_JOB_ID=fA1", "FLUX_TASK_RANK=1", "FLUX_JOB_NNODES=2", "FLUX_JOB_SIZE=2"}}) ==
        "Flux; nodes 2; rank 1; there; job flux-fA1");
  // Inside a Flux instance, but not a task of it.
  CHECK(summary_in({{"FLUX_URI=local:///tmp/x"}}) == "");
}

TEST_CASE("clouds give the node rank") {
  CHECK(summary_in({{"SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=2", "SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2\n",
                     "SKYPILOT_NUM_GPUS_PER_NODE=4", "SKYPILOT_TASK_ID=sky-1_train"}}) ==
        "SkyPilot; nodes 2; rank 1; at 10.0.0.1:*; there; job sky-1_train; GPUs 4");
  CHECK(summary_in({{"SKYPILOT_NODE_RANK=0", "SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2"}}) ==
        "SkyPilot; nodes 2; rank 0; at 10.0.0.1:*; here");
  CHECK(summary_in({{"DSTACK_NODE_RANK=0", "DSTACK_NODES_NUM=2", "DSTACK_MASTER_NODE_IP=10.0.0.1", "DSTACK_GPUS_NUM=16",
                     "DSTACK_GPUS_PER_NODE=8"}}) == "dstack; nodes 2; rank 0; at 10.0.0.1:*; here; GPUs 8");
  CHECK(summary_in({{"SM_HOSTS=[\"algo-1\",\"algo-2\"]", "SM_CURRENT_HOST=algo-2", "SM_NUM_GPUS=8"}}) ==
        "SageMaker; nodes 2; rank 1; at algo-1:7777; there; GPUs 8");
  CHECK(
      refusal_of({{"SM_HOSTS=[\"algo-1\"]", "SM_CURRENT_HOST=algo-3"}}).find("SM_CURRENT_HOST=algo-3 and SM_HOSTS=") ==
      0);
  CHECK(summary_in({{"AZUREML_NODE_COUNT=2", "NODE_RANK=1", "MASTER_ADDR=10.0.0.4", "MASTER_PORT=6105"}}) ==
        "Azure ML, then MASTER_ADDR and NODE_RANK; nodes 2; rank 1; at 10.0.0.4:6105; there");
  CHECK(summary_in({{"VC_TASK_INDEX=1", "VC_WORKER_HOSTS=w-0.job,w-1.job", "VC_WORKER_NUM=2"}}) ==
        "Volcano; nodes 2; rank 1; at w-0.job:29400; there");
}

TEST_CASE("horovodrun starts ranks or one ddrun on each machine") {
  const Lines one = {"HOROVOD_RANK=1", "HOROVOD_CROSS_RANK=1", "HOROVOD_CROSS_SIZE=2", "HOROVOD_LOCAL_RANK=0"};
  CHECK(summary_in({one + Lines{"HOROVOD_LOCAL_SIZE=1"}}) == "Horovod; nodes 2; rank 1; there");
  const Detected ranks = detect_in({one + Lines{"HOROVOD_LOCAL_SIZE=4"}});
  CHECK(ranks.shape == Shape::ranks);
  CHECK(ranks.refusal ==
        "horovodrun started 4 ddruns here (HOROVOD_LOCAL_SIZE), and each would start workers of its own; write: "
        "horovodrun -np 2 -H HOST:1,... ddrun --nproc-per-node=4 ... (or --nnodes=1, if each is meant to be a job of "
        "its own)");
  CHECK(refusal_of({{"HOROVOD_CROSS_RANK=2", "HOROVOD_CROSS_SIZE=2", "HOROVOD_LOCAL_SIZE=1"}})
            .find("HOROVOD_CROSS_RANK=2 and HOROVOD_CROSS_SIZE=2 contradict each other") == 0);
  // horovodrun inside a Slurm script: that scheme describes the script, not this process.
  CHECK(summary_in({slurm_script + Lines{"HOROVOD_CROSS_RANK=1", "HOROVOD_CROSS_SIZE=3", "HOROVOD_LOCAL_SIZE=1"}}) ==
        "Horovod, then Slurm job; nodes 3; rank 1; at n1:*; there; job slurm-123; GPUs 2");
  CHECK(summary_in({{"HOROVOD_RANK=1"}}) == "");
}

TEST_CASE("machines with TPUs have the list of hosts") {
  const Lines one = {"TPU_WORKER_HOSTNAMES=t-0.tpu,t-1.tpu", "TPU_WORKER_ID=1"};
  CHECK(summary_in({one}) == "TPU; nodes 2; rank 1; at t-0.tpu:29400; there");
  CHECK(summary_in({one + Lines{"MEGASCALE_NUM_SLICES=3", "MEGASCALE_SLICE_ID=2",
                                "MEGASCALE_COORDINATOR_ADDRESS=s-0.tpu:8080"}}) ==
        "TPU; nodes 6; rank 5; at s-0.tpu:29400; there");
  CHECK(summary_in({{"TPU_WORKER_HOSTNAMES=localhost", "TPU_WORKER_ID=0"}}) ==
        "TPU; nodes 1; rank 0; at localhost:29400; here");
  CHECK(refusal_of({{"TPU_WORKER_HOSTNAMES=a,b", "TPU_WORKER_ID=2"}})
            .find("TPU_WORKER_ID=2 and TPU_WORKER_HOSTNAMES with 2 contradict each other") == 0);
  CHECK(refusal_of({one + Lines{"MEGASCALE_NUM_SLICES=2", "MEGASCALE_SLICE_ID=2"}})
            .find("MEGASCALE_SLICE_ID=2 and MEGASCALE_NUM_SLICES=2 contradict each other") == 0);
  // The pods' scheme takes precedence: with a leader without TPU the numbers differ.
  CHECK(summary_in({one + Lines{"LWS_LEADER_ADDRESS=set-0.set", "LWS_GROUP_SIZE=3", "LWS_WORKER_INDEX=2"}}) ==
        "Kubernetes LeaderWorkerSet, then TPU; nodes 3; rank 2; at set-0.set:29400; there; job set-0");
}

TEST_CASE("torchx gives the coordinator and the job") {
  CHECK(summary_in({{"TORCHX_JOB_ID=local://x/train-1", "TORCHX_RANK0_HOST=train-0"}}) ==
        "torchx; at train-0:29400; job local---x-train-1");
  CHECK(summary_in({{"TORCHX_JOB_ID=j", "TORCHX_RANK0_HOST=localhost"}}) == "torchx; job j");
  CHECK(summary_in({slurm_step + Lines{"TORCHX_JOB_ID=j", "TORCHX_RANK0_HOST=n[1-4]"}}) ==
        "Slurm step, then torchx; nodes 2; rank 1; at n3:*; there; job slurm-123.7");
}

TEST_CASE("plain variables count when nothing else does") {
  const Lines plain = {"MASTER_ADDR=a", "MASTER_PORT=1234", "NODE_RANK=1", "NNODES=2"};
  CHECK(summary_in({plain}) == "MASTER_ADDR and NODE_RANK; nodes 2; rank 1; at a:1234; there");
  CHECK(summary_in({{"MASTER_ADDR=a", "GROUP_RANK=0"}}) == "MASTER_ADDR and NODE_RANK; rank 0; at a:29500; here");
  // These describe a rank started by another launcher.
  CHECK(summary_in({plain + Lines{"LOCAL_RANK=0"}}) == "");
  CHECK(summary_in({{"MASTER_ADDR=a", "MASTER_PORT=1"}}) == "");
  CHECK(summary_in({slurm_step + plain}).find("Slurm step, then MASTER_ADDR and NODE_RANK; nodes 2; rank 1; at n3:*") ==
        0);
}

TEST_CASE("a worker of another job is no agent of it") {
  const Detected found = detect_in({slurm_step + Lines{"TORCHELASTIC_RUN_ID=x", "LOCAL_RANK=3", "RANK=11"}});
  CHECK(summary(found) == "");
  CHECK(override_of(found.evidence, "worker") == "nothing: ddrun was started by a worker of another job");
}

TEST_CASE("a worker's MPI launcher counts, and not the variables of its job") {
  const Lines worker = {"TORCHELASTIC_RUN_ID=x", "LOCAL_RANK=1", "RANK=1",
                        "WORLD_SIZE=2",          "GROUP_RANK=0", "GROUP_WORLD_SIZE=1"};
  const Lines of_ddrun = worker + Lines{"DDRUN_ROUND=1"};
  const Lines served = {"PMI_PORT=127.0.0.1:40123", "PMI_ID=1135723516"};
  const Lines ranks = {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"};
  const Lines agents = {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1"};
  const Lines open_mpi = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2"};
  const Lines mvapich = {"MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_LOCAL_SIZE=2"};
  const Lines horovod = {"HOROVOD_CROSS_RANK=0", "HOROVOD_CROSS_SIZE=1", "HOROVOD_LOCAL_SIZE=2"};
  const auto [variables, scheme] = GENERATE_COPY(table<Lines, std::string>({
      {of_ddrun + served + ranks, ""},  // --mpi
      {of_ddrun + served + agents, ""},
      {of_ddrun + served + ranks + Lines{"PMI_FD=7"}, "MPICH"},  // mpiexec in a worker of it
      {of_ddrun + served + agents + Lines{"PMI_FD=7"}, "MPICH"},
      {of_ddrun + served + ranks + open_mpi, "Open MPI"},
      {of_ddrun + served + ranks + mvapich, "MVAPICH2"},
      {of_ddrun + ranks + Lines{"PMI_FD=7"}, "MPICH"},
      {of_ddrun + open_mpi, "Open MPI"},
      {slurm_step + of_ddrun + open_mpi, "Open MPI"},
      // With --keep-scheduler-env a worker has those that started its job.
      {of_ddrun + Lines{"PMI_FD=7", "PMI_RANK=0", "PMI_SIZE=1", "MPI_LOCALNRANKS=1"}, ""},
      {of_ddrun + horovod, ""},
      {worker + ranks, ""},  // torchrun's
  }));
  CAPTURE(variables);
  CHECK(detect_in({variables}).scheme == scheme);
  CHECK(refusal_of({of_ddrun + served + ranks, {}, {}, "mpich"}).starts_with("--env-detect=mpich: nothing of it"));
}

TEST_CASE("two schedulers that disagree are an error that names both") {
  Scenario scenario{slurm_script + Lines{"PBS_ENVIRONMENT=PBS_BATCH", "PBS_JOBID=9", "PBS_NODEFILE=/f"}, {"n1", {}, 1}};
  scenario.files["/f"] = "n1\nn2\n";
  CHECK(refusal_of(scenario) ==
        "SLURM_JOB_NUM_NODES (nodes: 3) and PBS_NODEFILE (nodes: 2) contradict each other; say with --env-detect=WORD "
        "which one counts, or none");
  scenario.how = "slurm";
  CHECK(detect_in(scenario).nodes->value.max == 3);
  scenario.how = "pbs";
  CHECK(detect_in(scenario).nodes->value.max == 2);
  scenario.how = "flux";
  CHECK(refusal_of(scenario) ==
        "--env-detect=flux: nothing of it is there; it is known by FLUX_JOB_ID, FLUX_TASK_RANK and "
        "FLUX_JOB_NNODES");
}

TEST_CASE("ports of a job are three and the same for all of its members") {
  const auto one = candidates("n1", "123.0");
  REQUIRE(one.size() == 3);
  std::set<int> ports;
  for (const Endpoint& endpoint : one) {
    CHECK(endpoint.host == "n1");
    CHECK(endpoint.port >= 20000);
    CHECK(endpoint.port <= 32767);
    ports.insert(endpoint.port);
  }
  CHECK(ports.size() == 3);
  CHECK(candidates("n1", "123.0") == one);
  // Of a thousand jobs few share the first port.
  std::set<int> first;
  for (int job = 0; job < 1000; ++job) first.insert(candidates("n1", concat(job, ".0")).front().port);
  CHECK(first.size() > 900);
}

TEST_CASE("variables of this machine are read as they are") {
  const char* const entries[] = {"A=", "AB=1", "B", "=x", nullptr};
  const Environment variables(entries);
  CHECK_FALSE(variables.get("A"));
  CHECK(variables.has("A"));
  CHECK_FALSE(variables.has("B"));
  CHECK(variables.get("AB") == "1");
  CHECK_FALSE(this_machine().host_name.empty());
  const auto& addresses = this_machine().addresses;
  CHECK(std::find(addresses.begin(), addresses.end(), "127.0.0.1") != addresses.end());
}
