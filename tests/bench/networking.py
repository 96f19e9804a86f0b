"""Jobs on 2 and 4 hosts, in namespaces of this machine (tests/net): network-start, network-restart, network-stop,
network-idle.

torchrun's `import torch` is not counted: on each host a process has imported it already and becomes torchrun in forks of
itself (tests/torch/warm_torchrun.py). The hosts file has the peers' v4-mapped addresses, without which torchrun waits for a
name server at each start (22 s instead of 2).
"""

import json
import os
import pathlib
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "net"))

import bed as beds  # noqa: E402
from measuring import Comparison, Failure, Skip, compare, in_turn, number, spread, wait_until  # noqa: E402

WORKERS = 2  # of each host
ENTRY = struct.Struct("=qq")
PORT = 29400
# What torchrun imports only when it uses it: part of the time for imports as well.
LAZY_MODULES = ["torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
                "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
                "torch.distributed.elastic.agent.server.local_elastic_agent",
                "torch.distributed.elastic.multiprocessing.tail_log", "multiprocessing.popen_spawn_posix"]


class Warm:
    """On one host, a process that has imported torch."""

    def __init__(self, host, torchrun):
        self.host, self.torchrun = host, torchrun
        python = os.path.join(os.path.dirname(torchrun), "python")
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            ["nsenter", "-t", str(host.init()), "-a", "--", python, str(TESTS / "torch/warm_torchrun.py"),
             str(theirs.fileno()), *LAZY_MODULES],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=self.environment())
        theirs.close()

    def environment(self):
        return self.host.environment({"OMP_NUM_THREADS": "1", "PATH": f"{os.path.dirname(self.torchrun)}:/usr/bin:/bin"})

    def start(self, args, files):
        request = {"args": [self.torchrun, *args], "env": self.environment(), "cwd": str(self.host.home)}
        socket.send_fds(self.channel, [json.dumps(request).encode()], [file.fileno() for file in files])

    def ready(self):
        """Waits until it answers: a fork that fails at once shows that all is imported."""
        with open(os.devnull, "r+b") as null:
            self.start(["--help"], [null, null, null])
        self.channel.settimeout(120)
        seen = {}
        while "code" not in seen:
            seen = json.loads(self.channel.recv(1 << 16) or b'{"code": 1}')
        self.drain()

    def drain(self):
        self.channel.setblocking(False)
        try:
            while self.channel.recv(1 << 16):
                pass
        except OSError:
            pass
        self.channel.setblocking(True)

    def close(self):
        try:
            self.channel.shutdown(socket.SHUT_RDWR)  # the end of its requests
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.channel.close()


