"""Agents on four machines and an etcd of three members on others: a job whose coordinator may be any of the four."""

import dataclasses
import time
import unittest

import etcd
from jobs import PATIENCE, SECRET, JobTest
from netcase import DDRUN, WORKER

AGENTS = 4
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
        return next((host for host in self.agents if f"{host.address}%3A" in addresses), None)

    # What workers have said.

    def begun(self):
        return self.read(self.reports.read_text(encoding="ascii")) if self.reports.exists() else []

    @staticmethod
    def read(text):
        """Without a line that is not whole yet."""
        return [Begun(int(words[0]), int(words[1]), words[2], tuple(words[3:]))
                for words in map(str.split, text.split("\n")[:-1])]

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
