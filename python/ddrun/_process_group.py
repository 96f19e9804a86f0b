"""torch.distributed's process group of a rank."""

import contextlib
import gc
import os
import socket
import sys
import threading
import time
import traceback
import types
import weakref

from ddrun import _task

CLOSE_TIMEOUT = 1  # seconds
hosted = set()  # ports of the stores that this rank has opened for process groups that were ended


def current():
    """torch.distributed, if it has a process group."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None


def collectives():
    """How many collectives this rank has begun, by the name of the process group."""
    counts = {}
    with contextlib.suppress(Exception):  # no process group, or one that does not count
        for group, name in current().distributed_c10d._world.pg_names.items():
            counts[name] = group._get_sequence_number_for_group()
    return counts


def status():
    """Of this rank, in words."""
    with open("/proc/self/statm", encoding="ascii") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
    dist = current()
    return f"{memory} MiB" + (f", process group of {dist.get_world_size()} ({dist.get_backend()})" if dist else "")


def leave():
    """Peers that wait for this rank in a collective of gloo get an exception, unless the group is held: then returns by what,
    else whether there was a group."""
    group = None
    if dist := current():
        group, store = weakref.ref(dist.group.WORLD), dist.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if dist.get_rank() == 0 and (port := getattr(store, "port", None)):
            hosted.add(port)
        del store
        clear_defaults(dist.group.WORLD)
        dist.destroy_process_group()
    _task.forget()
    gc.collect()  # the frames of a traceback hold the group, and it its store
    return holder() if group and group() else bool(dist)


def clear_defaults(group):
    """Functions that were made while there was a group have it as a default, as those of torch.distributed.nn, which DDP
    imports: None means the same."""
    for function in gc.get_objects():
        if type(function) is types.FunctionType and any(value is group for value in function.__defaults__ or ()):
            function.__defaults__ = tuple(None if value is group else value for value in function.__defaults__)


def store_holder():
    """What holds a store of an ended process group, None if all are closed. torch would use it again for the next group on
    the same port, whose ranks would read the addresses of the old one. Blocks until it is closed, for CLOSE_TIMEOUT."""
    deadline = time.monotonic() + CLOSE_TIMEOUT
    for port in list(hosted):
        with contextlib.suppress(OSError):
            while True:  # threads of gloo may hold it a little longer
                socket.create_connection(("127.0.0.1", port), 1).close()
                if time.monotonic() > deadline:
                    return holder()
                gc.collect()
                time.sleep(0.02)
        hosted.remove(port)
    return None


def holder():
    """A variable, or a thread, through which objects of torch.distributed are still there, in words."""
    c10d, rank = sys.modules["torch.distributed"].distributed_c10d, os.environ["RANK"]
    kinds, untracked = {c10d.ProcessGroup, c10d.Store, c10d.Work}, []
    new = tracked = gc.get_objects()
    while new := [part for part in gc.get_referents(*new) if type(part) in (tuple, dict) and not gc.is_tracked(part)]:
        untracked += new
    found = [part for part in gc.get_referents(*tracked, *untracked) if not kinds.isdisjoint(type(part).__mro__)]
    spaces = {name: vars(module) for name, module in list(sys.modules.items()) if hasattr(module, "__dict__")}
    threads = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]
    seen, name = {id(frame) for frame, _ in traceback.walk_stack(None)}, "an object of torch"
    seen |= set(map(id, (tracked, untracked, *spaces.values())))
    while found:
        ids = set(map(id, found))
        for frame in threads:
            if frame.f_back and not ids.isdisjoint(map(id, frame.f_locals.values())):
                name = f"{frame.f_code.co_name} in a thread"
        seen |= ids | {id(found)}
        for module, space in spaces.items():  # which gc does not know if --preload's server has frozen it
            for word, value in list(space.items()):
                if id(value) in ids and module == "__main__":
                    return f"variable {word} of rank {rank}"
                elif id(value) in ids:
                    name = f"{module}.{word}"
        found = gc.get_referrers(*found) + [part for part in untracked if not ids.isdisjoint(map(id, gc.get_referents(part)))]
        found = [part for part in found if id(part) not in seen]
    return f"{name} of rank {rank}"


def abort():
    """In the second thread, while the main thread is in a collective of NCCL; gloo cannot be aborted."""
    if (dist := current()) and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()
