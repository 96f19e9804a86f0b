"""A rank of PyTorch over configs/mpi_backend.py, which lies beside it: prints one line if all results are right."""
import mpi_backend
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("mpi4py")
rank, size = distributed.get_rank(), distributed.get_world_size()
world = mpi_backend.MPI.COMM_WORLD
assert (rank, size, distributed.get_backend()) == (world.rank, world.size, "mpi4py")

for operation, expected in (("SUM", 3.0), ("MAX", 2.0), ("MIN", 1.0), ("PRODUCT", 2.0)):
    tensor = torch.full((1000,), rank + 1.0)
    distributed.all_reduce(tensor, getattr(distributed.ReduceOp, operation))
    assert tensor.eq(expected).all(), (operation, tensor)
tensor = torch.arange(4) * rank
distributed.broadcast(tensor, 1)
assert tensor.tolist() == [0, 1, 2, 3]
rows = [torch.empty(2) for _ in range(size)]
distributed.all_gather(rows, torch.tensor([rank, 10.0]))
assert torch.stack(rows).tolist() == [[0, 10], [1, 10]]

# Both send first: more than MPI takes without a receiver.
sent, received = torch.full((1_000_000,), float(rank)), torch.empty(1_000_000)
work = distributed.isend(sent, 1 - rank)
distributed.recv(received, 1 - rank)
work.wait()
assert received.eq(1 - rank).all()

alone = [distributed.new_group([other]) for other in range(size)][rank]
tensor = torch.tensor([rank])
distributed.all_reduce(tensor, group=alone)
assert tensor.item() == rank

torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
inputs = torch.arange(6.0).reshape(2, 3)
model(inputs[rank]).backward()
assert torch.allclose(model.module.weight.grad, inputs.mean(0))
weights = model.module.weight.detach().clone()
distributed.all_reduce(weights, distributed.ReduceOp.MAX)
assert weights.equal(model.module.weight)

distributed.barrier()
distributed.destroy_process_group()
print(f"right on {size}\n", end="")
