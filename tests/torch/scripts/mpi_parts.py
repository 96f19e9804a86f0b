"""Prints a rank's place in MPI's world, and whether its other numbers agree."""

import os

from mpi4py import MPI

world = MPI.COMM_WORLD
assert world.allreduce(1) == world.size == int(os.environ["WORLD_SIZE"])
assert world.rank == int(os.environ["RANK"])
print(f"{world.rank} of {world.size}, program {world.Get_attr(MPI.APPNUM)} {os.environ['ROLE_NAME']}\n", end="", flush=True)
