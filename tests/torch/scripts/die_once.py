"""A gloo job whose rank 1 dies in the first attempt, when everybody knows everybody.

usage: die_once.py    each rank of the second attempt prints "restarted" and the sum of the ranks
"""
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
group = dist.new_group()
dist.all_reduce(value, group=group)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        os._exit(1)
    dist.all_reduce(value)  # in vain: fails, or is stopped by the launcher
    sys.exit("all_reduce without rank 1 did not fail")
print(f"restarted, rank {dist.get_rank()}: {value.item():g}")
sys.stdout.flush()
os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher
