"""docs/when-things-go-wrong.md, "With machines that vote": four machines with agents, of which three say who leads."""

import pathlib
import time

from failover import AGENTS, FailoverTest
from jobs import KILL, TERMINATE, JobTest
from netcase import main

PORT = 29400


class VotingTest(FailoverTest):
    hosts = AGENTS

    @classmethod
    def setUpClass(cls):
        super(FailoverTest, cls).setUpClass()

    def setUp(self):
        JobTest.setUp(self)
        self.agents = self.bed.hosts
        self.jobs = {}

    def options(self, nnodes=None):
        voters = ",".join(f"{host.address}:{PORT}" for host in self.agents[:3])
        return [f"--nnodes={nnodes or f'{AGENTS - 1}:{AGENTS}'}", "--nproc-per-node=2", "--shutdown-timeout=5", "--max-restarts=3",
                f"--rdzv-endpoint={voters}"]

    def leader(self):
        """The machine whose agent has the coordinator's thread."""
        for host in self.agents:
            for seen in host.processes():
                try:
                    names = [task.joinpath("comm").read_text() for task in pathlib.Path(f"/proc/{seen.pid}/task").iterdir()]
                except OSError:
                    continue  # it has gone
                if "ddrun-coord\n" in names:
                    return host
        return None

    def running(self, *options, **more):
        """A round of all four; who leads it."""
        for host in self.agents:
            self.jobs[host.name] = self.agent(host, *options, **more)
        self.wait_for_round(0, self.agents)
        self.first = self.leader()
        self.others = [host for host in self.agents if host is not self.first]

    def test_its_agent_is_killed(self):
        row = self.row("votes-killed")
        self.running("--lease-ttl=300")
        since, before = time.monotonic(), self.round()
        self.first.signal("agent", KILL)
        self.goes_on_within(row, since, before, self.others)
        self.assertEqual(self.jobs[self.first.name].wait(30), 125, self.said())
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1})
        self.ends_well(row, self.others)

    def test_it_is_told_to_end(self):
        row = self.row("votes-preempted")
        self.running("--lease-ttl=300")
        since, before = time.monotonic(), self.round()
        self.jobs[self.first.name].signal(TERMINATE)
        self.goes_on_within(row, since, before, self.others)
        self.assertEqual(self.jobs[self.first.name].wait(30), row.code, self.said())
        self.assertEqual(self.restarts(), {before: 0, before + 1: 0}, "who leaves uses up no restart")
        self.ends_well(row, self.others)

    def test_its_machine_loses_power(self):
        row = self.row("votes-crash")
        self.running()
        since, before = time.monotonic(), self.round()
        self.first.crash()
        self.goes_on_within(row, since, before, self.others)
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1})
        self.ends_well(row, self.others)

    def test_its_wire_is_cut_and_healed(self):
        row = self.row("votes-cut")
        self.running("--last-call=2")
        since, before = time.monotonic(), self.round()
        self.first.cut()
        looked = []

        def look(newer):
            if not looked:
                looked.append([str(seen) for seen in self.first.of_role("worker")])
                self.assertEqual(looked[0], [], f"still on {self.first} while {newer[0]} runs\n{self.said()}")
        self.goes_on_within(row, since, before, self.others, look=look)
        self.first.heal()
        self.wait_for_round(before + 1, self.agents)
        self.assertEqual(self.restarts(), {before: 0, before + 1: 1, before + 2: 1}, "who comes back uses up no restart")
        self.go()
        self.ends(row, [self.jobs[host.name] for host in self.others], 0)
        self.assertEqual(self.jobs[self.first.name].wait(30), 0, self.said())
        self.rounds_are_in_order()

    def test_two_of_three_are_lost(self):
        row = self.row("votes-too-few")
        self.running("--coordinator-timeout=10")
        lost = self.agents[:2]
        for host in lost:
            host.crash()
        self.ends(row, [self.jobs[host.name] for host in self.agents[2:]])
        self.rounds_are_in_order()


if __name__ == "__main__":
    main()
