"""One rank of torch.distributed with gloo that reduces as ddrun-allreduce does, for benchmarks.

Takes these options of ddrun-allreduce: -b -e -f -n -w -J, each with its value as the next word. torch reduces in place only.
"""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist


def value(rank, count, turn):
    """Whole numbers, so that sums are exact; other ones for each rank, place and turn."""
    return ((torch.arange(count, dtype=torch.int64) * 31 + rank * 7919 + turn * 127) % 1021).float()


def seconds(data, times):
    """Of each of `times` calls, of the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(data)
    mean = torch.tensor([(time.perf_counter() - began) / times], dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    return mean.item()


def main():
    given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    first, last, factor = (int(given[name]) for name in ("-b", "-e", "-f"))
    times, warmup = int(given["-n"]), int(given["-w"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results, size, turn = [], first, 0
    while size <= last:
        count, turn = size // 4, turn + 1
        data = value(rank, count, turn)
        if warmup:
            seconds(data, warmup)
        mean = seconds(data, times)
        data = value(rank, count, turn)
        dist.all_reduce(data)
        wrong = (data != sum(value(other, count, turn) for other in range(ranks))).sum().to(torch.int64)
        dist.all_reduce(wrong)
        results.append({"size": size, "in_place": {"time_us": mean * 1e6, "iterations": times, "wrong": wrong.item()}})
        size *= factor
    if rank == 0:
        with open(given["-J"], "w", encoding="utf-8") as file:
            json.dump({"world_size": ranks, "results": results, "ok": True}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
