"""The store beside torch's and redis: store-get, store-pipelined, store-storm, store-barrier, store-memory."""

import json
import os
import socket
import statistics
import subprocess
import time

from measuring import Comparison, Failure, Skip, in_turn, wait_until

HELLO, ECHO = b"\x00\xce\xf7\x85\x3c\x0dping", b"ping"
TORCH_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, use_libuv=True, wait_for_workers=False)
sys.stdin.read()
"""
# A client of torch's, and its server has one of its own, asks for the name of this address when it connects.
MAPPED = "::ffff:127.0.0.1 localhost\n"
DEAD_NAME_SERVER = "127.153.153.153"


# -- servers

def cpus():
    """The generator's and the server's."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        raise Failure("the server and its load need a processor each; there is one")
    return available[0], available[-1]


def with_files(bench, files):
    """The start of a command that sees `files` ({path: content}) in place of the system's."""
    words, script = [], ""
    for i, (path, content) in enumerate(files.items()):
        own = os.path.join(bench.scratch, f"{os.path.basename(path)}-{time.monotonic_ns()}")
        with open(own, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(own, 0o644)
        words.append(own)
        script += f'mount --bind "${i + 1}" {path} && '
    options = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    start = ["unshare", *options, "sh", "-c", f'{script}shift {len(words)} && exec "$@"', "sh", *words]
    tried = subprocess.run([*start, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    if tried.returncode != 0:
        raise Skip(f"no mount namespace of our own ({tried.stderr.strip()[-100:]})")
    return start


def system_file(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def with_local_names(bench):
    """Has torch find that name in the hosts file, so that no name server decides."""
    hosts = system_file("/etc/hosts")
    if any(line.split()[:1] == ["::ffff:127.0.0.1"] for line in hosts.splitlines()):
        return []
    return with_files(bench, {"/etc/hosts": f"{hosts.rstrip()}\n{MAPPED}"})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A store in a process of its own, on a processor of its own."""

    def __init__(self, bench, name, start=()):
        self.name = name
        self.resp = name == "redis"
        self.port = free_port()
        self.errors = open(os.path.join(bench.scratch, f"store-{self.port}"), "w+b")
        self.process = subprocess.Popen([*start, *self.command(bench)], stdin=subprocess.PIPE, stdout=self.errors,
                                        stderr=self.errors, env=bench.environment, cwd=bench.scratch)
        try:
            wait_until(self.answers, 60, f"the start of {name}'s store")
            # Only now: a server that may use one processor alone would not look for work before it sleeps.
            for task in os.listdir(f"/proc/{self.process.pid}/task"):
                os.sched_setaffinity(int(task), {cpus()[1]})
        except BaseException:
            self.stop()
            raise

    def command(self, bench):
        if self.name == "ddrun":
            return [bench.ddrun, "store", f"--port={self.port}", "--bind=127.0.0.1"]
        if self.name == "redis":
            return [bench.need("redis-server", "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1",
                    "--tcp-backlog", "4096", "--save", "", "--appendonly", "no"]
        return [torch_python(bench), "-c", TORCH_SERVER, str(self.port)]

    def answers(self):
        if self.process.poll() is not None:
            self.errors.seek(0)
            raise Failure(f"{self.name}'s store ended: {self.errors.read()[-600:].decode(errors='replace')}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=30) as probe:
                probe.sendall(b"*1\r\n$4\r\nPING\r\n" if self.resp else HELLO)
                return probe.recv(4) == (b"+PON" if self.resp else ECHO)
        except OSError:
            return False

    def private_bytes(self):
        with open(f"/proc/{self.process.pid}/smaps_rollup", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) * 1024

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.errors.close()


def torch_python(bench):
    if not bench.torchrun:
        raise Skip("torch is not installed (scripts/setup --rivals)")
    return os.path.join(os.path.dirname(bench.torchrun), "python3")


class Servers:
    """Those that can be had here: ddrun's, and each rival or why there is none."""

    def __init__(self, bench, *rivals):
        self.running, self.trouble = {}, {}
        try:
            for name in ("ddrun", *rivals):
                try:
                    start = with_local_names(bench) if name == "torch" else []
                    self.running[name] = Server(bench, name, start)
                except Skip as why:
                    self.trouble[name] = str(why)
        except BaseException:
            self.stop()
            raise

    def stop(self):
        for server in self.running.values():
            server.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def measure(self, bench, note, repeats, *options):
        """{server: [results of the load]}, in turn."""
        samples, trouble = in_turn({
            name: (repeats, lambda server=server: load(bench, server, *options))
            for name, server in self.running.items()
        }, note)
        self.trouble.update(trouble)
        return samples


# -- load

def load(bench, server, *options, limit=60.0):
    command = [bench.store_load, "--port", str(server.port), "--server", str(server.process.pid),
               "--cpu", str(cpus()[0]), "--json", *map(str, options)]
    if server.resp:
        command.append("--resp")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)
    if done.returncode != 0:
        raise Failure(f"load on {server.name}'s store: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def compare_by(samples, trouble, benchmark, quantity, limits, value, higher_is_better=False, **more):
    """One row for each rival; `limits` is {rival: (goal, floor)}, the ratio says how many times better ours is."""
    ours = [value(sample) for sample in samples["ddrun"]]
    rows = []
    for rival, (goal, floor) in limits.items():
        theirs = [value(sample) for sample in samples.get(rival, [])]
        ratio = None
        if theirs and higher_is_better:
            ratio = statistics.median(ours) / max(statistics.median(theirs), 1e-12)
        rows.append(Comparison(benchmark, quantity, ours, rival, theirs, goal, floor, ratio=ratio,
                               skipped="" if theirs else trouble.get(rival, "not measured"), **more))
    return rows


def rate(sample):
    return sample["per_second"]


def p99(sample):
    return sample["us_p99"]


def server_microseconds(sample):
    return sample["server_seconds"] * 1e6 / sample["operations"]


def store_get(bench, note):
    """Closed loops of GETs of 64 bytes: requests per second and the slowest of a hundred."""
    seconds = 0.3 if bench.quick else 1
    limits = {1: (1.15, 1.0), 64: (1.3, 1.1), 1000: (1.4, 1.15), 4000: (1.4, 1.15)}
    rows = []
    with Servers(bench, "torch", "redis") as servers:
        for connections, limit in limits.items():
            samples = servers.measure(bench, note, bench.count(7, 3), "--connections", connections,
                                      "--seconds", seconds)
            what = f"{connections} connection{'s' if connections > 1 else ''}"
            rows += compare_by(samples, servers.trouble, "store-get", what, {"torch": limit, "redis": (None, None)},
                               rate, higher_is_better=True, scale=1e-3, unit="k/s")
            rows += compare_by(samples, servers.trouble, "store-get", f"{what}, p99", {"torch": (1.0, None)}, p99,
                               unit="us")
            if connections == 64:
                rows += compare_by(samples, servers.trouble, "store-get", f"{what}, processor time of the server",
                                   {"torch": (None, None), "redis": (None, None)},
                                   server_microseconds, unit="us")
    return rows


def store_pipelined(bench, note):
    """64 connections with 16 GETs of 64 bytes under way on each."""
    seconds = 0.3 if bench.quick else 1
    with Servers(bench, "torch", "redis") as servers:
        samples = servers.measure(bench, note, bench.count(7, 3), "--depth", 16, "--seconds", seconds)
        return compare_by(samples, servers.trouble, "store-pipelined", "", {"torch": (12, 6), "redis": (None, None)},
                          rate, higher_is_better=True, scale=1e-3, unit="k/s") + compare_by(
            samples, servers.trouble, "store-pipelined", "p99 of 16", {"torch": (1.0, None)}, p99, unit="us")


def store_barrier(bench, note):
    """Each client counts itself in, the last one sets a flag, all wait for it."""
    # Judged by the server's processor time: in the wall time the load generator has as large a part.
    rows = []
    with Servers(bench, "torch") as servers:
        for clients in (1000, 4000):
            samples = servers.measure(bench, note, bench.count(7, 3), "--op", "barrier", "--connections", clients,
                                      "--seconds", 0.3 if bench.quick else 1)
            what = f"{clients} clients"
            rows += compare_by(samples, servers.trouble, "store-barrier", what, {"torch": (None, None)},
                               lambda sample: sample["us_p50"], scale=1e-3, unit="ms")
            rows += compare_by(samples, servers.trouble, "store-barrier", f"{what}, processor time of the server",
                               {"torch": (1.0, 0.9)}, server_microseconds, scale=1e-3, unit="ms")
    return rows


def store_storm(bench, note):
    """4,000 connections at once until all are greeted; and the same while the name server is dead."""
    storm = ("--op", "storm", "--connections", 4000, "--seconds", 30)
    more = {"higher_is_better": True, "scale": 1e-3, "unit": "k/s"}
    repeats = bench.count(9, 3)
    limits = {"torch": (1.3, 1.0), "redis": (None, None)}
    with Servers(bench, "torch", "redis") as servers:
        # Making connections costs the generator more than taking them costs a server: it does that before.
        samples = servers.measure(bench, note, repeats, *storm, "--hold")
        rows = compare_by(samples, servers.trouble, "store-storm", "4000 connections waiting", limits, rate, **more)
        rows += compare_by(samples, servers.trouble, "store-storm", "4000 connections waiting, p99",
                           {"torch": (1.0, None)}, p99, scale=1e-3, unit="ms")
        rows += compare_by(samples, servers.trouble, "store-storm", "waiting, processor time of the server, each",
                           {"torch": (1.8, 1.4), "redis": (None, None)}, server_microseconds, unit="us")
        samples = servers.measure(bench, note, repeats, *storm)
        rows += compare_by(samples, servers.trouble, "store-storm", "4000 connections being made",
                           {rival: (None, None) for rival in limits}, rate, **more)
        rows += compare_by(samples, servers.trouble, "store-storm", "being made, processor time of the server, each",
                           {"torch": (1.0, 0.9), "redis": (None, None)}, server_microseconds, unit="us")
        return rows + storm_without_names(bench, note, servers.running["ddrun"], storm, more)


def storm_without_names(bench, note, living, storm, more):
    quantity = "4000 connections being made, dead name server"
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    theirs = None
    try:
        silent.bind((DEAD_NAME_SERVER, 53))  # takes every question, answers none
        start = with_files(bench, {
            "/etc/hosts": "".join(line for line in system_file("/etc/hosts").splitlines(keepends=True)
                                  if not line.startswith("::ffff:")),
            "/etc/resolv.conf": f"nameserver {DEAD_NAME_SERVER}\n",
        })
        ours = Server(bench, "ddrun", start)
        try:
            samples, trouble = in_turn({
                "ddrun": (bench.count(9, 3), lambda: load(bench, ours, *storm)),
                "ddrun, living": (bench.count(9, 3), lambda: load(bench, living, *storm)),
            }, note)
        finally:
            ours.stop()
        rows = compare_by(samples, trouble, "store-storm", quantity, {"ddrun, living": (1.0, 0.8)}, rate, **more)
        try:
            theirs = Server(bench, "torch", start)
            samples["torch"] = [load(bench, theirs, "--op", "storm", "--connections", 4000, "--seconds", 20)]
        except (Skip, Failure) as why:
            trouble["torch"] = str(why)
        return rows + compare_by(samples, trouble, "store-storm", quantity, {"torch": (None, None)}, rate, **more)
    except (Skip, PermissionError) as why:
        return [Comparison("store-storm", quantity, [], skipped=f"needs root ({why})")]
    finally:
        silent.close()
        if theirs:
            theirs.stop()


def store_memory(bench, note):
    """The server's private memory for each of 4,000 idle connections, without the kernel's."""
    connections = 4000

    def side(name):
        def measure():
            server = Server(bench, name, with_local_names(bench) if name == "torch" else [])
            try:
                before = server.private_bytes()
                command = [bench.store_load, "--port", str(server.port), "--op", "idle", "--connections",
                           str(connections)] + (["--resp"] if server.resp else [])
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
                    if clients.stdout.readline() != b"ready\n":
                        raise Failure("the connections did not come about")
                    grown = server.private_bytes() - before
                    clients.stdin.close()
                return {"bytes": grown / connections}
            finally:
                server.stop()
        return measure

    repeats = bench.count(3, 1)
    samples, trouble = in_turn({name: (repeats, side(name)) for name in ("ddrun", "torch", "redis")}, note)
    ours = [sample["bytes"] for sample in samples["ddrun"]]
    return [Comparison("store-memory", "each idle connection", ours, goal=1024, at_most=True, unit="bytes",
                       ratio=statistics.median(ours))] + compare_by(
        samples, trouble, "store-memory", "each idle connection", {"torch": (None, None), "redis": (None, None)},
        lambda sample: sample["bytes"], unit="bytes")
