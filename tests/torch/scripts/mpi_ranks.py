"""A rank of an MPI world that prints what it sees, and then ends as MODE says."""
import os
import sys
import time

mode = sys.argv[1] if len(sys.argv) > 1 else ""
RANK = int(os.environ["RANK"])
if mode == "early" and RANK == 1:
    sys.exit(0)

from mpi4py import MPI  # noqa: E402  MPI_Init

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
local = world.Split_type(MPI.COMM_TYPE_SHARED)
machines = world.allreduce(1 if local.rank == 0 else 0)
assert world.rank == RANK
sys.stdout.write(f"size {world.size} sum {total} local {local.size} machines {machines} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}\n")
sys.stdout.flush()
world.Barrier()  # none ends before all have said their line
if mode.startswith("abort") and RANK == 1:
    world.Abort(int(mode[5:]))
if mode == "fail once" and RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(7)
if mode == "unfinished" and RANK == 1:
    world.Get_attr(MPI.UNIVERSE_SIZE)
    os._exit(0)
if mode == "finalize then leave":
    world.Barrier()
    MPI.Finalize()
    if RANK == 1:
        os._exit(0)
    time.sleep(float(os.environ.get("DDRUN_TEST_WORK", "0")))
    print("worked on", flush=True)
