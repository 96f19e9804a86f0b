"""All that a TCPStore can do, written down as JSON: what a call returned, or how it failed.

usage: store_client.py FOLDER

Rank 0 tries the launcher's store, rank 1 at the same time a server of PyTorch's own; the results must be the same.
After that both use the launcher's store together, and a store that rank 0 opens at a port of its own.
"""
import base64
import json
import os
import pathlib
import re
import sys
import threading
from datetime import timedelta

import torch.distributed as dist

LONG = timedelta(seconds=60)


def ms(count):
    return timedelta(milliseconds=count)


class Recorder:
    """Runs calls and keeps what they did, each under a name."""

    def __init__(self):
        self.results = {}

    def __call__(self, name, call):
        assert name not in self.results, name
        try:
            value = call()
        except Exception as error:
            # The first line, without the address of the store.
            text = re.sub(r" on SocketImpl.*", "", str(error).partition("\n")[0])
            value = [type(error).__name__, text]
        self.results[name] = plain(value)


def plain(value):
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
        return text if text.encode() == value else "base64:" + base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def together(*calls):
    """Runs each in a thread of its own and returns what they returned (or the name of what they raised)."""
    results = [None] * len(calls)

    def one(number, call):
        try:
            results[number] = call()
        except Exception as error:
            results[number] = type(error).__name__

    threads = [threading.Thread(target=one, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def values(record, store):
    record("set", lambda: store.set("a", "hi"))
    record("get", lambda: store.get("a"))
    record("set again", lambda: (store.set("a", "other"), store.get("a"))[1])
    record("set empty", lambda: (store.set("empty", ""), store.get("empty"))[1])
    record("set bytes", lambda: (store.set("bytes", b"\x00\xff\n"), store.get("bytes"))[1])
    record("odd keys", lambda: [(store.set(key, key), store.get(key))[1] for key in ("", " ", "/x//y", "ö", "a\0b")])
    record("8 MiB", lambda: (store.set("large", "x" * (8 << 20)), store.get("large") == b"x" * (8 << 20))[1])
    record("long key", lambda: (store.set("k" * 8191, "v"), store.get("k" * 8191))[1])

    record("add", lambda: [store.add("n", 5), store.add("n", -7), store.get("n")])
    record("add 0", lambda: [store.add("zero", 0), store.check(["zero"]), store.get("zero")])
    record("add to text", lambda: (store.set("n", " 12ab"), store.add("n", 1), store.get("n"))[1:])
    record("add large", lambda: [store.add("big", 2**62), store.get("big")])

    record("check", lambda: [store.check(keys) for keys in ([], ["a"], ["none"], ["a", "none"], ["a", "n"])])
    record("delete", lambda: [store.delete_key("empty"), store.delete_key("empty"), store.check(["empty"])])

    record("compare_set absent, nothing expected", lambda: store.compare_set("c", "", "v1"))
    record("compare_set equal", lambda: store.compare_set("c", "v1", "v2"))
    record("compare_set different", lambda: store.compare_set("c", "bad", "v3"))
    record("compare_set absent, text expected", lambda: [store.compare_set("c2", "x", "y"), store.check(["c2"])])
    record("compare_set empty", lambda: (store.set("e", ""), store.compare_set("e", "", "now"), store.get("e"))[1:])
    record("compare_set to empty", lambda: [store.compare_set("e", "now", ""), store.get("e")])

    record("has_extended_api", store.has_extended_api)
    record("append", lambda: [store.append("p", "ab"), store.append("p", ""), store.append("p", "c"), store.get("p")])
    record("multi_set", lambda: store.multi_set(["m1", "m2", "m3"], ["x", "", "z" * 1000]))
    record("multi_get", lambda: store.multi_get(["m3", "m1", "m2", "m1"]))
    many = {f"many{i}": str(i) for i in range(5000)}
    record("multi, many", lambda: (store.multi_set(list(many), list(many.values())),
                                   [text.decode() for text in store.multi_get(list(many))] == list(many.values())))
    record("multi, no keys", lambda: [store.multi_set([], []), store.multi_get([])])
    record("multi_set, unequal", lambda: store.multi_set(["m1", "m2"], ["x"]))


def counting(record, store):
    before = store.num_keys()
    record("num_keys", lambda: [store.num_keys() - before, store.set("counted", ""), store.num_keys() - before,
                                store.add("counted2", 1), store.num_keys() - before, store.delete_key("counted"),
                                store.num_keys() - before, store.queue_push("counted3", ""), store.num_keys() - before])
    record("list_keys", lambda: sorted(key for key in store.list_keys()
                                       if key != "init/" and not key.startswith("many") and len(key) < 1000))


def waiting(record, store, other):
    record("wait for what is there", lambda: (store.set("w", ""), store.wait(["w"]), store.wait(["w"], LONG))[1:])
    record("wait for nothing", lambda: store.wait([]))
    record("wait in vain", lambda: store.wait(["w", "none", "nothing"], ms(200)))
    record("wait no time", lambda: store.wait(["none"], ms(0)))
    record("usable after it", lambda: store.get("w"))
    record("wait twice in vain", lambda: [together(lambda: store.wait(["none"], ms(50)))[0] for _ in range(2)])
    ways = {
        "set": lambda: other.set("set", "1"),
        "add": lambda: other.add("add", 0),
        "append": lambda: other.append("append", ""),
        "multi_set": lambda: other.multi_set(["x", "multi_set"], ["", ""]),
        "compare_set": lambda: other.compare_set("compare_set", "", "1"),
    }
    for key, create in ways.items():
        record(f"woken by {key}", lambda key=key, create=create: together(
            lambda: store.wait([key], LONG), create)[0])
    record("woken by the last of three", lambda: together(
        lambda: (store.wait(["l1", "l2", "l3"], LONG), store.check(["l1", "l2", "l3"]))[1],
        lambda: [other.set(key, "") for key in ("l3", "l1", "l2")] and None))
    record("get waits", lambda: together(lambda: store.get("later"), lambda: other.set("later", "it is"))[0])


def barriers(record, store, connect):
    record("barrier of one", lambda: [store.barrier("b1", 1), store.get("b1")])
    record("barrier in vain", lambda: store.barrier("b2", 2, ms(200)))
    record("barrier in vain, counted", lambda: store.get("b2"))
    record("barrier, then with another", lambda: store.barrier("b2", 2, LONG))
    others = [connect() for _ in range(7)]
    record("barrier of eight", lambda: together(
        *(lambda one=one: one.barrier("b8", 8, LONG) for one in [store, *others])))
    record("barrier passed long ago", lambda: [store.barrier("b8", 8, LONG), store.get("b8")])


def queues(record, store, other):
    record("queue of none", lambda: [store.queue_len("q"), store.check(["q"])])
    record("pop from an empty queue", lambda: store.queue_pop("q", block=False))
    record("push", lambda: [store.queue_push("q", text) for text in ("e1", "", "e3")])
    record("queue_len", lambda: [store.queue_len("q"), other.queue_len("q"), store.check(["q"])])
    record("pop", lambda: [other.queue_pop("q"), store.queue_pop("q"), store.queue_pop("q", block=False),
                           store.queue_len("q"), store.check(["q"])])
    record("a key of that name", lambda: [store.set("q", "key"), store.queue_push("q", "element"), store.get("q"),
                                          store.queue_pop("q"), store.get("q"), store.delete_key("q")])
    record("delete of a queue", lambda: [store.queue_push("d", "1"), store.delete_key("d"), store.queue_len("d")])
    record("pop waits", lambda: together(lambda: store.queue_pop("late"), lambda: other.queue_push("late", "here"))[0])
    record("two pops, two pushes", lambda: [sorted(together(
        lambda: store.queue_pop("two"), lambda: other.queue_pop("two"),
        lambda: (third := other.clone(), third.queue_push("two", "1"), third.queue_push("two", "2")) and None)[:2]),
        store.queue_len("two")])


def timeouts(record, connect):
    store = connect()
    record("timeout", lambda: [store.timeout, store.set_timeout(ms(250)), store.timeout])
    record("get in vain", lambda: store.get("none"))
    record("multi_get in vain", lambda: store.multi_get(["a", "none"]))
    record("pop in vain", lambda: store.queue_pop("none"))
    record("barrier in vain by default", lambda: store.barrier("b3", 2))
    record("prefixed get in vain", lambda: dist.PrefixStore("p", store).get("none"))


def prefixes(record, store, connect):
    outer = dist.PrefixStore("outer", store)
    both = dist.PrefixStore("inner", outer)
    record("PrefixStore", lambda: [both.set("k", "v"), both.get("k"), outer.get("inner/k"), store.get("outer/inner/k")])
    record("PrefixStore, rest", lambda: [
        both.add("n", 3), both.append("k", "w"),
        both.multi_set(["x", "y"], ["1", "2"]), both.multi_get(["x", "y", "k"]),
        both.compare_set("k", "vw", "z"), both.check(["k", "none"]), both.wait(["k"], LONG), both.delete_key("k"),
        both.queue_push("q", "e"), both.queue_len("q"), both.queue_pop("q"), both.barrier("b", 1, LONG)])
    record("PrefixStore, list_keys", lambda: [sorted(both.list_keys()), sorted(outer.list_keys())])
    copy = store.clone()
    record("clone", lambda: [copy.set("of clone", "1"), store.get("of clone"), copy.timeout == store.timeout])
    record("clone of PrefixStore", lambda: [both.clone().get("x"), both.underlying_store.get("inner/x")])
    many = [connect() for _ in range(40)]
    record("many clients", lambda: sorted(together(*(lambda one=one: one.add("arrived", 1) for one in many))))


def refused(record, connect):
    """What ends a connection; each on one of its own, and the others do not notice."""
    # PyTorch's client may notice at once, as it sends the rest, or as it reads the next answer.
    def fails(call):
        try:
            call(connect())
        except dist.DistError as error:
            return isinstance(error, dist.DistNetworkError)
        return False

    record("more than 8 MiB", lambda: fails(lambda one: (one.set("a", "x" * ((8 << 20) + 1)), one.get("a"))))
    record("too long a key", lambda: fails(lambda one: (one.set("k" * 8192, ""), one.get("a"))))
    record("add to no number", lambda: fails(lambda one: (one.set("text", "abc"), one.add("text", 1))))
    record("others go on", lambda: connect().check(["a"]))


def exercise(connect):
    """`connect` opens one more connection to a server without other clients."""
    record, store, other = Recorder(), connect(), connect()
    values(record, store)
    timeouts(record, connect)
    waiting(record, store, other)
    barriers(record, store, connect)
    queues(record, store, other)
    counting(record, store)
    prefixes(record, store, connect)
    refused(record, connect)
    return record.results


def both_ranks(rank, connect):
    """Through the launcher's store from rank to rank."""
    store = connect()
    result = {}
    if rank == 0:
        for text in ("first", "second"):
            store.queue_push("to rank 1", text)
    else:
        result["popped"] = plain([store.queue_pop("to rank 1") for _ in range(2)])
    store.barrier("both", 2, LONG)
    result["sum"] = plain((store.add("sum", rank + 1), store.barrier("sum done", 2, LONG), store.get("sum"))[2])
    return result


def server_at_the_launchers_address(rank):
    """A script written for plain python lets rank 0 serve at MASTER_PORT, where the launcher's store is already."""
    try:
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, is_master=rank == 0)
    except RuntimeError as error:
        return type(error).__name__
    store.set(f"served by {rank}", "1")
    return plain(store.get(f"served by {1 - rank}"))


def own_store(rank, connect):
    """As a user may who wants a store besides: at another port, with rank 0 as the server."""
    meet = connect()
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=LONG, wait_for_workers=False)
        meet.set("own port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(meet.get("own port")), 2, is_master=False, timeout=LONG)
    mine = dist.PrefixStore("mine", store)
    mine.set(f"from {rank}", str(rank))
    result = {"from the other": plain(mine.get(f"from {1 - rank}")), "in the launcher's": meet.check(["mine/from 0"])}
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=2, timeout=LONG)
    objects = [None, None]
    dist.all_gather_object(objects, rank)
    result["gathered"] = objects
    dist.monitored_barrier()
    dist.destroy_process_group()
    meet.barrier("own store done", 2, LONG)  # its server is in rank 0, which must not go first
    return result


def main():
    folder = pathlib.Path(sys.argv[1])
    rank = int(os.environ["RANK"])

    def connect():
        return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LONG)

    if rank == 0:
        result = {"store": exercise(connect)}
    else:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LONG)
        result = {"store": exercise(lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=LONG))}
    result["both"] = both_ranks(rank, connect)
    result["server at the launcher's address"] = server_at_the_launchers_address(rank)
    result["own store"] = own_store(rank, connect)
    (folder / f"rank_{rank}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # PyTorch's teardown sometimes aborts, under every launcher


if __name__ == "__main__":
    main()
