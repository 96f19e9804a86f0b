"""How fast workers start: launch-noop-8, launch-1000, launch-10k-flat, create-reap-5000; mpi-start."""

import multiprocessing
import os
import shutil
import statistics
import subprocess
import time

from measuring import Comparison, Failure, Skip, compare, in_turn, raise_descriptor_limit


def launch_noop_8(bench, note):
    """The whole command, from its start to its end, with 8 workers that end at once, with one, and --version."""
    worker = bench.worker
    def side(command, count=8):
        return lambda: bench.run(command(count, worker))["seconds"]
    many, few = bench.count(41, 7), bench.count(7, 2)
    single, trouble = in_turn({
        "ddrun": (many, side(bench.ddrun_command, 1)),
        "bare vfork and exec": (many, side(bench.bare_command, 1)),
        "ddrun --version": (many, lambda: bench.run([bench.ddrun, "--version"])["seconds"]),
    }, note)
    rows = compare("launch-noop-8", "1 worker", single, trouble, {"bare vfork and exec": (None, None),
                                                                  "ddrun --version": (None, None)}, scale=1e3, unit="ms")
    parts = [*bench.ddrun_command(2, worker), ":", "-n4", worker]
    parted, trouble = in_turn({
        "ddrun": (many, lambda: bench.run(parts)["seconds"]),
        "ddrun, one program": (many, side(bench.ddrun_command, 6)),
    }, note)
    rows += compare("launch-noop-8", "2 + 4 workers of two programs", parted, trouble,
                    {"ddrun, one program": (1 / 1.1, 1 / 1.2)}, scale=1e3, unit="ms")
    samples, trouble = in_turn({
        "ddrun": (many, side(bench.ddrun_command)),
        "hydra": (many, side(bench.hydra_command)),
        "shell loop": (many, side(bench.shell_command)),
        "bare vfork and exec": (many, side(bench.bare_command)),
        "parallel": (few, side(bench.parallel_command)),
        "openmpi": (few, side(bench.openmpi_command)),
        "torchrun": (few, side(bench.torchrun_command)),
    }, note)
    rows += compare("launch-noop-8", "", samples, trouble, {
        "hydra": (8, 3), "torchrun": (500, 100), "openmpi": (None, None), "parallel": (None, None),
        "shell loop": (None, None), "bare vfork and exec": (1 / 1.8, 1 / 2.0),
    }, scale=1e3, unit="ms")
    return rows


def first_bytes(bench, count, command, lines_per_worker=2):
    return bench.run(command, lines=count * lines_per_worker, limit=120)["seconds"]


def launch_1000(bench, note):
    """1,000 workers alive at once, stdout and stderr captured: until the last one's lines have come through."""
    count = 1000
    def side(command, *options):
        return lambda: first_bytes(bench, count, command(count, bench.worker, "line", options=options))
    many, few = bench.count(9, 3), bench.count(3, 1)
    samples, trouble = in_turn({
        "ddrun": (many, side(bench.ddrun_command)),
        "hydra": (many, side(bench.hydra_command)),
        "torchrun": (few, side(bench.torchrun_command, "--tee", "3")),
        # Its workers write into the one pipe of the benchmark: nothing is captured.
        "bare vfork and exec": (many, side(bench.bare_command)),
    }, note, settle=0.3)
    rows = compare("launch-1000", "", samples, trouble, {
        "hydra": (15, 8), "torchrun": (25, 10), "bare vfork and exec": (None, None)}, scale=1e3, unit="ms")
    # A launcher that starts 1,000 workers fast may take long to see them off.
    def whole(command):
        return lambda: bench.run(command(count, bench.worker))["seconds"]
    samples, trouble = in_turn({
        "ddrun": (many, whole(bench.ddrun_command)),
        "hydra": (many, whole(bench.hydra_command)),
        "bare vfork and exec": (many, whole(bench.bare_command)),
    }, note, settle=0.3)
    return rows + compare("launch-1000", "whole command, no-op", samples, trouble, {
        "hydra": (None, None), "bare vfork and exec": (None, None)}, scale=1e3, unit="ms")


