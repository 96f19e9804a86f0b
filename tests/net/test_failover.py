"""docs/when-things-go-wrong.md, "With etcd": four machines with agents, and an etcd on three others. DDRUN_NET_ETCD_AWAY says
for how many seconds etcd is away."""

import dataclasses
import os
import time
import unittest

import etcd
from jobs import KILL, PATIENCE, SECRET, TERMINATE, JobTest
from netcase import DDRUN, WORKER, main, wait_until

AGENTS = 4
AWAY = float(os.environ.get("DDRUN_NET_ETCD_AWAY", "20"))
TTL = 5
# Where another one leads at once: nobody could wait for this one to be over.
LONG_LEASE = "--lease-ttl=300"
# Each worker says first which round it is of, in a file that all hosts see, and so in order.
SAYING_ITS_ROUND = ('read -r host </proc/sys/kernel/hostname; printf "%s\\n" "$DDRUN_ROUND $RANK $host $WORLD_SIZE '
                    '$TORCHELASTIC_RESTART_COUNT $MASTER_ADDR:$MASTER_PORT" >>"$0"; exec "$@"')


@dataclasses.dataclass
class Begun:
    """A worker that has begun."""
    round: int
    rank: int
    host: str
    world: tuple  # all of a round agree about it: world size, restarts, where the store is


class FailoverTest(JobTest):
    """Workers wait for the go file. h1 runs the coordinator first."""
    hosts = AGENTS + 3

    @classmethod
    def setUpClass(cls):
        if obstacle := etcd.obstacle():
            raise unittest.SkipTest(obstacle)
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.agents = self.bed.hosts[:AGENTS]
        self.etcd = etcd.Etcd(self.bed.hosts[AGENTS:], self.bed.dir / f"etcd-{self.number}")
        self.addCleanup(self.etcd.close)
        self.jobs = {}

    def options(self, nnodes=None):
        return [f"--nnodes={nnodes or f'{AGENTS - 1}:{AGENTS}'}", "--nproc-per-node=2", "--shutdown-timeout=5", "--max-restarts=3",
                "--rdzv-backend=etcd", f"--rdzv-endpoint={self.etcd.endpoint}", f"--rdzv-id=job{self.number}"]

    def agent(self, host, *options, verbs=(), nnodes=None):
        return host.start([DDRUN, *self.options(nnodes), *options, "--", "sh", "-c", SAYING_ITS_ROUND, self.reports, WORKER, *verbs,
                           "await", self.go_file], env={"DDRUN_SECRET": SECRET})

    def running(self, *options, **more):
        """A round of all four, with h1 in the lead."""
        for host in self.agents:
            self.jobs[host.name] = self.agent(host, *options, **more)
            if host is self.agents[0]:
                self.until(self.leads_on_h1, "a coordinator on h1")
        self.wait_for_round(0, self.agents)
        return self.jobs

    def leads_on_h1(self):
        return self.leader() is self.bed[1]

    def leader(self):
        """The machine of the coordinator, as etcd knows it."""
        addresses = self.etcd.value(f"/ddrun/job{self.number}/leader")
        return next((host for host in self.agents if f"{host.address}:" in addresses), None)

    # What workers have said.

    def begun(self):
        lines = self.reports.read_text(encoding="ascii").split("\n")[:-1] if self.reports.exists() else []
        return [Begun(int(words[0]), int(words[1]), words[2], tuple(words[3:])) for words in map(str.split, lines)]

    def round(self):
        """The last one, 0 before the first."""
        return max((one.round for one in self.begun()), default=0)

    def wait_for_round(self, before, hosts, seconds=60, look=lambda newer: None):
        """Until all workers of a round after `before` have begun, on these hosts, two on each. `look` is called with those
        of such a round that have, again and again."""
        whole = (list(range(2 * len(hosts))), sorted(2 * [host.name for host in hosts]))
        def there():
            newer = [one for one in self.begun() if one.round > before]
            if newer:
                look(newer)
            last = [one for one in newer if one.round == self.round()]
            return (sorted(one.rank for one in last), sorted(one.host for one in last)) == whole
        self.until(there, f"a round after {before} on {', '.join(map(str, hosts))}", seconds)

    def goes_on_within(self, row, since, before, hosts, **more):
        """The next round after `before` is on these hosts within the row's bound from `since` on."""
        self.wait_for_round(before, hosts, since + row.seconds + PATIENCE - time.monotonic(), **more)
        print(f"{row.id}: workers of the next round ran after {time.monotonic() - since:.2f} s", flush=True)

    def restarts(self):
        """How many had been used up when each round began: {round: restarts}."""
        return {one.round: int(one.world[1]) for one in self.begun()}

    def ends_well(self, row, hosts):
        """Workers go on to their end, and the job ends as they do, with what the row says on all of these hosts."""
        self.go()
        self.ends(row, [self.jobs[host.name] for host in hosts], 0)
        for host in hosts:
            self.assertNotRegex(self.jobs[host.name].err, "ddrun: error", self.said())
        self.rounds_are_in_order()

    def rounds_are_in_order(self):
        """No two rounds have the same number, and numbers only rise."""
        begun = self.begun()
        self.assertEqual([one.round for one in begun], sorted(one.round for one in begun), self.said())
        for number in {one.round for one in begun}:
            of_round = [one for one in begun if one.round == number]
            self.assertEqual(len({one.rank for one in of_round}), len(of_round), f"ranks of round {number}: {of_round}")
            self.assertEqual(len({one.world for one in of_round}), 1, f"round {number}: {of_round}")

    def says_once(self, hosts, text):
        for host in hosts:
            said = [line for line in self.jobs[host.name].err.splitlines() if text in line]
            self.assertEqual(len(said), 1, f"{host} says '{text}' once\n{self.said()}")


