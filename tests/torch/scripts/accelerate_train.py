"""A small model trained with Accelerate on the CPU; each rank writes what it was told into FOLDER/rank_N.json.

accelerate_train.py FOLDER
"""
import json
import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed

folder = sys.argv[1]
set_seed(7)
accelerator = Accelerator(cpu=True)
x = torch.randn(32, 4)
data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True), torch.arange(32))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))

losses, seen = [], []
for _ in range(2):
    for inputs, targets, numbers in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        seen += numbers.tolist()

facts = {
    "rank": accelerator.process_index, "local rank": accelerator.local_process_index,
    "world size": accelerator.num_processes, "kind": str(accelerator.distributed_type),
    "dist rank": dist.get_rank(), "dist world size": dist.get_world_size(), "backend": dist.get_backend(),
    "is_torchelastic_launched": dist.is_torchelastic_launched(), "is main": accelerator.is_main_process,
    "losses": losses, "seen": sorted(seen),
    "sum": accelerator.reduce(torch.tensor([accelerator.process_index + 1.0])).item(),
    "gathered": accelerator.gather(torch.tensor([accelerator.process_index])).tolist(),
    "parameters": [value for p in model.parameters() for value in p.detach().flatten().tolist()],
}
with open(f"{folder}/rank_{accelerator.process_index}.json", "w", encoding="utf-8") as file:
    json.dump(facts, file)
accelerator.print("finished")
accelerator.wait_for_everyone()
sys.stdout.flush()
os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher
