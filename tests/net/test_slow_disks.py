"""docs/when-things-go-wrong.md, "Agents and machines": each kind of file on a file system that hangs, as that of a network does
whose server is away. DDRUN_NET_STALLS says for how many seconds, one after the other."""

import os
import time
import unittest

import bed as beds
from jobs import SECRET, JobTest
from netcase import DDRUN, WORKER, main

STALLS = [float(seconds) for seconds in os.environ.get("DDRUN_NET_STALLS", "10 30 90").split()]
TOLD_AFTER = 10
LOGS = "--tee=3", "--log-rotate=1M"


class SlowDiskTest(JobTest):
    hosts = 3

    @classmethod
    def setUpClass(cls):
        if obstacle := beds.obstacle() or beds.no_slow_disk():
            raise unittest.SkipTest(obstacle)
        super().setUpClass()

    def disk(self, number):
        disk = self.bed[number].slow_disk()
        self.addCleanup(disk.close)
        return disk

    def step(self, number):
        return self.bed.dir / f"step-{self.number}-{number}"

    def verbs(self):
        """Workers write a line at each step, which has to get to a disk."""
        steps = [word for number in range(len(STALLS)) for word in ("await", self.step(number), "print", f"line {number}")]
        return ["report", self.reports, "print", "up", *steps, "await", self.go_file]

    def agent(self, host, *options, out=None):
        """With `out`, a file, as its standard output."""
        args = [DDRUN, *self.options(), "--max-restarts=1", *options, "--", WORKER, *self.verbs()]
        if out:
            args = ["sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", out, *args]
        return host.start(args, env={"DDRUN_SECRET": SECRET})

    def hang(self, disks, write, seconds):
        """All of these hang from a moment when something is written to each, for this time."""
        for disk in disks:
            disk.hang()
        write()
        for disk in disks:
            self.until(disk.is_waited_for, f"something that waits for the disk of {disk.host}")
        time.sleep(seconds)  # what is tried is this time, not something to wait for
        for disk in disks:
            disk.go_on()

    def nothing_has_happened(self, jobs):
        self.assertEqual(self.attempts(), {0: list(range(6))}, "no restart")
        for job in jobs.values():
            self.assertNotRegex(job.err, r"\blost\b|restarting", self.said())

    def end(self, jobs):
        self.go()
        for job in jobs.values():
            self.assertEqual(job.wait(60), 0, self.said())
        self.nothing_has_happened(jobs)


class Members(SlowDiskTest):
    def test_events_logs_and_output(self):
        row = self.row("stall")
        disks = [self.disk(number) for number in (1, 2, 3)]
        events, logs, out = (disk.folder for disk in disks)
        jobs = {"h1": self.agent(self.bed[1], f"--events={events}/events"),
                "h2": self.agent(self.bed[2], f"--log-dir={logs}", *LOGS),
                "h3": self.agent(self.bed[3], out=out / "out")}
        self.wait_for_attempt(0, range(6))
        for number, seconds in enumerate(STALLS):
            def write(number=number):
                self.step(number).touch()
                # Its refusal is an event.
                refused = self.ddrun(self.bed[2], "--max-restarts=2")
                self.assertEqual(refused.wait(30), 125, self.said())
            self.hang(disks, write, seconds)
            self.nothing_has_happened(jobs)
            self.until(lambda number=number: (disks[2].behind / "out").read_text(encoding="ascii").count(f"line {number}\n") == 2,
                       "the output")
        if max(STALLS) > TOLD_AFTER:
            self.says(row, [jobs["h1"]])
        self.end(jobs)
        self.assertEqual((disks[0].behind / "events").read_text(encoding="ascii").count('"event":"refused"'), len(STALLS))
        logs = "".join(log.read_text(encoding="ascii") for log in disks[1].behind.glob("**/stdout.log"))
        for number in range(len(STALLS)):
            self.assertEqual(logs.count(f"line {number}\n"), 2, logs)


class Coordinators(SlowDiskTest):
    def test_logs(self):
        disks = [self.disk(1)]
        jobs = {host.name: self.agent(host) for host in self.bed.hosts[1:]}
        jobs["h1"] = self.agent(self.bed[1], f"--log-dir={disks[0].folder}", *LOGS)
        self.wait_for_attempt(0, range(6))
        for number, seconds in enumerate(STALLS):
            self.hang(disks, self.step(number).touch, seconds)
            self.nothing_has_happened(jobs)
        self.end(jobs)


class Ends(SlowDiskTest):
    def test_output_and_then_the_report(self):
        disk = self.disk(1)
        jobs = {host.name: self.agent(host) for host in self.bed.hosts[1:]}
        jobs["h1"] = self.agent(self.bed[1], f"--report={disk.folder}/report", out=disk.folder / "out")
        self.wait_for_attempt(0, range(6))
        for number, seconds in enumerate(STALLS[:-1]):
            self.hang([disk], self.step(number).touch, seconds)
            self.nothing_has_happened(jobs)
        self.step(len(STALLS) - 1).touch()
        out = disk.behind / "out"
        self.until(lambda: out.read_text(encoding="ascii").count("\n") == 2 * (1 + len(STALLS)), "all output")
        self.hang([disk], self.go, STALLS[-1])
        self.end(jobs)
        self.assertIn('"verdict": "success"', (disk.behind / "report").read_text(encoding="ascii"))

    def test_the_files_of_the_next_attempt(self):
        disk = self.disk(2)
        fails = ["rank", "3", "attempt", "0", "touch", disk.hold, "exit", "7", ";", ";"]
        verbs = ["report", self.reports, *fails, "await", self.go_file]
        jobs = {"h1": self.ddrun(self.bed[1], "--max-restarts=1", verbs=verbs),
                "h2": self.ddrun(self.bed[2], "--max-restarts=1", f"--log-dir={disk.folder}", *LOGS, verbs=verbs),
                "h3": self.ddrun(self.bed[3], "--max-restarts=1", verbs=verbs)}
        self.until(disk.is_waited_for, "something that waits for the disk")
        time.sleep(10)  # what is tried is this time
        disk.go_on()
        self.wait_for_attempt(1, range(6))
        self.go()
        self.assertEqual([job.wait(60) for job in jobs.values()], [0, 0, 0], self.said())
        self.assertNotRegex(jobs["h1"].err, r"\blost\b", self.said())


if __name__ == "__main__":
    main()
