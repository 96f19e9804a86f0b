"""docs/several-machines-failures.md, "No effect": a disk or a terminal that takes nothing for a while."""

import os
import pty
import termios
import time

from jobs import SECRET, JobTest
from netcase import DDRUN, WORKER, held_writes, is_static, main


class Stalls(JobTest):
    hosts = 2

    def setUp(self):
        super().setUp()
        if obstacle := is_static():
            self.skipTest(obstacle)
        self.disk = self.bed.dir / f"disk-{self.number}"
        self.disk.mkdir()
        self.back = self.bed.dir / f"back-{self.number}"
        self.addCleanup(self.back.touch)

    def running(self, *options):
        """h2 writes to a disk that hangs at its workers' first line, until it is back."""
        verbs = ["report", str(self.reports), "print", "up", "await", str(self.go_file)]
        jobs = {"h1": self.ddrun(self.bed[1], *options, verbs=verbs),
                "h2": self.ddrun(self.bed[2], *options, f"--log-dir={self.disk}", "--tee=3", "--log-rotate=1M", verbs=verbs,
                                 env=held_writes(self.disk, self.back))}
        self.until((self.disk / ".held").exists, "a write that hangs")
        return jobs

    def test_for_longer_than_the_heartbeat(self):
        row = self.row("stall")
        jobs = self.running("--max-restarts=1")
        self.until(lambda: "answers, but its ddrun waits" in jobs["h1"].err, "a word about it")
        self.back.touch()
        self.go()
        self.ends(row, [jobs["h1"]], 0)
        self.assertEqual(jobs["h2"].wait(30), 0, self.said())
        self.assertEqual(self.attempts(), {0: [0, 1, 2, 3]}, "no restart")


class Terminals(JobTest):
    hosts = 2

    def test_a_terminal_that_is_stopped(self):
        row = self.row("stopped-terminal")
        ours, theirs = pty.openpty()
        for end in (ours, theirs):
            self.addCleanup(os.close, end)
        os.set_blocking(ours, False)
        shown = bytearray()

        def lines(text):
            try:
                while data := os.read(ours, 1 << 16):
                    shown.extend(data)
            except BlockingIOError:
                pass
            return shown.count(text)
        step = self.bed.dir / f"step-{self.number}"
        verbs = ["report", self.reports, "print", "up", "await", step, "print", "more", "await", self.go_file]
        args = [DDRUN, *self.options(), "--max-restarts=1", "--fold=never", "--", WORKER, *verbs]
        jobs = {"h1": self.ddrun(self.bed[1], "--max-restarts=1", verbs=verbs),
                "h2": self.bed[2].start(["sh", "-c", 'terminal=$1; shift; exec "$@" >"$terminal"', "sh", os.ttyname(theirs), *args],
                                        env={"DDRUN_SECRET": SECRET})}
        self.until(lambda: lines(b"up") == 2, "the first lines")
        termios.tcflow(theirs, termios.TCOOFF)  # as Ctrl-S does
        step.touch()
        time.sleep(5)  # what is tried is this time, longer than the heartbeat
        self.assertEqual(lines(b"more"), 0, shown)
        termios.tcflow(theirs, termios.TCOON)
        self.until(lambda: lines(b"more") == 2, "the lines that have waited")
        self.go()
        self.ends(row, jobs.values(), 0)
        self.assertEqual(self.attempts(), {0: [0, 1, 2, 3]}, "no restart")
        for job in jobs.values():
            self.assertNotRegex(job.err, r"\blost\b|restarting", self.said())


if __name__ == "__main__":
    main()
