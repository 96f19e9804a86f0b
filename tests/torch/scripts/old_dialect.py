"""The store and gloo with a PyTorch of before 2.1, whose store speaks an older dialect; results as JSON.

usage: old_dialect.py FOLDER

Rank 0 tries the launcher's store, rank 1 a server of PyTorch's own; the results must be the same.
"""
import json
import os
import pathlib
import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

LONG = timedelta(seconds=60)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def fails(call):
    try:
        call()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def woken(store, key, create):
    """Whether `store` waits for what another thread creates."""
    thread = threading.Thread(target=create)
    thread.start()
    store.wait([key], LONG)
    thread.join()
    return True


def exercise(connect):
    """`connect` opens one more connection to the server."""
    store, other = connect(), connect()
    prefixed = dist.PrefixStore("inner", dist.PrefixStore("outer", store))
    keys = store.num_keys()
    result = {
        "set, get": [store.set("a", "hi"), text(store.get("a")), store.set("a", ""), text(store.get("a"))],
        "large": (store.set("large", "x" * (4 << 20)), len(other.get("large")))[1],
        "odd keys": [(store.set(key, key), text(other.get(key)))[1] for key in ("", " ", "/x//y", "ö")],
        "add": [store.add("n", 5), other.add("n", -7), text(store.get("n")), store.add("zero", 0),
                text(store.get("zero"))],
        "wait": [store.wait(["a", "n"]), store.wait(["a"], LONG), store.wait([])],
        "compare_set": [text(store.compare_set("c", *texts)) for texts in
                        (("", "v1"), ("v1", "v2"), ("bad", "v3"), ("v2", ""), ("", "v4"))],
        "compare_set absent": text(store.compare_set("c2", "x", "y")),
        "num_keys": store.num_keys() - keys,
        "delete": [store.delete_key("a"), store.delete_key("a"), store.num_keys() - keys],
        "woken by set": woken(store, "by set", lambda: other.set("by set", "")),
        "woken by add": woken(store, "by add", lambda: other.add("by add", 1)),
        "get waits": woken(store, "later", lambda: other.set("later", "")) and text(store.get("later")),
        "PrefixStore": [prefixed.set("k", "v"), text(prefixed.get("k")), text(store.get("outer/inner/k")),
                        prefixed.add("n", 2), prefixed.delete_key("k")],
        # Such a client gives up without telling the server, and is of no use after that.
        "wait in vain": fails(lambda: connect().wait(["none"], timedelta(milliseconds=200))),
        "others go on": text(connect().get("n")),
    }
    # A wait that was given up is answered late; no other request may get that answer.
    late = connect()
    result["late"] = [fails(lambda: late.wait(["late"], timedelta(milliseconds=100))), other.set("late", "1"),
                      text(connect().get("late")), text(other.get("n"))]
    many = [connect() for _ in range(20)]
    threads = [threading.Thread(target=one.add, args=("arrived", 1)) for one in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result["many clients"] = text(store.get("arrived"))
    return result


def groups(rank, size):
    dist.init_process_group("gloo", timeout=LONG)
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value)
    result = {"all_reduce": value.item()}
    for number in range(2):
        group = dist.new_group()
        value = torch.tensor([float(rank + number)])
        dist.all_reduce(value, group=group)
        result[f"new_group {number}"] = value.item()
    alone = [dist.new_group([r]) for r in range(size)]
    dist.barrier(alone[rank])
    dist.barrier()
    dist.monitored_barrier(timeout=LONG)
    objects = [None] * size
    dist.all_gather_object(objects, f"rank {rank}")
    result["all_gather_object"] = objects
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.full((2, 3), float(rank))).sum().backward()
    result["gradient"] = model.module.weight.grad.tolist()
    return result


def main():
    folder = pathlib.Path(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    result = {"version": torch.__version__, "is_torchelastic_launched": dist.is_torchelastic_launched(),
              "groups": groups(rank, size)}
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 1:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LONG)
        address, port = "127.0.0.1", server.port
    result["store"] = exercise(lambda: dist.TCPStore(address, port, is_master=False, timeout=LONG))
    (folder / f"rank_{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher


if __name__ == "__main__":
    main()