def launch_10k_flat(bench, note):
    """Time for each worker with very many of them, over the same with 1,000."""
    small = 1000
    # Two pipes for each worker, and some descriptors for ddrun itself.
    large = min(10000, (raise_descriptor_limit() - 200) // 2)
    def side(count):
        command = bench.ddrun_command(count, bench.worker, "line")
        return lambda: first_bytes(bench, count, command) / count
    repeats = bench.count(7, 2)
    samples, trouble = in_turn({"ddrun": (repeats, side(large)), "small": (repeats, side(small))}, note, settle=1)
    ratio = statistics.median(samples["ddrun"]) / statistics.median(samples["small"])
    return [Comparison("launch-10k-flat", f"per worker, {large} workers", samples["ddrun"], f"ddrun, {small} workers",
                       samples["small"], 1.3, 2, at_most=True, ratio=ratio, scale=1e6, unit="us")]


def mpi_start(bench, note):
    """The whole command: 4 ranks of MPICH and of Open MPI that begin, sum and end, and 128 that only speak PMI-1. A
    session for each rank on both sides, so that the scheduler groups them alike."""
    mpich, openmpi, fake = (os.path.join(bench.helpers, name) for name in ("bench_hello_mpich", "bench_hello_openmpi", "bench_pmi_rank"))
    cases = [(4, mpich, "size 4 sum 4", "hydra", bench.hydra_command, 1, 0.95),
             (128, fake, "size 128", "hydra", bench.hydra_command, 2, 1.5),
             (4, openmpi, "size 4 sum 4", "mpirun", bench.openmpi_command, 1, 0.95)]
    def whole(command, count, said):
        def once():
            output = os.path.join(bench.scratch, "mpi-start.out")
            seconds = bench.run(command, output=output)["seconds"]
            with open(output, encoding="ascii") as lines:
                found = lines.read().splitlines().count(said)
            if found != count:
                raise Failure(f"{found} of {count} ranks have said {said!r}")
            return seconds
        return once
    rows = []
    for count, program, said, rival, command, goal, floor in cases:
        if not os.path.exists(program) or not shutil.which({"hydra": "mpiexec.hydra", "mpirun": "mpirun.openmpi"}[rival]):
            continue
        mpi = "--mpi=pmi" if rival == "hydra" else "--mpi=pmix"
        samples, trouble = in_turn({
            "ddrun": (bench.count(21, 2), whole(bench.ddrun_command(count, program, options=[mpi, "--label=none"]), count, said)),
            rival: (bench.count(21, 2), whole(command(count, "setsid", program), count, said)),
        }, note)
        rows += compare("mpi-start", f"{count} ranks", samples, trouble, {rival: (goal, floor)}, scale=1e3, unit="ms")
    if not rows:
        raise Skip("neither libmpich-dev nor libopenmpi-dev is installed (scripts/setup --rivals)")
    return rows


def python_fork(count):
    """os.fork, nothing executed: the least that Python can do."""
    start = time.monotonic()
    for _ in range(count):
        if os.fork() == 0:
            os._exit(0)
    for _ in range(count):
        os.wait()
    return time.monotonic() - start


def nothing():
    pass


def python_multiprocessing(count):
    context = multiprocessing.get_context("fork")
    start = time.monotonic()
    processes = [context.Process(target=nothing) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return time.monotonic() - start


def python_subprocess(count, worker):
    start = time.monotonic()
    processes = [subprocess.Popen([worker]) for _ in range(count)]
    for process in processes:
        process.wait()
    return time.monotonic() - start


def create_reap_5000(bench, note):
    """5,000 processes that end at once: until the last one has been reaped and the command has ended."""
    count = 5000
    many, few = bench.count(9, 3), bench.count(3, 1)
    samples, trouble = in_turn({
        "ddrun": (many, lambda: bench.run(bench.ddrun_command(count, bench.worker))["seconds"]),
        "Python multiprocessing (fork)": (few, lambda: python_multiprocessing(count)),
        "Python subprocess": (few, lambda: python_subprocess(count, bench.worker)),
        "Python os.fork, no exec": (few, lambda: python_fork(count)),
    }, note)
    return [Comparison("create-reap-5000", "time", samples["ddrun"], goal=0.5, at_most=True,
                       ratio=statistics.median(samples["ddrun"]))] + compare(
        "create-reap-5000", "", samples, trouble,
        {"Python multiprocessing (fork)": (15, None), "Python subprocess": (None, None),
         "Python os.fork, no exec": (None, None)})
