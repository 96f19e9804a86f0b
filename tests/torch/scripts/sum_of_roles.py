"""Adds a number over the ranks of its world, and prints the sum and the attempt. In the first attempt a rank of the
program "other" fails once all ranks of both have printed, which their files in a folder show."""

import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

number, folder = torch.tensor([int(sys.argv[1])]), pathlib.Path(sys.argv[2])
role, rank, attempt = (os.environ[name] for name in ("ROLE_NAME", "RANK", "TORCHELASTIC_RESTART_COUNT"))
dist.init_process_group("gloo")
for _ in range(50):
    total = number.clone()
    dist.all_reduce(total)
    assert total.item() == number.item() * dist.get_world_size(), total
print(total.item(), attempt, flush=True)
if attempt == "0":
    (folder / f"{role}{rank}").touch()
    while len(list(folder.iterdir())) < 4 or (role, rank) != ("other", "1"):
        time.sleep(0.05)
    sys.exit(1)
dist.destroy_process_group()
