#include "option_table.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

constexpr std::string_view mpi = "mpirun";
constexpr std::string_view hydra = "mpiexec";
constexpr std::string_view slurm = "srun";
constexpr std::string_view accelerate = "accelerate launch";
constexpr std::string_view deepspeed = "deepspeed";

constexpr std::string_view by_scheduler =
    "not needed: ddrun uses what the job was given; ask sbatch, salloc or srun for it";
constexpr std::string_view in_the_script =
    "not needed: it is about the training, not the start; say it in the script, or to its own configuration";

constexpr ForeignOption foreign_option_table[] = {
    // Counts and hosts
    {"np", mpi, "in ddrun: -n N"},
    {"npernode ppn perhost ranks-per-proc N", "mpirun and srun",
     "in ddrun: -n N for workers on each machine, --nnodes=N for machines"},
    {"ntasks", slurm, "in ddrun: -n N, workers on each machine"},
    {"ntasks-per-node tasks-per-node", slurm, "in ddrun: -n N"},
    {"nodes", slurm, "in ddrun: --nnodes=N"},
    {"H host", mpi, "in ddrun: --hosts=HOST:WORKERS,..."},
    {"nodelist w", slurm, "in ddrun: --hosts=HOST,..."},
    {"machinefile f", mpi, "in ddrun: --hostfile=FILE"},
    {"nodefile", slurm, "in ddrun: --hostfile=FILE"},
    {"num-processes", accelerate, "in ddrun: -n N, workers on each machine"},
    {"num-machines", accelerate, "in ddrun: --nnodes=N"},
    {"machine-rank", accelerate, "in ddrun: --node-rank=N"},
    {"main-process-ip", accelerate, "in ddrun: --rdzv-endpoint=HOST, or --master-addr=HOST"},
    {"main-process-port", accelerate, "in ddrun: --master-port=PORT"},
    {"multi-gpu", accelerate, "in ddrun: -n gpu"},
    {"gpu-ids", accelerate, "in ddrun: --env CUDA_VISIBLE_DEVICES=0,1 and -n 2"},
    {"same-network", accelerate, "not needed: machines find each other by --rdzv-endpoint or --hosts"},
    {"num-gpus", deepspeed, "in ddrun: -n N"},
    {"num-nodes", deepspeed, "in ddrun: --nnodes=N"},
    {"include exclude", deepspeed, "in ddrun: --hosts=HOST:WORKERS,... and --env CUDA_VISIBLE_DEVICES=0,1"},
    {"force-multi", deepspeed, "not needed: what is in --hosts is used, were it one host"},
    {"devices", "fabric", "in ddrun: -n N"},

    // Network and remote start
    {"launcher", "deepspeed and mpiexec", "in ddrun: --ssh=COMMAND, if hosts are not reached by ssh"},
    {"bootstrap rsh-agent", "mpirun and mpiexec", "in ddrun: --ssh=COMMAND, if hosts are not reached by ssh"},
    {"launcher-args ssh-port", deepspeed, "in ddrun: --ssh='ssh -p PORT'"},
    {"no-ssh", deepspeed, "not needed: without --hosts no ssh is used; start the same line on each machine"},
    {"iface", hydra, "in ddrun: --local-addr=ADDRESS"},
    {"mpi", slurm, "not needed: workers meet by MASTER_ADDR and MASTER_PORT"},

    // Environment
    {"genv genvlist genvall envall envlist envnone", hydra,
     "in ddrun: --env NAME=VALUE; what is set here is handed on anyway, to --hosts by -x NAME"},
    {"wdir wd cwd", mpi, "in ddrun: --chdir=DIR"},
    {"mca gmca prtemca pmixmca tune", mpi, "not needed: a setting of Open MPI's own parts, none of which is used here"},
    {"mixed-precision", accelerate, "in ddrun: --env ACCELERATE_MIXED_PRECISION=bf16"},
    {"num-cpu-threads-per-process", accelerate, "in ddrun: --env OMP_NUM_THREADS=N"},
    {"config-file", accelerate,
     "in ddrun: --env NAME=VALUE for each of its keys, as in docs/coming-from-others.md; --config=FILE is a file of "
     "ddrun's own"},
    {"use-fsdp", accelerate, "in ddrun: --env ACCELERATE_USE_FSDP=true, its settings as in docs/coming-from-others.md"},
    {"use-deepspeed", accelerate,
     "in ddrun: --env ACCELERATE_USE_DEEPSPEED=true, its settings as in docs/coming-from-others.md"},
    {"use-megatron-lm", accelerate,
     "in ddrun: --env ACCELERATE_USE_MEGATRON_LM=true, its settings as in docs/coming-from-others.md"},
    {"deepspeed-config-file", accelerate, "in ddrun: --env ACCELERATE_DEEPSPEED_CONFIG_FILE=FILE"},
    {"zero-stage", accelerate, "in ddrun: --env ACCELERATE_DEEPSPEED_ZERO_STAGE=N"},
    {"gradient-accumulation-steps", accelerate, "in ddrun: --env ACCELERATE_GRADIENT_ACCUMULATION_STEPS=N"},
    {"gradient-clipping", accelerate, "in ddrun: --env ACCELERATE_GRADIENT_CLIPPING=N"},
    {"dynamo-backend", accelerate, "in ddrun: --env ACCELERATE_DYNAMO_BACKEND=INDUCTOR"},
    {"cpu use-cpu", accelerate, "in ddrun: --env ACCELERATE_USE_CPU=true"},
    {"fsdp-version fsdp-offload-params fsdp-sharding-strategy fsdp-reshard-after-forward fsdp-auto-wrap-policy "
     "fsdp-transformer-layer-cls-to-wrap fsdp-state-dict-type fsdp-activation-checkpointing use-parallelism-config "
     "enable-cpu-affinity",
     accelerate, "in ddrun: --env NAME=VALUE, with the variable in docs/coming-from-others.md"},
    {"local-rank", "torch.distributed.launch",
     "in ddrun: behind the program: train.py --local-rank='${local_rank}', if the script does not read LOCAL_RANK"},
    {"no-local-rank", deepspeed, "not needed: the script gets no --local-rank but LOCAL_RANK in its environment"},
    {"accelerator strategy precision", "fabric", in_the_script},

    // Binding
    {"map-by rank-by bind-to cpu-set cpu-list cpus-per-proc cpus-per-rank use-hwthread-cpus", mpi,
     "in ddrun: --bind=cores or --bind=numa; ranks follow each other on each machine"},
    {"bind-to-core bind-to-socket bind-to-none bycore bynode byslot", mpi, "in ddrun: --bind=cores or --bind=numa"},
    {"cpu-bind mem-bind hint distribution", slurm, "in ddrun: --bind=cores or --bind=numa"},
    {"cpus-per-task c", slurm, "in ddrun: --bind=cores; threads by --env OMP_NUM_THREADS=N"},
    {"bind-cores-to-rank bind-core-list", deepspeed, "in ddrun: --bind=cores"},
    {"oversubscribe nooversubscribe overload-allowed", mpi, "not needed: as many workers start as -n says"},
    {"allow-run-as-root", mpi, "not needed: root may run it"},

    // Output and input
    {"tag-output prepend-rank l", "mpirun and srun", "not needed: each line has its rank; --label says what else"},
    {"timestamp-output", mpi, "in ddrun: --timestamps"},
    {"merge-stderr-to-stdout", mpi, "in ddrun: 2>&1 at the end of the line"},
    {"output-filename outfile-pattern errfile-pattern output error o e", "mpirun and srun",
     "in ddrun: --log-dir=DIR with -r 3, or with -t 3 to see it too"},
    {"enable-each-rank-log", deepspeed, "in ddrun: --log-dir=DIR with -r 3"},
    {"unbuffered u", slurm, "not needed: lines are shown as soon as they are written"},
    {"input i", slurm, "in ddrun: --stdin=RANK, or < FILE"},
    {"display-map display-allocation display-devel-map show-progress", mpi, "in ddrun: --dry-run, or -v"},
    {"save-pid", deepspeed, "in ddrun: --report=FILE"},

    // Failure and termination
    {"kill-on-bad-exit K no-kill", slurm, "not needed: the first failure ends the job"},
    {"enable-recovery continuous", mpi, "in ddrun: --max-restarts=N starts all workers again"},
    {"wait W", slurm, "in ddrun: --exit-skew=TIME"},
    {"time", slurm, "in ddrun: --timeout=TIME"},
    {"elastic-training min-elastic-nodes max-elastic-nodes", deepspeed, "in ddrun: --nnodes=MIN:MAX"},

    // Slurm's own
    {"gpus gpus-per-node gpus-per-task gres G mem mem-per-cpu mem-per-gpu exclusive partition p account A qos "
     "job-name J constraint C reservation overlap jobid",
     slurm, by_scheduler},
};

}  // namespace

std::span<const ForeignOption> foreign_options() { return foreign_option_table; }

const ForeignOption* find_foreign_option(std::string_view name) {
  const std::string wanted = concat(' ', with_dashes(name), ' ');
  const auto has = [&](const ForeignOption& option) {
    return concat(' ', option.names, ' ').find(wanted) != std::string::npos;
  };
  const auto* const found = std::find_if(std::begin(foreign_option_table), std::end(foreign_option_table), has);
  return found == std::end(foreign_option_table) ? nullptr : found;
}

}  // namespace ddrun::cli
