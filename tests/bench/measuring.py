"""What every benchmark needs: helper programs, rivals, runs in turn, and how results are summed up."""

import ctypes
import dataclasses
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Skip(Exception):
    """A side that cannot be measured here, and why."""


class Failure(Exception):
    """A command that did not do what it should have: nothing was measured."""


@dataclasses.dataclass
class Comparison:
    """One line of the table. `ratio` is made so that goal and floor are met from one side (`at_most` says which)."""

    benchmark: str
    quantity: str
    ours: list
    rival: str = ""
    theirs: list = dataclasses.field(default_factory=list)
    goal: float | None = None
    floor: float | None = None
    at_most: bool = False  # goal and floor are upper limits of `ratio`
    ratio: float | None = None
    scale: float = 1.0  # from the samples to what is printed
    unit: str = "s"
    skipped: str = ""

    def __post_init__(self):
        if self.ratio is None and self.ours and self.theirs:
            self.ratio = statistics.median(self.theirs) / max(statistics.median(self.ours), 1e-12)

    def verdict(self):
        if self.skipped:
            return "skipped"
        if self.ratio is None or self.goal is None:
            return "-"
        def met(limit):
            return self.ratio <= limit if self.at_most else self.ratio >= limit
        if met(self.goal):
            return "goal met"
        if self.floor is None:
            return "goal missed"
        return "floor met" if met(self.floor) else "MISSED"


def spread(samples):
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "p99": sorted(samples)[max(0, -(-len(samples) * 99 // 100) - 1)],
        "count": len(samples),
    }


class Bench:
    """Where the programs are and how much to measure."""

    def __init__(self, ddrun, helpers, torchrun, repeats, quick):
        # Copies, as an installation makes them: of a file that linker and objcopy have just written the page cache holds
        # single pages, which make a start slower by a sixth.
        self.installed = tempfile.mkdtemp(prefix="installed-", dir=helpers)
        for program in ("ddrun", "ddrun-allreduce"):
            built = os.path.join(os.path.dirname(ddrun), program) if program != "ddrun" else ddrun
            if os.path.exists(built):
                shutil.copy2(built, os.path.join(self.installed, program))
        self.ddrun = os.path.join(os.path.abspath(self.installed), "ddrun")
        self.worker = os.path.join(helpers, "bench_worker")
        self.timed = os.path.join(helpers, "bench_timed")
        self.bare = os.path.join(helpers, "bench_bare")
        self.store_load = os.path.join(helpers, "bench_store_load")
        self.agents_load = os.path.join(helpers, "bench_agents_load")
        self.helpers = os.path.abspath(helpers)
        self.roofline = os.path.join(self.helpers, "bench_roofline")
        self.allreduce = os.path.join(os.path.dirname(self.ddrun), "ddrun-allreduce")
        self.torchrun = torchrun
        self.repeats = repeats
        self.quick = quick
        self.scratch = tempfile.mkdtemp(prefix="ddrun-bench-")
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("DDRUN_", "PET_", "TORCHELASTIC_", "PMI_", "HYDRA_", "OMPI_"))
            or name in ("DDRUN_NO_CGROUP", "DDRUN_NO_PIDFD", "DDRUN_NCCL_LIBRARY", "DDRUN_CUDA_LIBRARY")
        }
        # torchrun warns about it otherwise; Open MPI refuses to be run by root.
        self.environment.update(OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        become_subreaper()

    def close(self):
        kill_children()
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.installed, ignore_errors=True)

    def count(self, usual, quick):
        """Repeats: what the user asked for, else the benchmark's own number."""
        if self.repeats:
            return self.repeats
        return quick if self.quick else usual

    def run(self, command, lines=0, limit=60.0, environment=None, output=None):
        """Runs a command under bench_timed; gives back its result. `output` is the file for its stdout."""
        timed = [self.timed, "--limit", str(limit)]
        if lines:
            timed += ["--lines", str(lines)]
        if output:
            timed += ["--output", output]
        with open(os.path.join(self.scratch, "stderr"), "w+b") as errors:
            done = subprocess.run(timed + command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL,
                                  env=environment or self.environment, cwd=self.scratch, timeout=limit + 120)
            errors.seek(0)
            tail = errors.read()[-600:].decode(errors="replace").strip()
        if done.returncode != 0:
            raise Failure(f"{command[0]}: {tail}")
        result = json.loads(done.stdout)
        if result["timed_out"]:
            raise Failure(f"{os.path.basename(command[0])} had not finished after {limit:g} s")
        if lines and result["lines"] < lines:
            raise Failure(f"{os.path.basename(command[0])} ended after {result['lines']} of {lines} lines: {tail}")
        if not lines and (result["code"] != 0):
            raise Failure(f"{' '.join(command)} ended with code {result['code']}, signal {result['signal']}: {tail}")
        return result

    # -- how each launcher is asked for the same thing

    def need(self, program, package):
        found = shutil.which(program)
        if not found:
            raise Skip(f"{program} is not installed (scripts/setup --rivals installs {package})")
        return found

    def ddrun_command(self, count, *worker, options=()):
        return [self.ddrun, f"--nproc-per-node={count}", *options, *worker]

    def bare_command(self, count, *worker, options=()):
        """vfork, exec and wait, and nothing else: what the kernel needs."""
        return [self.bare, str(count), *worker]

    def hydra_command(self, count, *worker, options=()):
        return [self.need("mpiexec.hydra", "mpich"), *options, "-n", str(count), *worker]

    def openmpi_command(self, count, *worker, options=()):
        return [self.need("mpirun.openmpi", "openmpi-bin"), "--oversubscribe", *options, "-np", str(count), *worker]

    def torchrun_command(self, count, *worker, options=()):
        if not self.torchrun:
            raise Skip("torchrun is not installed (scripts/setup --rivals)")
        return [self.torchrun, "--standalone", f"--nproc-per-node={count}", *options, "--no-python", *worker]

    def parallel_command(self, count, *worker, options=()):
        program = self.need("parallel", "parallel")
        return [program, "--will-cite", f"-j{count}", "-N0", *options, *worker, ":::", *map(str, range(count))]

    def shell_command(self, count, *worker):
        loop = f"i=0; while [ $i -lt {count} ]; do \"$@\" & i=$((i+1)); done; wait"
        return [self.need("dash", "dash"), "-c", loop, "shell", *worker]


def in_turn(sides, note=None, settle=0.05):
    """Runs sides A B C A B C…; `sides` is {name: (repeats, function)}. One with fewer repeats drops out earlier.

    Between two runs there are `settle` seconds: the kernel goes on freeing what many processes had.

    Gives back {name: [what the function returned]} and {name: why it was skipped or failed}.
    """
    samples, trouble = {name: [] for name in sides}, {}
    rounds = max(repeats for repeats, _ in sides.values())
    for i in range(rounds):
        for name, (repeats, function) in sides.items():
            if i >= repeats or name in trouble:
                continue
            time.sleep(settle)
            try:
                samples[name].append(function())
            except (Skip, Failure, subprocess.TimeoutExpired) as error:
                if name.startswith("ddrun"):
                    raise
                trouble[name] = str(error)
        if note:
            note(f"{i + 1}/{rounds}")
    return samples, trouble


def compare(benchmark, quantity, samples, trouble, limits, **more):
    """A Comparison of "ddrun" with each rival; `limits` is {rival: (goal, floor)}."""
    rows = []
    for rival, (goal, floor) in limits.items():
        theirs = samples.get(rival, [])
        rows.append(Comparison(benchmark, quantity, samples["ddrun"], rival, theirs, goal, floor,
                               skipped="" if theirs else trouble.get(rival, "not measured"), **more))
    return rows


def rates(benchmark, quantity, ours, rival="", theirs=(), goal=None, floor=None, **more):
    """A Comparison of bytes per second, of which more is better."""
    row = Comparison(benchmark, quantity, list(ours), rival, list(theirs), goal, floor, scale=1e-9, unit="GB/s", **more)
    if row.ratio is not None:
        row.ratio = 1 / row.ratio
    return row


# -- processes

def become_subreaper():
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stat_fields(pid):
    """Fields of /proc/PID/stat after the name; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def descendants(root):
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, frontier = [], [root]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return found


def kill_children(limit=10.0):
    """Ends whatever is left below this process."""
    give_up = time.monotonic() + limit
    while time.monotonic() < give_up:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            return
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)


def stop(process, limit=20.0):
    """SIGTERM, then SIGKILL and whatever is left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    kill_children()


def wait_until(condition, limit, what):
    give_up = time.monotonic() + limit
    while not condition():
        if time.monotonic() > give_up:
            raise Failure(f"{what} has not happened within {limit:g} s")
        time.sleep(0.001)


def raise_descriptor_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


# -- results

def number(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def range_text(samples, scale, unit):
    if not samples:
        return "-"
    s = spread(samples)
    low, middle, high = (number(s[key] * scale) for key in ("min", "median", "max"))
    return f"{middle} {unit}" + (f" ({low}-{high})" if len(samples) > 1 else "")


def print_table(rows, out=sys.stdout):
    titles = ["benchmark", "ours: median (min-max)", "against", "theirs", "ratio", "goal", "floor", "verdict"]
    cells = [titles]
    for row in rows:
        sign = "<= " if row.at_most else ">= "
        cells.append([
            f"{row.benchmark}: {row.quantity}" if row.quantity else row.benchmark,
            range_text(row.ours, row.scale, row.unit),
            row.rival or "-",
            row.skipped or range_text(row.theirs, row.scale, row.unit),
            number(row.ratio) if row.ratio is not None else "-",
            sign + number(row.goal) if row.goal is not None else "-",
            sign + number(row.floor) if row.floor is not None else "-",
            row.verdict(),
        ])
    widths = [min(60, max(len(line[i]) for line in cells)) for i in range(len(titles))]
    for line in cells:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip(), file=out)


def as_json(row):
    result = dataclasses.asdict(row)
    result["verdict"] = row.verdict()
    for side in ("ours", "theirs"):
        if result[side]:
            result[side + "_spread"] = spread(result[side])
    return result
