"""DeviceMesh, FSDP2, DTensor, distributed checkpoints and RPC, all on the CPU; each rank writes what it got as JSON.

usage: sharded.py FOLDER    with four ranks
"""
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import rpc
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def meshes():
    """A line of all, and a grid with names."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value, group=grid["tp"].get_group())
    across = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(across, group=grid["dp"].get_group())
    return grid, {
        "coordinate": list(grid.get_coordinate()),
        "local ranks": [grid.get_local_rank("dp"), grid.get_local_rank("tp")],
        "sum over tp": value.item(),
        "sum over dp": across.item(),
    }


def tensors(grid):
    whole = torch.arange(32, dtype=torch.float32).reshape(8, 4)
    tensor = distribute_tensor(whole, grid, [Shard(0), Shard(1)])
    local = tensor.to_local().tolist()
    product = (tensor @ distribute_tensor(whole.T.contiguous(), grid, [Replicate(), Replicate()])).full_tensor()
    assert torch.equal(product, whole @ whole.T)
    return {"local": local, "sum": tensor.sum().full_tensor().item(), "product": product.tolist()}


def new_model(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, steps, seed):
    losses = []
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    for _ in range(steps):
        inputs = torch.randn(16, 8, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs.prod(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


def whole_parameters(model):
    parameters = get_model_state_dict(model)
    return {name: value.full_tensor().double().sum().item().hex() for name, value in parameters.items()}


def fsdp(folder):
    """Trains, saves, trains on; then a new model takes up the checkpoint, and must come to the same end."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, optimizer = new_model(mesh)
    shard = list(model[0].weight.to_local().shape)
    losses = train(model, optimizer, 5, seed=10)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=str(folder / "checkpoint"))
    losses_after = train(model, optimizer, 3, seed=20)

    again, again_optimizer = new_model(mesh)
    train(again, again_optimizer, 1, seed=30)  # other values, which the checkpoint must replace
    model_state, optimizer_state = get_state_dict(again, again_optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=str(folder / "checkpoint"))
    set_state_dict(again, again_optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    assert train(again, again_optimizer, 3, seed=20) == losses_after
    assert whole_parameters(again) == whole_parameters(model)
    return {
        "shard": shard,
        "losses": losses + losses_after,
        "parameters": whole_parameters(model),
        "files": sorted(path.name for path in (folder / "checkpoint").iterdir()),
    }


def multiply(a, b):
    return a * b


def whoami():
    return rpc.get_worker_info().name


def remote_calls(rank, size):
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)  # env://
    peer = f"worker{(rank + 1) % size}"
    result = {
        "sync": rpc.rpc_sync(peer, multiply, (torch.arange(3), rank)).tolist(),
        "async": rpc.rpc_async(peer, whoami).wait(),
        "remote": rpc.remote(peer, multiply, (6, 7)).to_here(),
    }
    try:
        rpc.rpc_sync(peer, multiply, ({}, {}))
    except TypeError as error:
        result["error"] = type(error).__name__
    rpc.shutdown()
    return result


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    grid, mesh_result = meshes()
    result = {"mesh": mesh_result, "tensors": tensors(grid), "fsdp": fsdp(folder), "rpc": remote_calls(rank, size)}
    (folder / f"rank_{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher


if __name__ == "__main__":
    main()
