"""What --preload saves: preload-start, preload-restart, preload-memory, and that 1,000 restarts leak nothing: preload-leak."""

import functools
import os
import statistics
import sys
import time

from measuring import Comparison, Skip, compare, descendants, in_turn, stat_fields, wait_until
from restarting import ENTRY, WORKERS, Idle, StampedJob
from storing import torch_python

# Stamps the end of its first operation, as bench_worker does its first instruction, then sleeps.
FIRST_OPERATION = f"""
import torch
torch.ones(4, 4) @ torch.ones(4, 4)
import os, struct, sys, time
with open(sys.argv[1], "ab") as file:
    file.write(struct.pack("{ENTRY.format}", time.monotonic_ns(), os.getpid()))
print("~", flush=True)
time.sleep(1000)
"""
# Fails at once, but for two attempts, which stamp as well.
FAILING = f"""
import json, os, struct, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] not in sys.argv[2:]:
    sys.exit(1)
with open(sys.argv[1], "ab") as file:
    file.write(struct.pack("{ENTRY.format}", time.monotonic_ns(), os.getpid()))
time.sleep(1000)
"""


def script(bench, text):
    path = os.path.join(bench.scratch, f"worker-{time.monotonic_ns()}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def needs_torch(benchmark):
    """Gives a benchmark the Python that has PyTorch; where there is none, one row says so."""
    @functools.wraps(benchmark)
    def run(bench, note):
        try:
            return benchmark(bench, note, torch_python(bench))
        except Skip as why:
            return [Comparison(benchmark.__name__.replace("_", "-"), "", [], skipped=str(why))]
    return run


def first_operation(bench, python):
    """How each launcher is asked for 8 workers that end their first torch operation; STAMPS is their file."""
    worker = script(bench, FIRST_OPERATION), "STAMPS"

    def ddrun(*options):
        return bench.ddrun_command(WORKERS, *worker, options=(f"--env=PYTHON_EXEC={python}", *options))

    def torchrun(*options):
        return bench.torchrun_command(WORKERS, python, "-u", *worker, options=options)
    return ddrun, torchrun


@needs_torch
def preload_start(bench, note, python):
    """8 workers on all CPUs until the last one's first torch operation, from the start of the command."""
    ddrun, torchrun = first_operation(bench, python)
    def side(command, *options):
        return lambda: bench.run(command(*options), lines=WORKERS, limit=120)["seconds"]
    repeats = bench.count(5, 2)
    samples, trouble = in_turn({
        "ddrun": (repeats, side(ddrun, "--preload=torch")),
        "ddrun without --preload": (repeats, side(ddrun)),
        "torchrun": (repeats, side(torchrun, "--tee", "3")),
    }, note, settle=1)
    return compare("preload-start", "", samples, trouble, {"ddrun without --preload": (3, 2), "torchrun": (None, None)})


@needs_torch
def preload_restart(bench, note, python):
    """8 workers, one of them killed with SIGKILL, until the last new one's first torch operation."""
    ddrun, torchrun = first_operation(bench, python)
    def side(command, count, *options):
        return lambda: StampedJob(bench, command(f"--max-restarts={count + 1}", *options)).measure(count, (1.5, 2))
    chunks = bench.count(3, 1)
    samples, trouble = in_turn({
        "ddrun": (chunks, side(ddrun, 10, "--preload=torch")),
        "ddrun without --preload": (chunks, side(ddrun, 2)),
        "torchrun": (chunks, side(torchrun, 2)),
    }, note, settle=1)
    flat = {name: [second for chunk in chunks for second in chunk] for name, chunks in samples.items()}
    return compare("preload-restart", "", flat, trouble, {"torchrun": (300, 220), "ddrun without --preload": (None, None)},
                   scale=1e3, unit="ms")


def proportional_set(pids):
    return sum(Idle.usage(pid)["pss"] for pid in pids)


def has_idle_children(job, count):
    """Whether one of the job's processes, the agent, has so many children, and all wait."""
    found = [stat_fields(pid) for pid in descendants(job.process.pid)]
    parents = [fields[1] for fields in found if fields]
    return max(map(parents.count, parents), default=0) == count and all(fields and fields[0] == "S" for fields in found)


@needs_torch
def preload_memory(bench, note, python):
    """Proportional set of a job of 8 workers that sleep after their first torch operation, ddrun and server included."""
    ddrun, _ = first_operation(bench, python)
    def side(*options):
        children = WORKERS + (1 + WORKERS if options else 0)  # the server and those that wait for a restart
        def look(job):
            wait_until(lambda: has_idle_children(job, children), 60, f"a fork of {children} processes")
            return proportional_set([job.process.pid, *descendants(job.process.pid)])
        return lambda: StampedJob(bench, ddrun("--max-restarts=1", *options)).look(look)
    repeats = bench.count(3, 1)
    samples, trouble = in_turn({
        "ddrun": (repeats, side("--preload=torch")),
        "ddrun without --preload": (repeats, side()),
    }, note, settle=1)
    theirs = samples["ddrun without --preload"]
    ratio = statistics.median(samples["ddrun"]) / statistics.median(theirs) if theirs else None
    return compare("preload-memory", "", samples, trouble, {"ddrun without --preload": (0.15, 0.25)}, at_most=True,
                   ratio=ratio, scale=1e-6, unit="MB")


def preload_leak(bench, note, first=100, last=None):
    """ddrun's own memory after 1,000 restarts of 2 workers, over the same after 100.

    Without pages of files, which the kernel drops and reads again when it likes.
    """
    last = last or (300 if bench.quick else 1000)
    program = os.path.realpath(bench.ddrun)
    command = bench.ddrun_command(2, script(bench, FAILING), "STAMPS", str(first), str(last), options=(
        f"--env=PYTHON_EXEC={sys.executable}", "--preload=json", f"--max-restarts={last}", "--same-cause=0"))

    def is_own(pid):
        try:
            return os.readlink(f"/proc/{pid}/exe") == program
        except OSError:  # a worker that has ended meanwhile
            return False

    def own_memory(job):
        usages = map(Idle.usage, filter(is_own, (job.process.pid, *descendants(job.process.pid))))
        return sum(usage["pss"] - usage["pss_file"] for usage in usages)

    def look(job):
        before, seconds = own_memory(job), job.restart()
        return before, own_memory(job), seconds / (last - first)

    before, after, seconds = StampedJob(bench, command, workers=2).look(look)
    note("")
    return [Comparison("preload-leak", f"{last} restarts, {seconds * 1e3:.3g} ms each", [after], f"after {first} restarts",
                       [before], 1.1, 1.3, at_most=True, ratio=after / before, scale=1e-6, unit="MB")]
