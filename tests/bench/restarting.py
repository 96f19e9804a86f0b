"""What a running job costs and how fast it comes back: restart-local, log-mux, fold, terminals, footprint."""

import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import time

from measuring import (Comparison, Failure, compare, descendants, in_turn, number, spread, stat_fields, stop,
                       wait_until)

WORKERS = 8
ENTRY = struct.Struct("=qq")


class StampedJob:
    """A job of workers that write down when they began, and are killed one at a time."""

    def __init__(self, bench, command, workers=WORKERS):
        self.workers = workers
        self.file = os.path.join(bench.scratch, f"stamps-{time.monotonic_ns()}")
        open(self.file, "wb").close()
        command = [self.file if word == "STAMPS" else word for word in command]
        self.errors = open(self.file + ".stderr", "w+b")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=self.errors, env=bench.environment, cwd=bench.scratch)
        self.generation = 0

    def entries(self):
        self.generation += 1
        wanted = self.generation * self.workers * ENTRY.size
        def there():
            if self.process.poll() is not None:
                self.errors.seek(0)
                raise Failure("the launcher ended: " + self.errors.read()[-600:].decode(errors="replace"))
            return os.path.getsize(self.file) >= wanted
        wait_until(there, 60, "the start of all workers")
        with open(self.file, "rb") as file:
            file.seek(wanted - self.workers * ENTRY.size)
            return list(ENTRY.iter_unpack(file.read()))

    def restart(self):
        """Seconds from a SIGKILL to the first instruction of the last new worker."""
        victim = random.choice(self.now)[1]
        killed_at = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        self.now = self.entries()
        if len(self.now) != self.workers or min(self.now)[0] < killed_at:
            raise Failure("other workers were started than was expected")
        return (max(self.now)[0] - killed_at) / 1e9

    def measure(self, count, pause):
        def restart_often(_):
            seconds = []
            for _ in range(count):
                # At random times: torchrun looks ten times a second.
                time.sleep(random.uniform(*pause))
                seconds.append(self.restart())
            return seconds
        return self.look(restart_often)

    def look(self, function):
        """What a function of this job returns once all workers run; then the job is stopped."""
        try:
            self.now = self.entries()
            return function(self)
        finally:
            stop(self.process)
            self.errors.close()
            os.unlink(self.errors.name)
            os.unlink(self.file)


def restart_local(bench, note):
    """8 workers, one of them killed with SIGKILL, until the last new one's first instruction."""
    chunks = bench.count(8, 2)
    def side(command, count, pause):
        words = command(WORKERS, bench.worker, "stamp", "STAMPS", options=(f"--max-restarts={count + 1}",))
        return lambda: StampedJob(bench, words).measure(count, pause)
    samples, trouble = in_turn({
        "ddrun": (chunks, lambda: side(bench.ddrun_command, 50, (0.01, 0.03))()),
        "torchrun": (chunks, lambda: side(bench.torchrun_command, 5, (0.1, 0.4))()),
    }, note)
    flat = {name: [second for chunk in chunks for second in chunk] for name, chunks in samples.items()}
    rows = compare("restart-local", "", flat, trouble, {"torchrun": (30, 10)}, scale=1e3, unit="ms")
    p99 = spread(flat["ddrun"])["p99"] * 1e3
    rows.append(Comparison("restart-local", f"p99 of {len(flat['ddrun'])} is {number(p99)} ms", flat["ddrun"],
                           goal=5, at_most=True, ratio=p99, scale=1e3, unit="ms"))
    return rows