class Coordinators(FailoverTest):
    def test_its_agent_is_killed(self):
        row = self.row("failover-killed")
        jobs = self.running(LONG_LEASE)
        since, before, others = time.monotonic(), self.round(), self.agents[1:]
        self.bed[1].signal("agent", KILL)
        self.goes_on_within(row, since, before, others)
        self.assertEqual(jobs["h1"].wait(30), 125, self.said())
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1})
        self.ends_well(row, others)
        self.says_once(others, "stopping the workers, to join again")
        # The verdict of the second coordinator holds for those that come after both of them.
        late = self.row("failover-latecomer")
        self.ends(late, [self.agent(self.bed[1], LONG_LEASE)])
        self.assertEqual(self.round(), before + 1, "no worker is started any more")

    def test_the_agents_of_one_after_the_other_are_killed(self):
        row = self.row("failover-killed")
        self.running(LONG_LEASE, nnodes=f"1:{AGENTS}")
        left = list(self.agents)
        while len(left) > 1:
            leader = wait_until(self.leader, 30, "a coordinator")
            since, before = time.monotonic(), self.round()
            leader.signal("agent", KILL)
            left.remove(leader)
            self.goes_on_within(row, since, before, left)
        self.assertEqual(self.restarts(), {number: number - 1 for number in range(1, AGENTS + 1)})
        self.ends_well(row, left)

    def test_it_is_told_to_end(self):
        row = self.row("failover-preempted")
        jobs = self.running(LONG_LEASE)
        since, before, others = time.monotonic(), self.round(), self.agents[1:]
        jobs["h1"].signal(TERMINATE)
        self.goes_on_within(row, since, before, others)
        self.assertEqual(jobs["h1"].wait(30), row.code, self.said())
        self.assertEqual(self.restarts(), {before: 0, before + 1: 0}, "who leaves uses up no restart")
        self.ends_well(row, others)
        self.says_once(others, "looking for the next coordinator")

    def test_its_machine_loses_power(self):
        row = self.row("failover-crash")
        self.running()
        since, before, others = time.monotonic(), self.round(), self.agents[1:]
        self.bed[1].crash()
        self.goes_on_within(row, since, before, others)
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1})
        self.ends_well(row, others)
        self.says_once(others, "stopping the workers, to join again")

    def test_all_its_processes_are_killed_at_once(self):
        row = self.row("failover-all-killed")
        self.running()
        since, before, others = time.monotonic(), self.round(), self.agents[1:]
        for seen in self.bed[1].processes():
            try:
                os.kill(seen.pid, KILL)
            except ProcessLookupError:
                pass  # it has gone with another
        self.goes_on_within(row, since, before, others)
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1})
        self.ends_well(row, others)
        self.says_once(others, "stopping the workers, to join again")


class CutOff(FailoverTest):
    # On the coordinator's machine, which has the first ranks, none ends but by SIGKILL, nor does what they have started.
    STUBBORN = ["attempt", "0", *(word for rank in "01" for word in
                                  ("rank", rank, "stray", "ignore", "TERM", "forever", ";", "ignore", "TERM", ";")), ";"]

    def cut_off(self, *options):
        """h1 is, and the others go on without it. Gives back the round that it was in."""
        row = self.row("failover-cut")
        self.running(*options, verbs=self.STUBBORN)
        self.until(lambda: self.workers(self.agents[:1]) == 4, "the workers of h1 and what they have started")
        since, before, others = time.monotonic(), self.round(), self.agents[1:]
        looked = []
        def look(newer):
            if not looked:
                looked.append([str(seen) for seen in self.bed[1].of_role("worker")])
                self.assertEqual(looked[0], [], f"still on h1 while {newer[0]} runs\n{self.said()}")
        self.bed[1].cut()
        self.goes_on_within(row, since, before, others, look=look)
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1})
        self.says(row, [self.jobs[host.name] for host in others])
        self.says_once(others, "stopping the workers, to join again")
        return before

    def test_the_machine_is_back_before_the_job_ends(self):
        row = self.row("failover-back")
        before = self.cut_off("--last-call=2")
        since = time.monotonic()
        self.bed[1].heal()
        self.goes_on_within(row, since, before + 1, self.agents)
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1, before + 2: 1}, "who comes back uses up no restart")
        self.go()
        self.ends(row, [self.jobs["h1"]], 0)
        self.ends_well(self.row("failover-cut"), self.agents[1:])

    def test_the_machine_is_back_after_the_job_has_ended(self):
        row = self.row("failover-back-late")
        before = self.cut_off()
        self.ends_well(self.row("failover-cut"), self.agents[1:])
        self.assertIsNone(self.jobs["h1"].code, self.said())
        self.bed[1].heal()
        self.ends(row, [self.jobs["h1"]], 0)
        self.assertEqual(self.round(), before + 1, "no worker is started any more")
        self.rounds_are_in_order()


