"""Each rank adds its number to the others'; the sum is printed."""
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
# In one piece: torchrun starts python with -u, and print() writes the end of a line separately then.
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {value.item():g}\n")
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher
