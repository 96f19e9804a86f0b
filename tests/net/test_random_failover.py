"""Random faults on a job whose coordinator may be any of four machines, with an etcd of three members: processes of ddrun and
workers are killed or stand still, machines lose their wire or their power, wires are late, clocks of machines jump by seconds
to days, members of etcd go and come back.
An agent that has ended is started again, as a service manager does. After each fault, and while it lasts: rounds' numbers only
rise, each has one of each rank, no worker of an older round runs beside a newer one, leaders have terms that rise, the other
machines go on without one that is away, and all four are in one round again in time. DDRUN_NET_FAULTS=N (10) tries so many, DDRUN_NET_SEED=N the same ones again."""

import dataclasses
import os
import random
import time

from failover import FailoverTest
from jobs import CONTINUE, KILL, PATIENCE, STOP, TERMINATE
from netcase import CLOCK_OFFSET, main, is_static, wait_until

FAULTS = int(os.environ.get("DDRUN_NET_FAULTS", "10"))
SEED = int(os.environ.get("DDRUN_NET_SEED", time.time_ns() % 1_000_000))
TTL = 2
OPTIONS = [f"--lease-ttl={TTL}", "--heartbeat-interval=0.3", "--last-call=1", "--max-restarts=1000000", "--coordinator-timeout=60",
           "--rdzv-conf=join_timeout=120", "--shutdown-timeout=2"]
# On one machine a worker ends by SIGKILL alone: where its end is not waited for, the next round runs beside it.
STUBBORN = ["rank", "3", "ignore", "TERM", ";"]
# From the end of a fault until all are in one round: who hears nothing looks elsewhere (1 s), the lease (2 s) and another one
# of an etcd without a leader, workers of silent machines (4 s), and a newcomer that is lost on its way: once more.
BOUND = 20
# From a loss until the others are in a round without that machine: as above, without the newcomer.
GOES_ON = 10
# Where a connection broke nothing is waited for: ddrun has been killed there, and its workers are just being killed with it.
IS_KILLED = 0.5
DAY = 86400


@dataclasses.dataclass
class Fault:
    what: str
    where: str  # "leader", or "h3"
    role: str
    seconds: float  # that it lasts; 0: until the others have gone on

    def __str__(self):
        lasts = f"{self.seconds:.1f} s" if self.seconds else "until the others have gone on"
        return f"{self.what} {self.where} {self.role} {lasts}"


def drawn(chance, clocks=True):
    """The next fault: every second one meets the machine that leads."""
    what = chance.choice(["kill"] * 5 + ["stop"] * 4 + ["cut"] * 4 + ["delay"] * 2 + ["terminate", "crash"] + ["etcd"] * 3 +
                         ["clock"] * 2 * clocks)
    where = chance.choice(["leader", chance.choice(["h1", "h2", "h3", "h4"])])
    role = chance.choice(["agent", "agent", "guard", "sweeper", "lease", "lease", "worker"])
    if what == "etcd":
        where, role = chance.choice(["h5", "h6", "h7", "h5 h6", "h5 h6 h7"]), chance.choice(["kill", "stop"])
    if what in ("cut", "delay", "crash"):
        role = "wire" if what != "crash" else "power"
    if what == "clock":
        role = f"{chance.choice([-1, 1]) * chance.choice([2, 10, 3600, DAY, chance.uniform(0, 7 * DAY)]):+.0f} s"
    seconds = chance.choice([0.2, 1, chance.uniform(0, 2 * TTL), chance.uniform(0, 3 * TTL)])
    if what in ("cut", "crash") or (what, role) == ("stop", "agent"):
        seconds = chance.choice([seconds, 0])
    return Fault(what, where, role, seconds)


class Faults(FailoverTest):
    def setUp(self):
        super().setUp()
        self.chance = random.Random(SEED)
        self.lines, self.where_read = [], 0
        self.away = set()  # machines without power
        self.old = {}  # since when a worker of an older round was seen beside a newer one
        self.terms = []
        self.went_on = []  # seconds
        self.rounds_of_workers = {}
        self.now = "at the beginning"
        self.clocks = not is_static()
        self.ahead = {host.name: 0 for host in self.agents}  # seconds
        for host in self.agents if self.clocks else []:
            host.set_apart_clock(CLOCK_OFFSET)

    def begun(self):
        """As they have been written since the last call too: there may be thousands."""
        if self.reports.exists():
            with open(self.reports, "rb") as file:
                file.seek(self.where_read)
                new = file.read()
            whole = new[:new.rfind(b"\n") + 1]
            self.where_read += len(whole)
            before, self.lines = self.lines, self.lines + self.read(whole.decode("ascii"))
            for line in self.lines[len(before):]:
                last = before[-1].round if before else 0
                self.assertGreaterEqual(line.round, last, f"a worker of an older round has begun: {line}, {self.trouble()}")
                same = [one for one in before[-16:] if one.round == line.round]
                self.assertNotIn(line.rank, [one.rank for one in same], f"twice in a round: {line}, {self.trouble()}")
                self.assertEqual({one.world for one in same} | {line.world}, {line.world}, f"{line}, {self.trouble()}")
                before.append(line)
            del self.lines[:-64]
        return self.lines

    def trouble(self):
        processes = "".join(f"{host}: {', '.join(map(str, host.processes()))}\n" for host in self.agents)
        last = "\n".join(map(str, self.lines[-16:]))
        return f"{self.now}, seed {SEED}, terms {self.terms[-5:]}\n{last}\n{processes}\n{self.etcd}\n{self.said()}"

    def round_of(self, seen):
        """Of a worker that runs; None for one that is none yet, or no more."""
        if seen.pid not in self.rounds_of_workers:
            try:
                with open(f"/proc/{seen.pid}/environ", "rb") as file:
                    variables = dict(text.split(b"=", 1) for text in file.read().split(b"\0") if b"=" in text)
            except OSError:
                return None
            if b"DDRUN_ROUND" not in variables:
                return None
            self.rounds_of_workers[seen.pid] = int(variables[b"DDRUN_ROUND"])
        return self.rounds_of_workers[seen.pid]

    def look(self):
        """What must hold at any time. Gives back what runs of the last round: {host: number of workers}."""
        last = self.begun()[-1].round if self.begun() else 0
        running, old = {}, {}
        for host in self.agents:
            for seen in host.of_role("worker"):
                number = self.round_of(seen)
                if number is None:
                    continue
                if number >= last and seen.name.startswith("ddrun_test_work"):
                    running[host.name] = running.get(host.name, 0) + 1
                if number >= last:
                    continue
                since = old.setdefault(seen.pid, self.old.get(seen.pid, time.monotonic()))
                if time.monotonic() - since > IS_KILLED and os.path.exists(f"/proc/{seen.pid}/exe"):
                    self.fail(f"{seen} on {host} is of round {number} while {last} runs, {self.trouble()}")
        self.old = old
        self.rounds_of_workers = {pid: number for pid, number in self.rounds_of_workers.items() if number >= last}
        return running

    def restart_the_ended(self):
        for host in self.agents:
            job = self.jobs.get(host.name)
            if host.name in self.away or (job is not None and not job.ended()):
                continue
            if job is not None:
                self.assertNotIn(job.code, (0, 1, 2), self.trouble())
                self.assertNotIn("has ended already", job.err, self.trouble())
                wait_until(lambda one=host: not one.processes(), 30, lambda: f"the end of all on {host}, {self.trouble()}")
                job.close()
                self.bed.started.remove(job)
            self.jobs[host.name] = self.agent(host, *OPTIONS, verbs=STUBBORN, nnodes="2:4")

    def newest(self):
        """Workers of the last round that have begun."""
        begun = list(self.begun())
        return [one for one in begun if one.round == begun[-1].round]

    def whole(self):
        """All hosts are in one round, and all of its workers run."""
        running = self.look()
        last = self.newest()
        return (sorted(one.rank for one in last) == list(range(8)) and sorted(one.host for one in last) ==
                sorted(2 * [host.name for host in self.agents]) and running == {host.name: 2 for host in self.agents})

    def watch(self, seconds, lost=None):
        """For as long as a fault lasts; 0: until the others are in a round without this machine."""
        if not seconds and lost:
            self.goes_on_without(lost)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            self.restart_the_ended()
            time.sleep(0.05)

    def goes_on_without(self, lost):
        before, since = self.begun()[-1].round, time.monotonic()
        def gone_on():
            self.look()
            self.restart_the_ended()
            newest = self.newest()
            return (newest[0].round > before and lost.name not in [one.host for one in newest] and
                    len(newest) == int(newest[0].world[0]) >= 4)
        wait_until(gone_on, GOES_ON + PATIENCE, lambda: f"a round without {lost}, {self.trouble()}")
        self.went_on.append(time.monotonic() - since)
        self.now += f", the others went on after {self.went_on[-1]:.1f} s"

    def terms_rise(self):
        """etcd's own word: the term is the revision in which the leader's key was made."""
        term = self.etcd.made_in(f"/ddrun/job{self.number}/leader")
        if term:
            self.assertGreaterEqual(term, max(self.terms, default=0), self.trouble())
            if term not in self.terms:
                self.terms.append(term)

    def meet(self, fault):
        """The fault begins, lasts and is over."""
        if fault.what == "etcd":
            self.meet_etcd(fault)
            return
        host = self.leader() if fault.where == "leader" else next(one for one in self.agents if one.name == fault.where)
        host = host or self.agents[0]
        self.now += f" ({host})"
        if fault.what == "crash":
            host.crash()
            self.jobs[host.name].wait(30)
            self.away.add(host.name)
            self.watch(fault.seconds, host)
            host.boot()
            self.away.clear()
        elif fault.what == "cut":
            host.cut()
            self.watch(fault.seconds, host)
            host.heal()
        elif fault.what == "delay":
            host.delay(100)
            self.watch(fault.seconds)
            host.delay(0)
        elif fault.what == "clock":
            self.meet_clock(host, float(fault.role.split()[0]), fault.seconds)
        elif fault.what == "terminate":
            self.jobs[host.name].signal(TERMINATE)
        else:
            found = [seen for seen in host.processes() if seen.role == fault.role]
            if not found:
                return
            pid = self.chance.choice(found).pid
            if fault.what == "stop":
                self.stop(host, pid, fault.seconds)
            else:
                self.tell(pid, KILL)

    @staticmethod
    def tell(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has gone by itself

    def stop(self, host, pid, seconds):
        self.tell(pid, STOP)
        self.watch(seconds, host)
        self.tell(pid, CONTINUE)
        self.jobs[host.name].signal(CONTINUE)

    def meet_clock(self, host, jump, seconds):
        """It stays as it is until the next jump, and no round ends by it; what the fault before may still bring comes first."""
        self.watch(GOES_ON)
        def one_round():
            self.restart_the_ended()
            return self.whole()
        wait_until(one_round, BOUND + PATIENCE, lambda: f"one round of all, {self.trouble()}")
        before, first = self.begun()[-1].round, self.jobs[host.name]
        self.ahead[host.name] += jump
        self.clock_jumps_to(host, self.ahead[host.name])
        self.watch(max(seconds, 2))
        self.assertEqual((self.begun()[-1].round, self.jobs[host.name]), (before, first), f"nothing comes of it, {self.trouble()}")

    def meet_etcd(self, fault):
        members = [host for host in self.etcd.hosts if host.name in fault.where.split()]
        goes, comes = (self.etcd.kill, self.etcd.start) if fault.role == "kill" else (self.etcd.stop, self.etcd.go_on)
        for host in members:
            goes(host)
        self.watch(fault.seconds)
        for host in members:
            comes(host)
        self.etcd.wait_until_well()

    def test_faults(self):
        print(f"{FAULTS} faults, seed {SEED}" + ("" if self.clocks else ", no clock jumps: " + is_static()), flush=True)
        longest = 0
        for number in range(FAULTS + 1):
            since = time.monotonic()
            def one_round():
                self.restart_the_ended()
                return self.whole()
            wait_until(one_round, BOUND + PATIENCE, lambda: f"one round of all, {self.trouble()}")
            self.terms_rise()
            if number:
                longest = max(longest, time.monotonic() - since)
                print(f"{number}: {self.now}: one round of all after {time.monotonic() - since:.1f} s", flush=True)
            if number < FAULTS:
                fault = drawn(self.chance, self.clocks)
                self.now = f"{fault}"
                self.meet(fault)
        print(f"{FAULTS} faults, {len(self.terms)} terms, {self.begun()[-1].round} rounds; one round of all after at most "
              f"{longest:.1f} s, the others without a lost machine after at most {max(self.went_on, default=0):.1f} s", flush=True)
        wait_until(one_round, BOUND + PATIENCE, lambda: f"one round of all at last, {self.trouble()}")
        self.go()
        for job in self.jobs.values():
            self.assertEqual(job.wait(60), 0, self.trouble())


if __name__ == "__main__":
    main()
