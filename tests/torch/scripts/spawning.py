"""In the manner of PyTorch's ImageNet example: the launcher starts a process per machine, which spawns one per device.

spawning.py FOLDER        trains a small model and writes FOLDER/rank_N.json for each of the spawned
spawning.py FOLDER hold   trains for ever
"""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PER_NODE = 2


def train(local, node, nodes, folder, hold):
    rank = node * PER_NODE + local
    dist.init_process_group("gloo", init_method="env://", world_size=nodes * PER_NODE, rank=rank)
    torch.manual_seed(7)
    x = torch.randn(32, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
    sampler = torch.utils.data.distributed.DistributedSampler(data, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True,
                                         multiprocessing_context="fork")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epoch, losses = 0, []
    while hold or epoch < 2:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses = losses[-7:] + [loss.item()]
        epoch += 1
        if epoch == 2:
            facts = {"rank": dist.get_rank(), "world size": dist.get_world_size(), "pid": os.getpid(),
                     "parent": os.getppid(), "is_torchelastic_launched": dist.is_torchelastic_launched(),
                     "losses": losses,
                     "parameters": [value for p in model.parameters() for value in p.detach().flatten().tolist()]}
            with open(f"{folder}/rank_{rank}.part", "w", encoding="utf-8") as file:
                json.dump(facts, file)
            os.rename(f"{folder}/rank_{rank}.part", f"{folder}/rank_{rank}.json")
    dist.barrier()
    del loader
    os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher


if __name__ == "__main__":
    arguments = (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1], sys.argv[2:] == ["hold"])
    mp.spawn(train, args=arguments, nprocs=PER_NODE)
    print(f"worker {arguments[0]}: all of mine are done", flush=True)
