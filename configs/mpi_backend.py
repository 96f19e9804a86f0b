"""A backend for torch.distributed over mpi4py, for tensors in main memory: PyTorch's wheels have no MPI (docs/mpi.md).

train.py beside it says `import mpi_backend` and `init_process_group("mpi4py")`: ddrun --mpi -n 2 train.py
"""
import torch, torch.distributed as dist
from mpi4py import MPI
from torch.distributed import ReduceOp

OPERATIONS = {ReduceOp.SUM: MPI.SUM, ReduceOp.PRODUCT: MPI.PROD, ReduceOp.MIN: MPI.MIN, ReduceOp.MAX: MPI.MAX}

class Work(dist.Work):
    def __init__(self, result=None, request=MPI.REQUEST_NULL):
        super().__init__()
        self.request, self.future = request, torch.futures.Future()
        self.future.set_result(result)
    def wait(self, timeout=None):
        self.request.Wait()
        return True
    def get_future(self):
        return self.future

class Group(dist.ProcessGroup):
    def __init__(self, options, _):
        super().__init__(options.group_rank, options.group_size)
        ranks = list(options.global_ranks_in_group) or range(options.group_size)
        self.comm = MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))
    def allreduce(self, tensors, opts):
        self.comm.Allreduce(MPI.IN_PLACE, tensors[0].detach().numpy(), OPERATIONS[opts.reduceOp.op])
        return Work(tensors)
    def broadcast(self, tensors, opts):
        self.comm.Bcast(tensors[0].detach().numpy(), opts.rootRank)
        return Work(tensors)
    def allgather(self, outputs, inputs, opts=None):
        for output, array in zip(outputs[0], self.comm.allgather(inputs[0].detach().numpy())):
            output.copy_(torch.from_numpy(array))
        return Work(outputs)
    def send(self, tensors, rank, tag):
        return Work(tensors, self.comm.Isend(tensors[0].detach().numpy(), rank, tag))
    def recv(self, tensors, rank, tag):
        return Work(tensors, self.comm.Irecv(tensors[0].detach().numpy(), rank, tag))
    def barrier(self, opts=None):
        self.comm.Barrier()
        return Work()

dist.Backend.register_backend("mpi4py", Group, extended_api=True, devices="cpu")
