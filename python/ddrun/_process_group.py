"""torch.distributed's process group of a rank."""

import contextlib
import sys
import weakref

from ddrun import _task


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


def leave():
    """Peers that wait for this rank in a collective of gloo get an exception. Returns whether there was a group."""
    if dist := current():
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        if group():  # the frames of the traceback hold it, and it its store
            _task.forget()
    return bool(dist)


def abort():
    """In the second thread, while the main thread is in a collective of NCCL; gloo cannot be aborted."""
    if (dist := current()) and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()