class Members(FailoverTest):
    def nothing_happens_for(self, seconds):
        """Neither a round nor a worker more or less: what is tried is this time."""
        pids = sorted(seen.pid for host in self.agents for seen in host.of_role("worker"))
        time.sleep(seconds)
        self.assertEqual(sorted(seen.pid for host in self.agents for seen in host.of_role("worker")), pids, self.said())
        self.assertEqual(self.restarts(), {1: 0}, self.said())

    def test_one_of_etcd_is_killed_and_then_the_one_that_leads(self):
        row, leading = self.row("etcd-member"), self.row("etcd-leader")
        self.running()
        leader = self.etcd.leader()
        other = next(host for host in self.etcd.hosts if host is not leader)
        for host in (other, leader):
            self.etcd.kill(host)
            self.nothing_happens_for(TTL + 1)
            self.assertTrue(self.leads_on_h1(), "it has renewed the lease")
            self.etcd.start(host)
            self.etcd.wait_until_well()
        self.ends_well(row, self.agents)
        self.says(leading, self.jobs.values())

    def test_all_of_etcd_are_killed(self):
        self.away(self.etcd.kill, self.etcd.start)

    def test_all_of_etcd_stand_still(self):
        if AWAY < 20:
            self.skipTest("scripts/test --full tries it")
        self.away(self.etcd.stop, self.etcd.go_on)

    def away(self, goes, comes):
        row = self.row("etcd-away")
        jobs = self.running()
        for host in self.etcd.hosts:
            goes(host)
        self.nothing_happens_for(AWAY)
        self.says(row, [jobs["h1"]])
        for host in self.etcd.hosts:
            comes(host)
        self.etcd.wait_until_well()
        self.go()
        self.ends(row, [jobs["h1"]], 0)
        for job in jobs.values():
            self.assertEqual(job.wait(30), 0, self.said())
        self.assertEqual(self.restarts(), {1: 0}, self.said())
        self.says_once(self.agents[:1], "the round that runs goes on")

    def test_the_coordinators_machine_cannot_reach_etcd_as_the_job_ends(self):
        row = self.row("etcd-apart")
        jobs = self.running()
        self.bed[1].block_to(etcd.CLIENT)
        self.until(lambda: "the round that runs goes on" in jobs["h1"].err, "the loss of the lease")
        self.go()
        self.until(lambda: not self.workers(self.agents), "the end of all workers")
        self.assertEqual([job.code for job in jobs.values()], [None] * AGENTS, "no verdict is told that is not recorded")
        self.bed[1].open()
        self.ends(row, [jobs["h1"]], 0)
        for job in jobs.values():
            self.assertEqual(job.wait(30), 0, self.said())
        self.assertEqual(self.restarts(), {1: 0}, "what has ended well is not run again")


class Nobody(FailoverTest):
    def etcd_and_the_coordinator_are_lost(self, *options):
        self.running(*options)
        for host in self.etcd.hosts:
            self.etcd.kill(host)
        self.bed[1].signal("agent", KILL)

    def test_until_etcd_is_back(self):
        row = self.row("etcd-back")
        self.etcd_and_the_coordinator_are_lost("--coordinator-timeout=60")
        before, others = self.round(), self.agents[1:]
        self.until(lambda: all("waiting for a coordinator" in self.jobs[host.name].err for host in others))
        for host in others:
            self.assertEqual(host.of_role("worker"), [], "workers stop at once")
        for host in self.etcd.hosts:
            self.etcd.start(host)
        self.etcd.wait_until_well()
        self.goes_on_within(row, time.monotonic(), before, others)
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1})
        self.ends_well(row, others)

    def test_for_too_long(self):
        row = self.row("etcd-gone")
        self.etcd_and_the_coordinator_are_lost("--coordinator-timeout=4")
        self.ends(row, [self.jobs[host.name] for host in self.agents[1:]])
        self.rounds_are_in_order()


if __name__ == "__main__":
    main()
