"""torch.distributed's process group of a rank."""

import contextlib
import sys


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
        dist.destroy_process_group()
    return bool(dist)


def abort():
    """In the second thread, while the main thread is in a collective of NCCL; gloo cannot be aborted."""
    if (dist := current()) and dist.get_backend() == "nccl":
        dist.distributed_c10d._abort_process_group()
