"""What a training script takes with each launcher, from the command to its end: ddp-run."""

import os

from measuring import Skip, compare, in_turn
from preloading import needs_torch, script

RANKS = 2
# Replicas that differ at first and see different data; the same at the end, since DDP broadcasts and averages.
TRAIN = f"""
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_world_size() == {RANKS}
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = torch.randn(256, 64)
for step in range(50):
    loss = (model(inputs) - inputs[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weight = next(model.parameters()).detach()
all_weights = [torch.empty_like(weight) for _ in range({RANKS})]
dist.all_gather(all_weights, weight)
assert all(torch.equal(weight, other) for other in all_weights)
dist.destroy_process_group()
"""


@needs_torch
def ddp_run(bench, note, python):
    """A DDP script over gloo with 2 ranks and 50 steps, from the start of the command to its end."""
    train = script(bench, TRAIN)

    def accelerate():
        program = os.path.join(os.path.dirname(python), "accelerate")
        if not os.path.exists(program):
            raise Skip("accelerate is not installed (scripts/setup --frameworks)")
        # --multi_gpu: torch's launcher; the script itself chooses gloo.
        return [program, "launch", "--multi_gpu", f"--num_processes={RANKS}", "--num_machines=1", "--mixed_precision=no",
                "--dynamo_backend=no", train]

    def ddrun(*options):
        return bench.ddrun_command(RANKS, train, options=(f"--env=PYTHON_EXEC={python}", *options))

    def side(command):
        return lambda: bench.run(command(), limit=120)["seconds"]
    repeats = bench.count(7, 2)
    samples, trouble = in_turn({
        "ddrun": (repeats, side(ddrun)),
        "torchrun": (repeats, side(lambda: bench.torchrun_command(RANKS, python, train))),
        "accelerate": (repeats, side(accelerate)),
        "ddrun --preload=torch": (repeats, side(lambda: ddrun("--preload=torch"))),
    }, note, settle=1)
    return compare("ddp-run", "", samples, trouble, {
        "torchrun": (1.2, 1), "accelerate": (1.2, 1), "ddrun --preload=torch": (None, None)})
