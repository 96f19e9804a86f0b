"""Ranks of ddrun-allreduce, MPI, Gloo and torch that make the same calls: how they are started, and what they report.

All of them take the options -b -e -f -n -w -J (and --collective) of ddrun-allreduce and write the same report. Each rank is held
on a processor: the first rank on the first one and so on, by turns, so that no launcher's own ideas make a difference.
"""

import dataclasses
import json
import os
import subprocess

from measuring import HERE, Failure, Skip

SHARED, PRIVATE = "--buffers=shared", "--buffers=private"
PLACEMENTS = ("out_of_place", "in_place")
WARMUP = 3
# Rank by ddrun and torchrun, Open MPI, MPICH.
RANK = "${RANK:-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}}"
HOLD = 'exec taskset -c "$(echo {cpus} | cut -d, -f$(({rank} % {count} + 1)))" "$@"'
# Gloo and torch need 0.1 to 2 ms for the smallest call, so that fewer last as long as the others' many.
SLOW_TIMES = 1000
ROOFLINE_BYTES, ROOFLINE_TURNS = 128 << 20, 5
OPENMPI_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes from `first` to `last`, each `factor` times the one before, with so many timed calls of each."""
    first: int
    last: int
    factor: int
    times: int

    def at_most(self, times):
        return dataclasses.replace(self, times=min(self.times, times))

    def options(self):
        return ["-b", str(self.first), "-e", str(self.last), "-f", str(self.factor), "-n", str(self.times),
                "-w", str(WARMUP)]


def merged(call, spans):
    """What `call` finds for each of the spans of sizes, in one dictionary."""
    found = {}
    for sizes in spans:
        found.update(call(sizes))
    return found


def processors():
    """The two that are measured on; one where there is only one."""
    return sorted(os.sched_getaffinity(0))[:2]


def real_time():
    """Whether this benchmark was started with chrt -f or -r."""
    return os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def below():
    """The prefix of a command that runs it below this process's real-time priority, so that ranks that hang can be
    killed."""
    priority = os.sched_getparam(0).sched_priority
    return ["chrt", "-f", str(priority - 1)] if real_time() and priority > 1 else []


def held(cpus, rank=RANK):
    """The beginning of a command that runs the rest of it on the rank's processor."""
    return [*below(), "sh", "-c", HOLD.format(rank=rank, count=len(cpus), cpus=",".join(map(str, cpus))), "held"]


def seconds_of(report):
    """{(size, placement): seconds of a call} of a report. A wrong element is a Failure, what a library lacks is left out."""
    if report.get("error") or not report.get("ok"):
        raise Failure(f"the report says: {report.get('error') or 'not ok'}")
    found = {}
    for row in report["results"]:
        for placement in PLACEMENTS:
            one = row.get(placement) or {}
            if not one.get("time_us"):
                continue
            if one.get("wrong") != 0:
                raise Failure(f"{row['size']} bytes {placement}: {one.get('wrong')} elements are wrong or unchecked")
            found[row["size"], placement] = one["time_us"] / 1e6
    return found


class Caller:
    """Runs ranks of one of the rivals. Each method gives back what seconds_of() does."""

    def __init__(self, bench, ranks, limit=60.0):
        self.bench, self.ranks, self.limit = bench, ranks, limit
        self.cpus = processors()
        self.report = os.path.join(bench.scratch, "calls.json")

    def sides(self, names, rounds, spans, collective="all_reduce"):
        """For in_turn(): those of these names, with ddrun's buffers shared and private, and others with private ones."""
        calls = {
            "ddrun shared": (self.ddrun, SHARED), "ddrun private": (self.ddrun, PRIVATE),
            "ddrun tcp": (self.ddrun, "--backend=tcp"),
            "openmpi": (self.openmpi,), "openmpi tcp": (self.openmpi, *OPENMPI_TCP), "mpich": (self.mpich,),
            "gloo": (self.gloo, PRIVATE), "torch": (self.torch,),
        }
        def side(call, *options):
            return rounds, lambda: merged(lambda sizes: call(sizes, *options, collective=collective), spans)
        return {name: side(*calls[name]) for name in names}

    def ddrun(self, sizes, *options, collective="all_reduce"):
        return self._by_ddrun([self.bench.allreduce, *options], sizes, collective)

    def gloo(self, sizes, *options, collective="all_reduce"):
        """Debian's library, by a ddrun-allreduce that has it."""
        worker = os.path.join(self.bench.helpers, "bench_gloo")
        if not os.path.exists(worker):
            raise Skip("libgloo-dev is not installed (scripts/setup --rivals installs it)")
        return self._by_ddrun([worker, "--backend=gloo", *options], sizes.at_most(SLOW_TIMES), collective)

    def openmpi(self, sizes, *options, collective="all_reduce"):
        if self.ranks > len(self.cpus):
            options += ("--mca", "mpi_yield_when_idle", "1")
        command = self.bench.openmpi_command(self.ranks, *held(self.cpus), self._mpi_worker("openmpi"),
                                             options=("--bind-to", "none", *options))
        return self._run(command, sizes, collective)

    def mpich(self, sizes, *options, collective="all_reduce"):
        if real_time():
            raise Skip("its ranks never give a processor away, and its launcher may keep one for good, under chrt")
        command = self.bench.hydra_command(self.ranks, *held(self.cpus), self._mpi_worker("mpich"), options=options)
        return self._run(command, sizes, collective)

    def torch(self, sizes, collective="all_reduce"):
        """all_reduce in place, which is what torch has."""
        if collective != "all_reduce":
            raise Skip(f"tests/bench/torch_collective.py has no {collective}")
        if not self.bench.torchrun:
            raise Skip("torch is not installed (scripts/setup --rivals)")
        python = os.path.join(os.path.dirname(self.bench.torchrun), "python")
        return self._by_ddrun([python, os.path.join(HERE, "torch_collective.py")], sizes.at_most(SLOW_TIMES))

    def roofline(self):
        """Bytes per second that memory gives and takes: copy_one, copy_all, triad_one, triad_all."""
        done = subprocess.run([self.bench.roofline, str(ROOFLINE_BYTES), str(ROOFLINE_TURNS), *map(str, self.cpus)],
                              capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise Failure(f"roofline: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def _by_ddrun(self, worker, sizes, collective="all_reduce"):
        command = self.bench.ddrun_command(self.ranks, *held(self.cpus), *worker, options=("--no-python",))
        return self._run(command, sizes, collective)

    def _mpi_worker(self, name):
        worker = os.path.join(self.bench.helpers, f"bench_mpi_{name}")
        if not os.path.exists(worker):
            raise Skip(f"mpicc.{name} is not installed (scripts/setup --rivals installs lib{name}-dev)")
        return worker

    def _run(self, command, sizes, collective=None):
        words = [*command, *sizes.options(), "-J", self.report]
        if collective is not None and collective != "all_reduce":
            words += ["--collective", collective]
        if os.path.exists(self.report):
            os.unlink(self.report)
        self.bench.run(words, limit=self.limit)
        with open(self.report, encoding="utf-8") as file:
            return seconds_of(json.load(file))
