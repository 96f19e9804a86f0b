"""Every way to make a process group, and every collective of gloo in it; each rank writes what it got as JSON.

usage: collectives.py FOLDER
"""
import json
import os
import pathlib
import random
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)


def free_port():
    """Below the range from which the kernel takes ports by itself, so that nobody gets it in the meantime."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::", port))
                return port
            except OSError:
                continue


def numbers(rank, count=4):
    return torch.arange(count, dtype=torch.float32) + 10 * (rank + 1)


def reductions(rank):
    result = {}
    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        value = numbers(rank)
        dist.all_reduce(value, getattr(dist.ReduceOp, op))
        result[f"all_reduce {op}"] = value.tolist()
    for op in ("BAND", "BOR", "BXOR"):
        value = torch.tensor([rank + 1, 7 * rank + 3])
        dist.all_reduce(value, getattr(dist.ReduceOp, op))
        result[f"all_reduce {op}"] = value.tolist()
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8):
        value = numbers(rank).to(dtype)
        dist.all_reduce(value)
        result[f"all_reduce {dtype}"] = value.tolist()
    value = numbers(rank, 100_000)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    result["all_reduce async, large"] = [value.sum().item(), value[-1].item()]
    value = numbers(rank)
    dist.reduce(value, dst=dist.get_world_size() - 1)
    if rank == dist.get_world_size() - 1:  # what the others have in it is not defined
        result["reduce"] = value.tolist()
    return result


def collectives(rank, size):
    result = reductions(rank)

    value = numbers(rank)
    dist.broadcast(value, src=size - 1)
    result["broadcast"] = value.tolist()

    parts = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(parts, numbers(rank))
    result["all_gather"] = [part.tolist() for part in parts]

    whole = torch.zeros(4 * size)
    dist.all_gather_into_tensor(whole, numbers(rank))
    result["all_gather_into_tensor"] = whole.tolist()

    parts = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    dist.gather(numbers(rank), parts, dst=0)
    result["gather"] = parts and [part.tolist() for part in parts]

    value = torch.zeros(4)
    dist.scatter(value, [numbers(i) for i in range(size)] if rank == 0 else None, src=0)
    result["scatter"] = value.tolist()

    value = torch.zeros(4)
    dist.reduce_scatter(value, [numbers(rank) + i for i in range(size)])
    result["reduce_scatter"] = value.tolist()

    value = torch.zeros(4)
    dist.reduce_scatter_tensor(value, numbers(rank, 4 * size))
    result["reduce_scatter_tensor"] = value.tolist()

    value = torch.zeros(2 * size)
    dist.all_to_all_single(value, numbers(rank, 2 * size))
    result["all_to_all_single"] = value.tolist()

    sizes = [i + 1 for i in range(size)]  # uneven: rank r gets r + 1 numbers from each
    value = torch.zeros((rank + 1) * size)
    dist.all_to_all_single(value, numbers(rank, sum(sizes)), [rank + 1] * size, sizes)
    result["all_to_all_single, uneven"] = value.tolist()

    parts = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(parts, list(numbers(rank, 2 * size).split(2)))
    result["all_to_all"] = [part.tolist() for part in parts]

    values = [numbers(rank), numbers(rank, 3)]
    dist.all_reduce_coalesced(values)
    result["all_reduce_coalesced"] = [value.tolist() for value in values]

    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    result["all_gather_object"] = objects

    objects = [None] * size if rank == 0 else None
    dist.gather_object(("from", rank), objects, dst=0)
    result["gather_object"] = objects

    objects = [{"answer": 42}, "ö"] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    result["broadcast_object_list"] = objects

    objects = [None]
    dist.scatter_object_list(objects, [f"for {i}" for i in range(size)] if rank == 0 else None, src=0)
    result["scatter_object_list"] = objects

    dist.barrier()
    dist.monitored_barrier(timeout=TIMEOUT, wait_all_ranks=True)
    return result


def point_to_point(rank, size):
    """A ring, in each of the ways there are."""
    result = {}
    after, before = (rank + 1) % size, (rank - 1) % size
    if size == 1:
        return result

    value = torch.zeros(4)
    if rank % 2 == 0:
        dist.send(numbers(rank), after)
        dist.recv(value, before)
    else:
        dist.recv(value, before)
        dist.send(numbers(rank), after)
    result["send, recv"] = value.tolist()

    value = torch.zeros(4)
    sent, got = dist.isend(numbers(rank), after, tag=7), dist.irecv(value, before, tag=7)
    sent.wait()
    got.wait()
    result["isend, irecv"] = value.tolist()

    value = torch.zeros(4)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, numbers(rank), after),
                                        dist.P2POp(dist.irecv, value, before)]):
        work.wait()
    result["batch_isend_irecv"] = value.tolist()

    if rank == 0:  # from anyone
        value = torch.zeros(4)
        senders = sorted(dist.recv(value) for _ in range(size - 1))
        result["recv from any"] = senders
    else:
        dist.send(numbers(rank), 0)

    objects = [None]
    if rank == 0:
        dist.send_object_list([{"for": 1}], dst=1)
    elif rank == 1:
        dist.recv_object_list(objects, src=0)
        result["send_object_list"] = objects
    return result


def groups(rank, size):
    result = {}
    for number in range(3):  # one after the other, all of the same ranks
        group = dist.new_group(timeout=TIMEOUT)
        value = torch.tensor([float(rank + number)])
        dist.all_reduce(value, group=group)
        result[f"new_group {number}"] = value.item()
        dist.destroy_process_group(group)
    mine = [r for r in range(size) if r % 2 == rank % 2]
    for ranks in ([r for r in range(size) if r % 2 == 0], [r for r in range(size) if r % 2 == 1]):
        if not ranks:
            continue
        group = dist.new_group(ranks, timeout=TIMEOUT)
        if rank in ranks:
            value = numbers(rank)
            dist.all_reduce(value, group=group)
            result["new_group of half"] = [value.tolist(), dist.get_rank(group), dist.get_world_size(group)]
            assert dist.get_process_group_ranks(group) == mine
    if size % 2 == 0:
        group, _ = dist.new_subgroups(2)
        value = numbers(rank)
        dist.all_reduce(value, group=group)
        result["new_subgroups"] = value.tolist()
    group = dist.split_group(split_ranks=[[r] for r in range(size)])
    value = numbers(rank)
    dist.all_reduce(value, group=group)
    result["split_group"] = value.tolist()
    return result


def absent_rank(rank, size):
    """monitored_barrier names the rank (in its group) that does not come."""
    if size == 1:
        return {}
    group = dist.new_group([0, size - 1], timeout=TIMEOUT)
    noticed = None
    if rank == 0:
        try:
            dist.monitored_barrier(group, timeout=timedelta(milliseconds=300))
        except RuntimeError as error:
            noticed = "Rank 1 failed to pass monitoredBarrier" in str(error)
    dist.barrier()
    return {"noticed": noticed}


def mismatch(rank, size):
    """With TORCH_DISTRIBUTED_DEBUG=DETAIL, tensors that do not fit are noticed before they are sent."""
    try:
        dist.all_reduce(torch.zeros(2 + rank))
    except RuntimeError as error:
        return {"mismatch": "Detected mismatch between collectives on rank" in str(error)}
    return {"mismatch": None}


def group_facts():
    return {
        "backend": dist.get_backend(),
        "rank": dist.get_rank(),
        "size": dist.get_world_size(),
        "local rank": dist.get_node_local_rank(),
    }


def main():
    folder = pathlib.Path(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    result = {"is_torchelastic_launched": dist.is_torchelastic_launched()}

    dist.init_process_group("gloo", timeout=TIMEOUT)  # env://
    result["env://"] = group_facts()
    result["collectives"] = collectives(rank, size)
    result["point to point"] = point_to_point(rank, size)
    result["groups"] = groups(rank, size)
    result["absent rank"] = absent_rank(rank, size)
    if dist.get_debug_level() == dist.DebugLevel.DETAIL and size > 1:
        result["DETAIL"] = mismatch(rank, size)
    port = [free_port()]
    dist.broadcast_object_list(port)
    dist.barrier()
    dist.destroy_process_group()

    for method in (f"tcp://127.0.0.1:{port[0]}", f"file://{folder.absolute()}/meet"):
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size, timeout=TIMEOUT)
        result[method.partition(":")[0] + "://"] = {**group_facts(), **reductions(rank)}
        dist.barrier()
        # Rank 0 has the tcp:// store: it must not go while somebody still uses it.
        dist.monitored_barrier(timeout=TIMEOUT)
        dist.destroy_process_group()

    (folder / f"rank_{rank}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher


if __name__ == "__main__":
    main()
