"""docs/several-machines-failures.md, "With etcd": four machines with agents, and an etcd on three others. DDRUN_NET_ETCD_AWAY says
for how many seconds etcd is away."""

import os
import time

import etcd
from failover import AGENTS, FailoverTest
from jobs import KILL, STOP, TERMINATE
from netcase import main

AWAY = float(os.environ.get("DDRUN_NET_ETCD_AWAY", "20"))
TTL = 5
# Another coordinator leads at once, before a test could wait for this one's end.
LONG_LEASE = "--lease-ttl=300"


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
        self.running(LONG_LEASE)
        since, before, others = time.monotonic(), self.round(), self.agents[1:]
        # None does anything once another has gone: neither tell of a worker's end, nor give the lease back.
        processes = self.bed[1].processes()
        for number in STOP, KILL:
            for seen in processes:
                try:
                    os.kill(seen.pid, number)
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
        row = self.row("etcd-away")
        jobs = self.running()
        for host in self.etcd.hosts:
            self.etcd.kill(host)
        self.nothing_happens_for(AWAY)
        self.says(row, [jobs["h1"]])
        for host in self.etcd.hosts:
            self.etcd.start(host)
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
        self.until(lambda: not self.workers(others), "the end of the workers")
        self.until(lambda: all("etcd cannot be asked" in self.jobs[host.name].err for host in others), "that etcd is away")
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
