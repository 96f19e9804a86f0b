"""docs/when-things-go-wrong.md, "Agents and machines": a disk that takes nothing for a while."""

import os
import pathlib

from jobs import JobTest
from netcase import DDRUN, main

HELD_WRITES = os.environ.get("DDRUN_TEST_HELD_WRITES", "")


class Stalls(JobTest):
    hosts = 2

    def setUp(self):
        super().setUp()
        if not pathlib.Path(HELD_WRITES).is_file():
            self.skipTest("no library to hold writes with")
        if b"ld-linux" not in pathlib.Path(DDRUN).read_bytes()[:4096]:
            self.skipTest("a static program loads no library that is slow")
        self.disk = self.bed.dir / f"disk-{self.number}"
        self.disk.mkdir()
        self.back = self.bed.dir / f"back-{self.number}"
        self.addCleanup(self.back.touch)

    def running(self, *options):
        """h2 writes to a disk that hangs at its workers' first line, until it is back."""
        verbs = ["report", str(self.reports), "print", "up", "await", str(self.go_file)]
        held = {"LD_PRELOAD": HELD_WRITES, "DDRUN_TEST_HELD_PATH": f"{self.disk}/", "DDRUN_TEST_HELD_UNTIL": str(self.back)}
        jobs = {"h1": self.ddrun(self.bed[1], *options, verbs=verbs),
                "h2": self.ddrun(self.bed[2], *options, f"--log-dir={self.disk}", "--tee=3", "--log-rotate=1M", verbs=verbs,
                                 env=held)}
        self.until((self.disk / ".held").exists, "a write that hangs")
        return jobs

    def test_for_longer_than_the_heartbeat(self):
        row = self.row("stall")
        jobs = self.running("--max-restarts=1")
        self.until(lambda: "answers, but its ddrun waits" in jobs["h1"].err, "a word about it")
        self.back.touch()
        self.until(lambda: "goes on after" in jobs["h1"].err, "a word that it is over")
        self.go()
        self.ends(row, [jobs["h1"]], 0)
        self.assertEqual(jobs["h2"].wait(30), 0, self.said())
        self.assertEqual(self.attempts(), {0: [0, 1, 2, 3]}, "no restart")

    def test_for_longer_than_the_stall_timeout(self):
        row = self.row("long-stall")
        jobs = self.running("--max-restarts=1", "--stall-timeout=4")
        self.until(lambda: "has not come round for" in jobs["h1"].err, "the loss of h2")
        self.back.touch()
        self.wait_for_attempt(1, range(4))
        self.go()
        self.ends(row, [jobs["h1"]], 0)
        self.assertEqual(jobs["h2"].wait(30), 0, self.said())


if __name__ == "__main__":
    main()