def log_mux(bench, note):
    """8 workers write 50 MB each in lines of 100 bytes; every line gets its rank; to /dev/null, a pipe, a pipe and files."""
    size = 10_000_000 if bench.quick else 50_000_000
    many, few = bench.count(9, 3), bench.count(3, 1)
    logs = os.path.join(bench.scratch, "logs")
    tee = "--tee=3", f"--log-dir={logs}"

    def measured(quantity, to, sides, limits):
        def side(command, options):
            def run():
                try:
                    words = command(WORKERS, bench.worker, "lines", str(size), options=options)
                    return bench.run([*to, *words], limit=300)["seconds"]
                finally:
                    shutil.rmtree(logs, ignore_errors=True)
            return run
        samples, trouble = in_turn({name: (few if name in ("torchrun", "openmpi", "parallel") else many, side(*how))
                                    for name, how in sides.items()}, note)
        rate = WORKERS * size / statistics.median(samples["ddrun"]) / 1e9
        return compare("log-mux", f"{quantity}, {number(rate)} GB/s", samples, trouble, limits)

    hydra = bench.hydra_command, ("-prepend-rank",)
    piped = ["bash", "-o", "pipefail", "-c", '"$@" | cat', "bash"]
    return measured("to /dev/null", [], {
        "ddrun": (bench.ddrun_command, ()),
        "hydra": hydra,
        "parallel": (bench.parallel_command, ("--tag", "--line-buffer")),
        "openmpi": (bench.openmpi_command, ("--tag-output",)),
        "torchrun": (bench.torchrun_command, tee),
    }, {"torchrun": (80, 20), "hydra": (8, 4), "openmpi": (15, 6), "parallel": (None, None)}) + measured(
        "| cat", piped, {"ddrun": (bench.ddrun_command, ()), "hydra": hydra}, {"hydra": (12, 8)}) + measured(
        "--tee | cat", piped, {"ddrun": (bench.ddrun_command, tee), "torchrun": (bench.torchrun_command, tee)},
        {"torchrun": (30, 20)})


def fold(bench, note, size=None):
    """Lines of 8 workers to /dev/null with --fold=always, beside the same with --fold=never: all equal, and all different."""
    size = size or (2_000_000 if bench.quick else 20_000_000)
    repeats, rows = bench.count(9, 3), []
    for quantity, words in (("equal lines", []), ("different lines", ["different"])):
        def side(option):
            command = bench.ddrun_command(WORKERS, bench.worker, "lines", str(size), *words, options=[option, "--label=rank"])
            return lambda: bench.run(command, limit=120)["seconds"]
        samples, trouble = in_turn({
            "ddrun": (repeats, side("--fold=always")),
            "ddrun --fold=never": (repeats, side("--fold=never")),
        }, note)
        rate = WORKERS * size / statistics.median(samples["ddrun"]) / 1e9
        rows += compare("fold", f"{quantity}, {number(rate)} GB/s", samples, trouble, {"ddrun --fold=never": (0.8, 0.8)})
    return rows


def terminals(bench, note):
    """What pseudo-terminals cost beside pipes: the start of 64 workers, and 8 workers that write lines to /dev/null."""
    size = 2_000_000 if bench.quick else 10_000_000
    rows = []
    for quantity, count, words in (("start and end of 64 workers", 64, [bench.worker]),
                                   ("lines of 8 workers", WORKERS, [bench.worker, "lines", str(size)])):
        def side(option):
            return lambda: bench.run(bench.ddrun_command(count, *words, options=[option]), limit=120)["seconds"]
        samples, trouble = in_turn({
            "ddrun": (bench.count(15, 3), side("--pty=always")),
            "ddrun with pipes": (bench.count(15, 3), side("--pty=never")),
        }, note)
        rows += compare("terminals", quantity, samples, trouble, {"ddrun with pipes": (None, None)}, scale=1e3, unit="ms")
    return rows