class Job:
    """One job of one launcher on all hosts of a bed. Its workers write down when they begin and when SIGTERM comes."""

    def __init__(self, field, side, restarts, meeting=()):
        """`meeting`: options for where and how many, if not all at a port of the first host."""
        self.field, self.side, self.bed, self.hosts = field, side, field.bed, field.hosts
        self.expected = WORKERS * len(self.hosts)
        field.jobs += 1
        self.files = [(f"{self.bed.dir}/{host.name}.began-{field.jobs}", f"{self.bed.dir}/{host.name}.stopped-{field.jobs}")
                      for host in self.hosts]
        self.id = f"bench{field.jobs}"
        self.options = [f"--nproc-per-node={WORKERS}", f"--max-restarts={restarts}", f"--rdzv-id={self.id}", "--no-python",
                        *(meeting or [f"--nnodes={len(self.hosts)}", "--rdzv-backend=c10d",
                                      f"--rdzv-endpoint={self.hosts[0].address}:{PORT}"])]
        self.errors = open(f"{self.bed.dir}/errors-{field.jobs}", "w+b")
        self.begun = 0

    def start(self):
        """Seconds from the start of all agents, which are there and wait for a word, to the last worker's first instruction."""
        words = [self.options + [self.field.bench.worker, "stamp", *files] for files in self.files]
        if self.side == "ddrun":
            env = {"DDRUN_SECRET": "the bench's own secret"}
            gated = [host.start([self.field.bench.ddrun, *args], env=env, gate=True)
                     for host, args in zip(self.hosts, words)]
            wait_until(lambda: all(_waits_at_gate(started) for started in gated), 20, "the start of the shells")
            began = time.monotonic_ns()
            for started in gated:
                started.go()
            self.gated = gated
        else:
            began = time.monotonic_ns()
            with open(os.devnull, "rb") as null:
                for warm, args in zip(self.field.warm, words):
                    warm.start(args, [null, self.errors, self.errors])
        return (self.wait_for(self.expected) - began) / 1e9

    def said(self):
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        if self.side == "ddrun":
            text += "".join(started.err for started in self.gated)
        return text[-800:]

    def stamps(self, which=0):
        found = []
        for host, files in zip(self.hosts, self.files):
            try:
                with open(files[which], "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                continue
            found += [(when, host, pid) for when, pid in ENTRY.iter_unpack(data[:len(data) // 16 * 16])]
        return sorted(found, key=lambda stamp: stamp[0])

    def sizes(self):
        return sum(os.path.getsize(files[0]) for files in self.files if os.path.exists(files[0])) // ENTRY.size

    def wait_for(self, more):
        """Waits for so many new workers; the nanosecond of the last one."""
        try:
            wait_until(lambda: self.sizes() >= self.begun + more, 120, "the start of all workers")
        except Failure as error:
            raise Failure(f"{error}: {self.said()}") from None
        stamps = self.stamps()
        last = stamps[self.begun + more - 1][0]
        self.begun = len(stamps)
        return last

    def kill_one(self, pause):
        """Kills a worker of a random host; the nanosecond, and the host."""
        while True:
            # Chosen before the pause: looking through all processes takes a processor of its own for milliseconds.
            host, victim = random.choice([(host, seen) for host in self.hosts for seen in host.processes()
                                          if seen.name == "bench_worker"])
            time.sleep(random.uniform(*pause))
            self.begun = self.sizes()
            now = time.monotonic_ns()
            try:
                os.kill(victim.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # torchrun sometimes holds two rendezvous
            return now, host

    def restart(self, pause):
        """Seconds from a SIGKILL to the first instruction of the last new worker of all hosts."""
        killed, _ = self.kill_one(pause)
        return (self.wait_for(self.expected) - killed) / 1e9

    def stop(self, pause):
        """Seconds from a SIGKILL until SIGTERM has come to the last worker of the other hosts."""
        before = len(self.stamps(1))
        killed, there = self.kill_one(pause)
        self.wait_for(self.expected)
        stops = [when for when, host, _ in self.stamps(1)[before:] if host is not there and when > killed]
        if len(stops) < WORKERS * (len(self.hosts) - 1):
            raise Failure(f"SIGTERM came to {len(stops)} workers of other hosts only")
        return (max(stops) - killed) / 1e9

    def close(self):
        for host in self.hosts:
            for _ in range(200):
                left = [seen for seen in host.processes() if not self.field.is_warm(seen)]
                if not left:
                    break
                for seen in left:
                    try:
                        os.kill(seen.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                time.sleep(0.01)
        for warm in self.field.warm:
            warm.drain()
        for started in self.bed.started:
            if started.host in self.hosts:
                started.close()
        self.bed.started[:] = [started for started in self.bed.started if started.host not in self.hosts]
        self.errors.close()


def _waits_at_gate(started):
    try:
        with open(f"/proc/{started.pid}/comm", encoding="ascii") as file:
            return file.read() == "sh\n"
    except OSError:
        return False


class Field:
    """A bed for a benchmark, with torchrun warmed up on its hosts; `others` are hosts that have no agent."""

    def __init__(self, bench, hosts, others=0):
        self.bench, self.jobs, self.warm, self.trouble = bench, 0, [], ""
        self.bed = beds.Bed(hosts + others, clocks=False)  # stamps of several hosts are compared
        self.hosts, self.others = self.bed.hosts[:hosts], self.bed.hosts[hosts:]
        try:
            if bench.torchrun:
                self.warm = [Warm(host, bench.torchrun) for host in self.hosts]
                for warm in self.warm:
                    warm.ready()
            self._warm_pids = {seen.pid for host in self.hosts for seen in host.processes()}
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        for warm in self.warm:
            warm.close()
        self.bed.close()

    def is_warm(self, seen):
        return seen.pid in self._warm_pids

    def job(self, side, restarts=0, meeting=()):
        if side == "torchrun" and not self.warm:
            raise Skip("torchrun is not installed (scripts/setup --rivals)")
        return Job(self, side, restarts, meeting)

    def round_trip(self):
        """Seconds for one byte to the next host and back."""
        serve = ("import socket; s = socket.create_server(('', 900)); print('up', flush=True); p = s.accept()[0]\n"
                 "p.setsockopt(6, 1, 1)\nwhile d := p.recv(1): p.sendall(d)")
        ask = ("import socket, statistics, time; p = socket.create_connection(('10.77.0.1', 900)); p.setsockopt(6, 1, 1)\n"
               "t = []\nfor _ in range(500):\n  b = time.monotonic(); p.sendall(b'x'); p.recv(1)\n"
               "  t.append(time.monotonic() - b)\nprint(statistics.median(t))")
        server = self.bed[1].start(["python3", "-c", serve])
        wait_until(lambda: "up" in server.out, 20, "the server of the round trips")
        client = self.bed[2].run(["python3", "-c", ask])
        server.wait(10)
        return float(client.out)


def skipped(name):
    obstacle = beds.obstacle()
    return [Comparison(name, "", [], skipped=obstacle)] if obstacle else None


def measured(job, measure):
    try:
        return measure(job)
    finally:
        job.close()


def flat(samples):
    return {name: [value for chunk in chunks for value in chunk] for name, chunks in samples.items()}


def network_start(bench, note):
    """Agents on 2 and 4 hosts, started at the same instant, until the last of 2 workers each has begun."""
    if rows := skipped("network-start"):
        return rows
    rows = []
    for hosts in (2, 4):
        with Field(bench, hosts) as field:
            def side(name):
                return lambda: measured(field.job(name), Job.start)
            samples, trouble = in_turn({"ddrun": (bench.count(30, 3), side("ddrun")),
                                        "torchrun": (bench.count(10, 2), side("torchrun"))}, note)
        rows += compare("network-start", f"{hosts} hosts", samples, trouble, {"torchrun": (400, 50)}, scale=1e3,
                        unit="ms")
    return rows


def network_restart(bench, note):
    """2 and 4 hosts with 2 workers each, one killed with SIGKILL, until the last new one has begun: median and p99."""
    if rows := skipped("network-restart"):
        return rows
    rows, chunks = [], bench.count(4, 1)
    for hosts in (2, 4):
        with Field(bench, hosts) as field:
            def side(name, count, pause):
                def chunk(job):
                    job.start()
                    return [job.restart(pause) for _ in range(count)]
                return lambda: measured(field.job(name, count + 1), chunk)
            samples, trouble = in_turn({"ddrun": (chunks, side("ddrun", 50, (0.02, 0.05))),
                                        "torchrun": (chunks, side("torchrun", 8, (0.3, 0.8)))}, note)
        samples = flat(samples)
        rows += compare("network-restart", f"{hosts} hosts", samples, trouble, {"torchrun": (300, 50)}, scale=1e3,
                        unit="ms")
        if samples.get("torchrun"):
            ours, theirs = (spread(samples[name])["p99"] for name in ("ddrun", "torchrun"))
            rows.append(Comparison(
                "network-restart", f"{hosts} hosts, p99 of {len(samples['ddrun'])} and {len(samples['torchrun'])}",
                [ours], "torchrun", [theirs], 300, 50, scale=1e3, unit="ms"))
    return rows


def network_stop(bench, note):
    """2 and 4 hosts: a worker's death until SIGTERM has come to the last worker of the other hosts."""
    if rows := skipped("network-stop"):
        return rows
    rows, chunks = [], bench.count(4, 1)
    for hosts in (2, 4):
        with Field(bench, hosts) as field:
            trip = field.round_trip()
            def side(name, count, pause):
                def chunk(job):
                    job.start()
                    return [job.stop(pause) for _ in range(count)]
                return lambda: measured(field.job(name, count + 1), chunk)
            samples, trouble = in_turn({"ddrun": (chunks, side("ddrun", 50, (0.02, 0.05))),
                                        "torchrun": (chunks, side("torchrun", 6, (0.3, 0.8)))}, note)
        samples = flat(samples)
        beyond = (statistics.median(samples["ddrun"]) - trip) * 1e3
        rows.append(Comparison("network-stop", f"{hosts} hosts, ms beyond a round trip of {number(trip * 1e6)} us",
                               samples["ddrun"], goal=1, at_most=True, ratio=beyond, scale=1e3, unit="ms"))
        rows += compare("network-stop", f"{hosts} hosts", samples, trouble, {"torchrun": (None, None)}, scale=1e3,
                        unit="ms")
    return rows


def network_idle(bench, note):
    """2 hosts whose workers sleep: packets that leave the one without the coordinator, each second."""
    if rows := skipped("network-idle"):
        return rows
    seconds = 5 if bench.quick else 20
    with Field(bench, 2) as field:
        def sent():
            return int(field.bed[2].run(["cat", "/sys/class/net/eth0/statistics/tx_packets"]).out)
        def idle(job):
            job.start()
            time.sleep(10)  # on a young connection the kernel acknowledges each packet by itself
            before = sent()
            time.sleep(seconds)
            return (sent() - before) / seconds
        def side(name):
            return lambda: measured(field.job(name), idle)
        samples, trouble = in_turn({"ddrun": (bench.count(3, 1), side("ddrun")),
                                    "torchrun": (bench.count(3, 1), side("torchrun"))}, note)
    # Besides: who has which address, twice a minute.
    ours = statistics.median(samples["ddrun"])
    return [Comparison("network-idle", "packets of an agent each second", samples["ddrun"], goal=1.1, at_most=True, ratio=ours,
                       unit="")] + compare("network-idle", "packets", samples, trouble, {"torchrun": (None, None)}, unit="")
