"""docs/several-machines-failures.md: agents and machines."""

import datetime
import json
import os
import time

from jobs import CONTINUE, KILL, PATIENCE, STOP, JobTest
from netcase import CLOCK_OFFSET, is_static, main

DAY = 86400
HEARTBEAT = 3  # until a node that is not heard is lost
PAUSE = 2
PAUSES = 4


class Machines(JobTest):
    hosts = 3

    def running(self, *options, **more):
        """A job whose workers have begun, each with a child that has left their session."""
        jobs = self.start(*options, verbs=["report", str(self.reports), "stray", "forever", ";", "await", str(self.go_file)],
                          **more)
        self.until(lambda: self.workers() == 4 * len(self.bed.hosts), "the workers and their children")
        return jobs

    def test_an_agent_is_killed(self):
        row = self.row("agent-killed")
        jobs = self.running()
        self.bed[2].signal("agent", KILL)
        self.ends(row, [jobs["h1"], jobs["h3"]])
        self.assertEqual(jobs["h2"].wait(30), 125, self.said())

    def test_a_guard_is_killed(self):
        row = self.row("guard-killed")
        jobs = self.running()
        self.bed[2].signal("guard", KILL)
        self.assertEqual(jobs["h2"].wait(30), 137, self.said())
        codes = {name: jobs[name].wait(40) for name in ("h1", "h3")}
        self.assertEqual(len(set(codes.values())), 1, self.said())
        self.assertGreaterEqual(codes["h1"], 125, self.said())
        self.says(row, [jobs["h1"], jobs["h3"]])

    def test_an_agent_is_stopped(self):
        row = self.row("agent-stopped")
        jobs = self.running()
        stopped = self.bed[2].signal("agent", STOP)[0]
        self.ends(row, [jobs["h1"], jobs["h3"]])
        os.kill(stopped.pid, CONTINUE)
        self.assertEqual(jobs["h2"].wait(40), 125, self.said())

    def test_agents_are_stopped_for_less_than_the_heartbeat(self):
        row = self.row("agent-paused")
        events = self.bed.dir / f"events-{self.number}"
        jobs = {there.name: self.ddrun(there, "--max-restarts=1", *([f"--events={events}"] if there.name == "h1" else []),
                                       verbs=["report", self.reports, "await", self.go_file]) for there in self.bed.hosts}
        self.wait_for_attempt(0, range(6))
        self.wait_for_workers()
        def whole_group():
            return sorted(seen.pid for host in self.bed.hosts for seen in self.begun(host))
        workers = whole_group()
        for number in range(PAUSES):
            # Another one's, and the coordinator's.
            paused = self.bed[2 - number % 2].signal("agent", STOP)[0]
            time.sleep(PAUSE)  # what is tried is this time
            os.kill(paused.pid, CONTINUE)
            # The next one begins at another moment between two heartbeats.
            time.sleep(1 + number / PAUSES)
        # If it has been taken for lost after all, that shows within the heartbeat.
        time.sleep(HEARTBEAT + 1)
        self.assertEqual(whole_group(), workers, self.said())
        self.go()
        self.ends(row, jobs.values(), 0)
        self.assertEqual(self.attempts(), {0: list(range(6))}, "no restart")
        for job in jobs.values():
            self.assertNotRegex(job.err, r"\blost\b|restarting|ddrun: (error|warning)", self.said())
        seen = [json.loads(line)["event"] for line in events.read_text(encoding="utf-8").splitlines()]
        self.assertEqual(seen.count("round"), 1, seen)
        self.assertFalse({"lost", "left", "restart", "failed", "excluded"} & set(seen), seen)

    def test_a_machine_loses_power(self):
        row = self.row("crash")
        jobs = self.running()
        self.bed[2].crash()
        self.ends(row, [jobs["h1"], jobs["h3"]])
        self.names_once(jobs["h1"], "h2")

    def test_a_machine_loses_power_and_is_back_at_once(self):
        row = self.row("reboot")
        jobs = self.running()
        self.bed[2].crash()
        self.bed[2].boot()
        self.ends(row, [jobs["h1"], jobs["h3"]])

    def test_two_machines_lose_power_at_once(self):
        row = self.row("two-crash")
        jobs = self.running()
        self.bed[2].crash()
        self.bed[3].crash()
        self.ends(row, [jobs["h1"]])

    def test_the_coordinators_agent_is_killed(self):
        row = self.row("coordinator-killed")
        jobs = self.running()
        self.bed[1].signal("agent", KILL)
        self.ends(row, [jobs["h2"], jobs["h3"]])
        self.assertEqual(jobs["h1"].wait(30), 125, self.said())

    def test_the_coordinators_machine_loses_power(self):
        row = self.row("coordinator-crash")
        jobs = self.running("--max-restarts=3", nnodes="1:3")
        self.bed[1].crash()
        self.ends(row, [jobs["h2"], jobs["h3"]])

    def test_the_coordinators_machine_is_back_at_once(self):
        """Its new job waits for the workers that it does not know."""
        def agent(host):
            return self.ddrun(host, "--last-call=1", nnodes="2:3", verbs=[*(["ignore", "TERM"] if host.name == "h2" else []),
                                                                          "await", self.go_file])
        jobs = {host.name: agent(host) for host in self.bed.hosts}
        self.wait_for_workers()
        old = {seen.pid for host in self.bed.hosts for seen in self.begun(host)}
        self.bed[1].crash()
        self.bed[1].boot()
        jobs["h1"] = agent(self.bed[1])
        def both():
            running = {seen.pid for host in self.bed.hosts for seen in self.begun(host)}
            return running - old and (running & old, running - old)
        self.until(both, "workers of the new job")
        self.assertFalse(both()[0], self.said())
        self.until(lambda: len(both()[1]) == 6, "all of them")
        self.go()
        for job in jobs.values():
            self.assertEqual(job.wait(30), 0, self.said())

    def test_the_clock_of_a_machine_jumps(self):
        row = self.row("clock-jump")
        if obstacle := is_static():
            self.skipTest(obstacle)
        for host in self.bed.hosts:
            host.set_apart_clock(CLOCK_OFFSET)
            self.addCleanup(host.set_apart_clock, None)
        events = self.bed.dir / f"events-{self.number}"
        verbs = ["report", self.reports, "await", self.go_file]
        jobs = {host.name: self.ddrun(host, "--max-restarts=1", *([f"--events={events}"] if host.name == "h1" else []), verbs=verbs)
                for host in self.bed.hosts}
        self.wait_for_attempt(0, range(6))
        ends = {"h1": 3 * DAY, "h2": -3 * DAY, "h3": 3600}
        for jumps in ({"h2": -5}, {"h1": -DAY, "h2": DAY}, {"h1": 5, "h3": -3600}, ends):
            for host in self.bed.hosts:
                if host.name in jumps:
                    self.clock_jumps_to(host, jumps[host.name])
            time.sleep(HEARTBEAT + 1)  # what is tried is this time
            self.assertTrue(all(not job.ended() for job in jobs.values()), self.said())
        self.go()
        self.ends(row, jobs.values(), row.code or 0)
        self.assertEqual(self.attempts(), {0: list(range(6))}, "no restart")
        for job in jobs.values():
            self.assertNotRegex(job.err, r"\blost\b|restarting|ddrun: (error|warning)", self.said())
        # The coordinator's machine writes them; of the others /proc/PID/maps has shown it.
        lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
        first, last = (datetime.datetime.fromisoformat(lines[at]["time"].replace("Z", "+00:00")) for at in (0, -1))
        self.assertAlmostEqual((last - first).total_seconds(), ends["h1"], delta=120, msg="ddrun's clock on h1")


