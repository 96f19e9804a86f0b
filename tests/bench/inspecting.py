"""What `ddrun stacks` takes, against py-spy and gdb: stacks; and what it costs a busy rank: stacks-pause."""

import os
import statistics
import sys
import time

from measuring import Comparison, Failure, compare, in_turn, wait_until
from preloading import needs_torch, script
from restarting import ENTRY, WORKERS, StampedJob

QUESTIONS = 100
SLEEPER = "sleep_while_others_wait"
SPINNER = "read_the_clock"
# Rank 3 sleeps after a first all_reduce, which has connected all ranks; the others wait for it in a second one.
WAITING = f"""
import os, struct, sys, time
import torch
import torch.distributed

def {SLEEPER}():
    time.sleep(1000)

torch.distributed.init_process_group("gloo")
tensor = torch.ones(4)
torch.distributed.all_reduce(tensor)
with open(sys.argv[1], "ab", buffering=0) as file:
    file.write(struct.pack("{ENTRY.format}", time.monotonic_ns(), os.getpid()))
if torch.distributed.get_rank() == 3:
    {SLEEPER}()
torch.distributed.all_reduce(tensor)
"""
# Reads the clock without pause and writes down, 100 times a second, now and the longest gap since the last time. Gaps
# of the writing itself are left out.
BUSY = f"""
import gc, os, struct, sys, time

def {SPINNER}(file, clock=time.monotonic_ns):
    while True:
        longest, last = 0, clock()
        end = last + 10_000_000
        while last < end:
            now = clock()
            if now - last > longest:
                longest = now - last
            last = now
        file.write(struct.pack("{ENTRY.format}", last, longest))

os.sched_setaffinity(0, {{int(sys.argv[3])}})
gc.disable()
with open(sys.argv[1], "ab", buffering=0) as file, open(sys.argv[2], "ab", buffering=0) as gaps:
    file.write(struct.pack("{ENTRY.format}", time.monotonic_ns(), os.getpid()))
    {SPINNER}(gaps)
"""


def timed_output(bench, command, wanted, limit=120):
    """Seconds that a command took. Its stdout must hold all of `wanted`."""
    file = os.path.join(bench.scratch, "stacks-output")
    seconds = bench.run(command, limit=limit, output=file)["seconds"]
    with open(file, encoding="utf-8", errors="replace") as output:
        text = output.read()
    for word in wanted:
        if word not in text:
            raise Failure(f"{os.path.basename(command[0])} did not show {word}: {text[-300:].strip() or 'no output'}")
    return seconds


def ask(bench, job, *wanted):
    return timed_output(bench, [bench.ddrun, "stacks", str(job.process.pid)], wanted)


def wait_for_stacks(bench, job, *wanted):
    """Until `ddrun stacks` shows these: a job answers 100 ms after its start at the earliest."""
    last = Failure("ddrun stacks was not asked")

    def shown():
        nonlocal last
        try:
            return ask(bench, job, *wanted) > 0
        except Failure as why:
            last = why
            return False
    try:
        wait_until(shown, 20, "an answer of ddrun stacks")
    except Failure as why:
        raise Failure(f"{why}: {last}") from last


def py_spy(bench):
    beside = os.path.join(os.path.dirname(bench.torchrun), "py-spy")
    return beside if os.path.exists(beside) else bench.need("py-spy", "py-spy")


@needs_torch
def stacks(bench, note, python):
    """Where 8 torch ranks are, of which one sleeps and the others wait for it in a gloo all_reduce: until the command ends.

    py-spy and gdb read one process each: their times are sums. gdb, which reads the symbols of all libraries for each,
    is asked for one rank only.
    """
    command = bench.ddrun_command(WORKERS, script(bench, WAITING), "STAMPS", options=(f"--env=PYTHON_EXEC={python}",))

    def spy(pids, *options):
        words = [py_spy(bench), "dump", *options, "--pid"]
        return sum(timed_output(bench, [*words, str(pid)], ["<module>"]) for pid in pids)

    def gdb(pid):
        words = [bench.need("gdb", "gdb"), "-nx", "-batch", "-ex", "thread apply all bt", "-p", str(pid)]
        return WORKERS * timed_output(bench, words, ["#0 "], limit=300)

    def measure(job):
        wait_for_stacks(bench, job, SLEEPER, "all_reduce")
        pids = [pid for _, pid in job.now]
        few = bench.count(5, 1)
        return in_turn({
            "ddrun": (bench.count(20, 3), lambda: ask(bench, job, SLEEPER, "all_reduce")),
            "py-spy": (few, lambda: spy(pids)),
            "py-spy --native": (few, lambda: spy(pids, "--native")),
            "gdb": (0 if bench.quick else 1, lambda: gdb(pids[0])),
        }, note)

    samples, trouble = StampedJob(bench, command).look(measure)
    if bench.quick:
        trouble["gdb"] = "takes too long for --quick"
    more = {"scale": 1e3, "unit": "ms"}
    return (compare("stacks", "8 ranks", samples, trouble, {"py-spy": (20, 10), "py-spy --native": (None, None)}, **more)
            + compare("stacks", "8 ranks; gdb: one, times 8", samples, trouble, {"gdb": (1000, None)}, **more))


def longest_gap(file, begin, end):
    """Of those that ended between two times, in seconds; waits for the last of them."""
    def entries():
        with open(file, "rb") as gaps:
            data = gaps.read()
        return list(ENTRY.iter_unpack(data[:len(data) // ENTRY.size * ENTRY.size]))

    def is_past_end():
        found = entries()
        return found and found[-1][0] > end
    wait_until(is_past_end, 10, "the busy rank's next reading")
    return max(gap for at, gap in entries() if begin < at <= end) / 1e9


def stacks_pause(bench, note):
    """Longest pause of a busy rank while `ddrun stacks` is asked 100 times, beside the same time without questions.

    The rank reads CLOCK_MONOTONIC in a Python loop, on a processor of its own: agent and questions have another one, so
    that they compete for none. Interrupts and other programs still take it away, with and without questions: compared are
    the medians of several runs, and the ratio is their difference in milliseconds. Not for `chrt -f`, under which the
    kernel holds up a rank that never sleeps.
    """
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        return [Comparison("stacks-pause", "", [], skipped="the rank and the questions need a processor each")]
    gaps = os.path.join(bench.scratch, f"gaps-{time.monotonic_ns()}")
    command = bench.ddrun_command(1, script(bench, BUSY), "STAMPS", gaps, str(processors[-1]), options=(
        f"--env=PYTHON_EXEC={sys.executable}",))

    def measure(job):
        wait_for_stacks(bench, job, SPINNER)
        asked, quiet = [], []
        runs = bench.count(9, 2)
        for run in range(runs):
            begin = time.monotonic_ns()
            for _ in range(QUESTIONS):
                ask(bench, job, SPINNER)
            end = time.monotonic_ns()
            time.sleep((end - begin) / 1e9)
            asked.append(longest_gap(gaps, begin, end))
            quiet.append(longest_gap(gaps, end, 2 * end - begin))
            note(f"{run + 1}/{runs}")
        return asked, quiet

    os.sched_setaffinity(0, processors[:1])
    try:
        asked, quiet = StampedJob(bench, command, workers=1).look(measure)
    finally:
        os.sched_setaffinity(0, processors)
    more = (statistics.median(asked) - statistics.median(quiet)) * 1e3
    return [Comparison("stacks-pause", f"{QUESTIONS} questions; ratio: ms more", asked, "no questions", quiet, 1.0,
                       at_most=True, ratio=more, scale=1e3, unit="ms")]
