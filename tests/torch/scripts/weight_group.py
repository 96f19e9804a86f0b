"""Servers and trainers with groups of their own: weight_group.py server NUMBER OWN_PORT WEIGHTS_PORT, or trainer WEIGHTS_PORT.

The servers, two, make a tcp:// group, as vLLM's engines do. Rank 0 of the trainer sends them weights in a group beside its default one."""

import datetime
import os
import signal
import sys

import torch
import torch.distributed as dist

role, *numbers = sys.argv[1:]
SERVERS = 2


def weight_group(rank, port):
    store = dist.TCPStore("127.0.0.1", port, 1 + SERVERS, is_master=rank == 0)
    return dist.ProcessGroupGloo(store, rank, 1 + SERVERS, datetime.timedelta(seconds=60))


def add_ranks():
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    return total.item()


weights = torch.zeros(4)
if role == "server":
    number, own_port, port = map(int, numbers)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{own_port}", rank=number, world_size=SERVERS,
                            timeout=datetime.timedelta(seconds=60))
    print("servers", add_ranks(), flush=True)
    group = weight_group(1 + number, port)
    group.broadcast(weights, 0).wait()
    print("weights", weights.sum().item(), flush=True)
    group.barrier().wait()
    signal.pause()
dist.init_process_group("gloo")
print("trainers", add_ranks(), flush=True)
if os.environ["RANK"] == "0":
    group = weight_group(0, int(numbers[0]))
    group.broadcast(torch.full((4,), 2.5), 0).wait()
    group.barrier().wait()  # each server has printed them
dist.barrier()
dist.destroy_process_group()
