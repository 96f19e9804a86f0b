# A job of ddrun on two machines of Slurm, started by submitit (docs/schedulers.md).
import submitit

executor = submitit.AutoExecutor(folder="logs")
executor.update_parameters(nodes=2, tasks_per_node=1, gpus_per_node=8, timeout_min=60)
job = executor.submit(submitit.helpers.CommandFunction(["ddrun", "train.py"]))
print(*job.results())
