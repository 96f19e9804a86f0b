"""Trains a small model with DistributedDataParallel, and goes on from its checkpoint if there is one.

Writes what must be the same in every run of the same training: each rank's losses and a hash of its parameters.
"""
import argparse
import hashlib
import json
import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 16, generator=generator)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True)) + 0.1 * torch.randn(256, 1, generator=generator)
    return TensorDataset(inputs, targets)


def new_model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="for the checkpoint and the results")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--die-in-epoch", type=int, help="rank 1 does, at its second step, in the first attempt")
    args = parser.parse_args()
    checkpoint = args.folder / "checkpoint.pt"

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first_epoch, losses = 0, []
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch, losses = state["epoch"] + 1, state["losses"][rank]

    model = DistributedDataParallel(model)
    sampler = DistributedSampler(data := dataset(), seed=3)
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(DataLoader(data, batch_size=16, sampler=sampler)):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            if (epoch, step, rank) == (args.die_in_epoch, 1, 1) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)
        everyones_losses = [None] * dist.get_world_size()
        dist.all_gather_object(everyones_losses, losses)
        if rank == 0:
            new = checkpoint.with_suffix(".new")
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch,
                        "losses": everyones_losses}, new)
            new.rename(checkpoint)

    parameters = hashlib.sha256()
    for name, value in model.module.state_dict().items():
        parameters.update(name.encode() + value.numpy().tobytes())
    (args.folder / f"rank_{rank}.json").write_text(json.dumps({
        "losses": losses,
        "parameters": parameters.hexdigest(),
        "epochs of this attempt": args.epochs - first_epoch,
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    }))
    dist.barrier()
    dist.destroy_process_group()
    print(f"rank {rank}: loss {float.fromhex(losses[-1]):.6f}")
    sys.stdout.flush()
    os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher


if __name__ == "__main__":
    main()
