"""docs/several-machines-failures.md: links."""

import time

from jobs import JobTest
from netcase import main


class Wires(JobTest):
    hosts = 3

    def running(self, *options, **more):
        jobs = self.start(*options, verbs=["report", str(self.reports), "await", str(self.go_file)], **more)
        self.wait_for_workers()
        return jobs

    def ends_well(self, row, jobs):
        self.go()
        self.ends(row, jobs.values(), 0)
        self.assertEqual(self.attempts(), {0: [0, 1, 2, 3, 4, 5]}, "no restart")

    def test_a_short_cut(self):
        row = self.row("short-cut")
        jobs = self.running("--heartbeat-misses=6")
        self.bed[2].cut()
        time.sleep(1)  # what is tried is this time, not something to wait for
        self.bed[2].heal()
        # If it has been taken for lost after all, that shows within the heartbeat.
        time.sleep(7)
        self.ends_well(row, jobs)

    def test_a_long_cut(self):
        jobs = self.loses_h2(self.row("long-cut"), self.bed[2].cut)
        self.assertRegex(jobs["h2"].err, "coordinator on h1")

    def test_a_connection_that_is_reset(self):
        row = self.row("reset")
        jobs = self.running()
        for _ in range(3):
            if not self.bed[2].reset():
                self.skipTest("the kernel resets no connections")
            time.sleep(1.5)  # the next heartbeat is answered by a new connection
        self.ends_well(row, jobs)

    def loses_h2(self, row, how):
        jobs = self.running()
        how()
        self.ends(row, [jobs["h1"], jobs["h3"]])
        self.assertEqual(jobs["h2"].wait(40), 125, self.said())
        return jobs

    def test_a_host_that_hears_nothing(self):
        self.loses_h2(self.row("deaf"), self.bed[2].deaf)

    def test_a_host_that_is_not_heard(self):
        self.loses_h2(self.row("mute"), self.bed[2].mute)

    def test_a_slow_link(self):
        row = self.row("slow-link")
        self.bed[2].rate("64kbit")
        jobs = self.running()
        time.sleep(4)
        self.ends_well(row, jobs)

    def test_a_third_of_all_packets_is_lost(self):
        row = self.row("loss")
        self.bed[2].loss(30)
        jobs = self.running("--heartbeat-misses=30")
        time.sleep(4)
        self.ends_well(row, jobs)

    def test_packets_are_late_and_some_are_lost(self):
        row = self.row("late-loss")
        self.bed[2].delay(200)
        self.bed[2].loss(2)
        jobs = self.running()
        time.sleep(10)
        self.ends_well(row, jobs)
        self.assertNotRegex(jobs["h1"].err, r"\blost\b", self.said())


if __name__ == "__main__":
    main()
