#include "option_table.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"

namespace ddrun::cli {

namespace {

constexpr std::string_view mpi = "mpirun";
constexpr std::string_view hydra = "mpiexec";
constexpr std::string_view slurm = "srun";
constexpr std::string_view accelerate = "accelerate launch";
constexpr std::string_view deepspeed = "deepspeed";
constexpr std::string_view horovod = "horovodrun";

constexpr std::string_view by_scheduler =
    "not needed: ddrun uses what the job was given; ask sbatch, salloc or srun for it";
constexpr std::string_view no_binding = "not needed: workers are bound only by --bind";
constexpr std::string_view in_order = "not needed: ranks follow each other on each machine";
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
    {"num-proc", horovod, "in ddrun: -n N, workers on each machine"},
    {"min-np min-num-proc max-np max-num-proc", horovod, "in ddrun: --nnodes=MIN:MAX, counted in machines"},
    {"num-gpus num-devs", deepspeed, "in ddrun: -n N"},
    {"deepspeed-hostfile", accelerate, "in ddrun: --hostfile=FILE"},
    {"num-nodes", deepspeed, "in ddrun: --nnodes=N"},
    {"include exclude", deepspeed, "in ddrun: --hosts=HOST:WORKERS,... and --env CUDA_VISIBLE_DEVICES=0,1"},
    {"force-multi", deepspeed, "not needed: what is in --hosts is used, were it one host"},
    {"devices", "fabric", "in ddrun: -n N"},
    {"multi-prog app configfile", "srun and mpirun",
     "in ddrun: --world=all : -n 1 ./a : -n 3 ./b, a part for each line of the file"},

    // Network and remote start
    {"launcher", "deepspeed and mpiexec", "in ddrun: --ssh=COMMAND, if hosts are not reached by ssh"},
    {"bootstrap rsh-agent", "mpirun and mpiexec", "in ddrun: --ssh=COMMAND, if hosts are not reached by ssh"},
    {"launcher-args ssh-port", deepspeed, "in ddrun: --ssh='ssh -p PORT'"},
    {"no-ssh", deepspeed, "not needed: without --hosts no ssh is used; start the same line on each machine"},
    {"iface", hydra, "in ddrun: --local-addr=ADDRESS"},
    {"network-interface network-interfaces", horovod, "in ddrun: --interface=NAME"},
    {"start-timeout", horovod, "in ddrun: --join-timeout=TIME"},
    {"gloo", horovod, "not needed: the program chooses its own backend"},

    // Environment
    {"genv genvlist genvall envall envlist envnone", hydra,
     "in ddrun: --env NAME=VALUE; what is set here is handed on anyway, to --hosts by -x NAME"},
    {"wdir wd cwd", mpi, "in ddrun: --chdir=DIR"},
    {"prefix", mpi, "in ddrun: --env PATH=... and --env LD_LIBRARY_PATH=..., if the workers need another Open MPI"},
    {"mca gmca prtemca pmixmca tune am", mpi,
     "not needed: a setting of Open MPI's own parts, none of which is used here"},
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
    {"bind-to-core bind-to-socket bynode", mpi, "in ddrun: --bind=cores or --bind=numa"},
    {"bind-to-none", mpi, no_binding},
    {"byslot bycore", mpi, in_order},
    {"cpu-bind mem-bind hint distribution", slurm, "in ddrun: --bind=cores or --bind=numa"},
    {"gpu-bind", slurm, "in ddrun: --virtual-local-rank, with which each worker sees only its own GPU"},
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
    {"gpus-per-node gpus-per-task gres G mem mem-per-cpu mem-per-gpu exclusive partition p account A qos "
     "job-name J constraint C reservation overlap exact jobid",
     slurm, by_scheduler},
    {"container-image container-mounts container-name container-workdir", slurm,
     "not needed: stay with srun, and start ddrun in its container"},
};

/// Options without a value, and with two values; all others have one.
constexpr std::string_view flags =
    "multi-gpu same-network force-multi no-ssh genvall envall envnone use-fsdp use-deepspeed use-megatron-lm cpu "
    "use-cpu use-parallelism-config enable-cpu-affinity no-local-rank use-hwthread-cpus bind-to-core bind-to-socket "
    "bind-to-none bycore bynode byslot bind-cores-to-rank oversubscribe nooversubscribe overload-allowed "
    "allow-run-as-root tag-output prepend-rank l timestamp-output merge-stderr-to-stdout unbuffered u display-map "
    "display-allocation display-devel-map show-progress kill-on-bad-exit K no-kill enable-recovery continuous "
    "elastic-training exclusive overlap exact gloo save-pid";
constexpr std::string_view pairs = "mca gmca prtemca pmixmca genv";

/// Where the value decides; empty where only the name does.
std::string hint_for_value(std::string_view name, std::string_view value, std::string_view hint) {
  const auto parts = split(value, ':');
  if (has_word("bind-to cpu-bind mem-bind", name) && has_word("none no", value)) return std::string(no_binding);
  if (has_word("map-by rank-by distribution", name)) {
    if (parts.size() == 1 && has_word("slot block", value)) return std::string(in_order);
    if (parts.size() > 2 && parts[0] == "ppr" && parts[2] == "node") return concat("in ddrun: -n ", parts[1]);
  }
  constexpr std::string_view variable = "in ddrun: --env ACCELERATE_";
  const bool takes_it = hint.starts_with(variable) && !has_word(flags, name) && !value.empty();
  if (!takes_it) return {};
  return concat(hint.substr(0, hint.find('=') + 1), shell_quote(value));
}

}  // namespace

bool has_word(std::string_view words, std::string_view word) {
  return concat(' ', words, ' ').find(concat(' ', word, ' ')) != std::string::npos;
}

std::span<const ForeignOption> foreign_options() { return foreign_option_table; }

argv::Explanation explain_foreign_option(std::string_view name, std::string_view value) {
  if (name == "e" && parse_assignment(value)) return {concat(" (of docker); in ddrun: --env ", shell_quote(value)), 1};
  const auto* const found = std::find_if(std::begin(foreign_option_table), std::end(foreign_option_table),
                                         [&](const ForeignOption& option) { return has_word(option.names, name); });
  if (found == std::end(foreign_option_table)) return {};
  const std::string hint = hint_for_value(name, value, found->hint);
  const int values = has_word(pairs, name) ? 2 : 1;
  return {concat(" (of ", found->launchers, "); ", hint.empty() ? found->hint : hint),
          has_word(flags, name) ? 0 : values};
}

}  // namespace ddrun::cli