def process_name(pid):
    """Of the kernel, 15 characters; None if it is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="latin-1") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None


class Idle:
    """What the launcher's own processes use while its workers sleep."""

    def __init__(self, bench, command, seconds):
        output = os.path.join(bench.scratch, "idle-output")
        self.worker = os.path.basename(bench.worker)[:15]
        with open(output, "wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                       env=bench.environment, cwd=bench.scratch)
        try:
            def started():
                if process.poll() is not None:
                    raise Failure(f"{command[0]} ended")
                return sum(self.is_worker(pid) for pid in descendants(process.pid)) == WORKERS
            wait_until(started, 60, "the start of 8 workers")
            time.sleep(2)
            own = [process.pid] + [pid for pid in descendants(process.pid) if not self.is_worker(pid)]
            before = [self.usage(pid) for pid in own]
            time.sleep(seconds)
            after = [self.usage(pid) for pid in own]
            self.wakeups = sum(b["switches"] - a["switches"] for a, b in zip(before, after))
            self.ticks = sum(b["ticks"] - a["ticks"] for a, b in zip(before, after))
            self.rss = sum(usage["rss"] for usage in after)
            self.pss = sum(usage["pss"] for usage in after)
            self.processes = len(own)
        finally:
            stop(process)

    def is_worker(self, pid):
        return process_name(pid) == self.worker

    @staticmethod
    def usage(pid):
        switches = 0
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status", encoding="latin-1") as file:
                switches += sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
        fields = stat_fields(pid)
        memory = {}
        with open(f"/proc/{pid}/smaps_rollup", encoding="latin-1") as file:
            for line in file:
                if line.startswith(("Rss:", "Pss:", "Pss_File:")):
                    memory[line.partition(":")[0].lower()] = int(line.split()[1]) * 1024
        return {"switches": switches, "ticks": int(fields[11]) + int(fields[12]), **memory}


def resident_after_restarts(bench, note):
    """Of ddrun's own processes, a second after the tenth restart and 10 MB of output of the last attempt."""
    restarts, size = 10, 10_000_000 // WORKERS // 100 * 100
    words = bench.ddrun_command(WORKERS, bench.worker, "lines", str(size), "stamp", "STAMPS",
                                options=(f"--max-restarts={restarts}",))
    name = os.path.basename(bench.worker)[:15]

    def look(job):
        for _ in range(restarts):
            job.restart()
        time.sleep(1)
        own = [job.process.pid, *descendants(job.process.pid)]
        return sum(Idle.usage(pid)["rss"] for pid in own if process_name(pid) != name)
    samples, _ = in_turn({"ddrun": (bench.count(5, 1), lambda: StampedJob(bench, words).look(look))}, note)
    return Comparison("footprint", f"resident after {restarts} restarts and 10 MB of output", samples["ddrun"], goal=2.5,
                      floor=3.5, at_most=True, scale=1e-6, ratio=statistics.median(samples["ddrun"]) / 1e6, unit="MB")


def footprint(bench, note):
    """Memory, wake-ups and processor time of the launcher's own processes, with 8 workers asleep."""
    seconds = 2 if bench.quick else 10
    def side(command):
        return lambda: Idle(bench, command(WORKERS, bench.worker, "line"), seconds)
    repeats = bench.count(2, 1)
    samples, trouble = in_turn({
        "ddrun": (repeats, side(bench.ddrun_command)),
        "hydra": (repeats, side(bench.hydra_command)),
        "torchrun": (repeats, side(bench.torchrun_command)),
    }, note)
    def of(what):
        return {name: [getattr(idle, what) for idle in idles] for name, idles in samples.items()}
    rss, wakeups, ticks = of("rss"), of("wakeups"), of("ticks")
    own = samples["ddrun"][0].processes
    rows = [
        Comparison("footprint", f"resident, {own} processes", rss["ddrun"], goal=2.5, floor=3.5, at_most=True,
                   scale=1e-6, ratio=statistics.median(rss["ddrun"]) / 1e6, unit="MB"),
        resident_after_restarts(bench, note),
        Comparison("footprint", f"wake-ups in {seconds} s", wakeups["ddrun"], goal=0, at_most=True,
                   ratio=max(wakeups["ddrun"]), unit=""),
        Comparison("footprint", "processor ticks", ticks["ddrun"], goal=0, floor=1, at_most=True,
                   ratio=max(ticks["ddrun"]), unit=""),
    ]
    rows += compare("footprint", "proportional set", of("pss"), trouble, {"hydra": (None, None)}, scale=1e-6, unit="MB")
    rows += compare("footprint", "resident", rss, trouble, {"hydra": (None, None), "torchrun": (100, None)},
                    scale=1e-6, unit="MB")
    rows += [Comparison("footprint", "wake-ups", wakeups["ddrun"], rival, wakeups[rival], unit="", ratio=None
                        if not wakeups[rival] else statistics.median(wakeups[rival]),
                        skipped="" if wakeups[rival] else trouble.get(rival, "not measured"))
             for rival in ("hydra", "torchrun")]
    return rows
