"""What becomes of a job of 4 hosts when the machine of its coordinator is gone: network-failover. A real etcd of three
members says who leads, on hosts of their own.

torchrun meets by the same etcd (etcd-v2), and at a port of its first host (c10d): that host is the one that is lost. Its
agents look at their own workers only, so one of each host that stays is killed at that instant, as if it had missed the
lost ones.
"""

import os
import pathlib
import shutil
import signal
import time

from measuring import Comparison, Failure, Skip, compare, in_turn, wait_until
from networking import WORKERS, Field, Job, skipped

HOSTS, MEMBERS = 4, 3
CLIENTS, PEERS = 2379, 2380
RESTARTS = 3
# A lease of 5 s that is not renewed, and a second.
SILENT = 6.0
# Its connections are, or refused.
BROKEN = 2.0


class Etcd:
    """One member on each of these hosts."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.endpoints = ",".join(f"{host.address}:{CLIENTS}" for host in hosts)
        cluster = ",".join(f"{host}=http://{host.address}:{PEERS}" for host in hosts)
        # etcd 3.4 and 3.5 still have the API that torchrun speaks; 3.6 has not.
        v2 = ["--enable-v2=true"] if "--enable-v2" in hosts[0].run(["etcd", "--help"]).out else []
        for host in hosts:
            host.start(["etcd", "--name", host.name, "--data-dir", host.home / "etcd", "--unsafe-no-fsync", *v2,
                        "--listen-client-urls", f"http://{host.address}:{CLIENTS}",
                        "--advertise-client-urls", f"http://{host.address}:{CLIENTS}",
                        "--listen-peer-urls", f"http://{host.address}:{PEERS}",
                        "--initial-advertise-peer-urls", f"http://{host.address}:{PEERS}", "--initial-cluster", cluster])
        wait_until(lambda: self.ask("get", "nothing") is not None, 60, "an etcd that answers")

    def ask(self, *words):
        asked = self.hosts[0].run(["etcdctl", "--command-timeout=2s", f"--endpoints={self.endpoints}", *words],
                                  env={"ETCDCTL_API": "3"})
        return asked.out if asked.code == 0 else None


class FailoverJob(Job):
    """A job that may go on with one host less."""

    def lose_its_coordinator(self, how):
        """Seconds from then to the first instruction of the last worker of the next round."""
        lost = self.hosts[0]
        if self.side == "ddrun":
            lost = self.host_of_coordinator()
        witnesses = [] if self.side == "ddrun" else [self.worker_of(host) for host in self.hosts if host is not lost]
        of_job = [seen for seen in lost.processes() if not self.field.is_warm(seen)]
        outermost = min(of_job, key=lambda seen: seen.inner)
        agents = [outermost] if self.side == "torchrun" else [seen for seen in of_job if seen.role == "agent"]
        began = time.monotonic_ns()
        if how == "told to end":
            os.kill(outermost.pid, signal.SIGTERM)
        elif how in ("agent killed", "all killed"):
            for seen in agents if how == "agent killed" else of_job:
                try:
                    os.kill(seen.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        else:
            lost.cut()
        for seen in witnesses:
            os.kill(seen.pid, signal.SIGKILL)
        try:
            return (self.next_round_without(lost, began) - began) / 1e9
        finally:
            lost.mend()

    def host_of_coordinator(self):
        """Where an agent has its thread."""
        for host in self.hosts:
            for seen in host.processes():
                try:
                    names = [task.joinpath("comm").read_text() for task in pathlib.Path(f"/proc/{seen.pid}/task").iterdir()]
                except OSError:
                    continue  # it has gone
                if "ddrun-coord\n" in names:
                    return host
        raise Failure(f"no agent has a coordinator: {self.said()}")

    def worker_of(self, host):
        return next(seen for seen in host.processes() if seen.name == "bench_worker")

    def next_round_without(self, lost, began):
        limit = 40 if self.field.bench.quick else 90
        others = [host for host in self.hosts if host is not lost]
        expected = WORKERS * len(others)
        def begun():
            return [when for when, host, _ in self.stamps() if host is not lost and when > began]
        try:
            wait_until(lambda: len(begun()) >= expected or not self.any_agent(others), limit, "a next round")
        except Failure as error:
            raise Failure(f"{error}: {self.last_line()}") from None
        if len(begun()) < expected:
            after = (time.monotonic_ns() - began) / 1e9
            raise Failure(f"the job has ended after {after:.1f} s: {self.last_line()}")
        return begun()[expected - 1]

    def last_line(self):
        """Of what its agents said; a row of the table has room for no more."""
        lines = [line.strip() for line in self.said().splitlines() if line.strip()]
        return lines[-1] if lines else "nothing is said"

    def any_agent(self, hosts):
        return any(not self.field.is_warm(seen) for host in hosts for seen in host.processes())


def network_failover(bench, note):
    """4 hosts with 2 workers each, 3 are enough; the coordinator's is lost, until the last worker of the next round has
    begun."""
    if rows := skipped("network-failover"):
        return rows
    missing = [program for program in ("etcd", "etcdctl") if not shutil.which(program)]
    if missing:
        return [Comparison("network-failover", "", [], skipped=f"{missing[0]} is not installed (scripts/setup --tests)")]
    rows = []
    with Field(bench, HOSTS, MEMBERS) as field:
        etcd = Etcd(field.others)
        at_least = [f"--nnodes={HOSTS - 1}:{HOSTS}"]
        def side(name, how, meeting):
            def lose(job):
                job.start()
                return job.lose_its_coordinator(how)
            def one():
                if name == "torchrun" and not field.warm:
                    raise Skip("torchrun is not installed (scripts/setup --rivals)")
                job = FailoverJob(field, name, RESTARTS, at_least + meeting)
                try:
                    return lose(job)
                finally:
                    job.close()
            return one
        by_etcd = ["--rdzv-backend=etcd", f"--rdzv-endpoint={etcd.endpoints}"]
        # Without it torchrun waits for a fourth host.
        by_v2 = ["--rdzv-backend=etcd-v2", f"--rdzv-endpoint={field.others[0].address}:{CLIENTS}",
                 "--rdzv-conf=last_call_timeout=1"]
        by_port = ["--rdzv-backend=c10d", f"--rdzv-endpoint={field.hosts[0].address}:29400",
                   "--rdzv-conf=last_call_timeout=1"]
        for how, bound in (("told to end", BROKEN), ("agent killed", BROKEN), ("all killed", BROKEN), ("cut off", SILENT)):
            samples, trouble = in_turn({
                "ddrun": (bench.count(10, 3), side("ddrun", how, [*by_etcd, "--last-call=30"])),
                "torchrun etcd-v2": (bench.count(2, 1), side("torchrun", how, by_v2)),
                "torchrun c10d": (bench.count(2, 1), side("torchrun", how, by_port))}, note)
            rows.append(Comparison("network-failover", f"{how}, the longest of {len(samples['ddrun'])}",
                                   samples["ddrun"], goal=bound, at_most=True, ratio=max(samples["ddrun"])))
            rows += compare("network-failover", how, samples, trouble,
                            {"torchrun etcd-v2": (None, None), "torchrun c10d": (None, None)})
    return rows