class TwoMachines(JobTest):
    """One of two machines falls silent, and the other goes on alone, with default times."""

    def options(self, nnodes=None):
        return [option for option in super().options("1:2") if not option.startswith("--shutdown-timeout")]

    def goes_on_after(self, break_h2, *verbs_on_h2):
        """The agents, once workers of the next round run on h1."""
        events = self.bed.dir / f"events-{self.number}"
        jobs = {host.name: self.ddrun(host, "--max-restarts=1", "--coordinator-timeout=1",
                                      *([f"--events={events}"] if host.name == "h1" else []),
                                      verbs=[*(verbs_on_h2 if host.name == "h2" else []), "report", self.reports,
                                             "await", self.go_file]) for host in self.bed.hosts}
        self.wait_for_attempt(0, range(4))
        break_h2()
        self.wait_for_attempt(1, range(2))
        times = {}
        for line in events.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            times[event["event"]] = datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00"))
        # It is lost after 3.5 s of silence and may run for 7 s more, or 8 s if it has not yet answered a PING. By the
        # whole grace time these were 31 s.
        waited = (times["round"] - times["lost"]).total_seconds()
        self.assertGreater(waited, 6.5, self.said())
        self.assertLess(waited, 8.5 + PATIENCE / 2, self.said())
        self.assertRegex(jobs["h1"].err, r"may still run on h2 \(10.77.0.2, node rank 1\), for (8|[67](\.\d+)?) s \(--fence\)", self.said())
        return jobs

    def test_one_of_two_loses_power(self):
        row = self.row("power-cut")
        jobs = self.goes_on_after(self.bed[2].crash)
        self.go()
        self.ends(row, [jobs["h1"]], 0)

    def test_one_of_two_is_not_heard_and_its_workers_do_not_end(self):
        row = self.row("mute")
        jobs = self.goes_on_after(self.bed[2].mute, "ignore", "TERM")
        self.assertEqual(self.workers([self.bed[2]]), 0, self.said())
        self.go()
        self.ends(row, [jobs["h1"]], 0)
        self.assertEqual(jobs["h2"].wait(40), 125, self.said())


if __name__ == "__main__":
    main()
