"""The test bed itself: what the other tests here rely on."""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

import bed as beds
from netcase import DDRUN, WORKER, NetTest, main, wait_until


class Hosts(NetTest):
    hosts = 3

    def test_clocks_are_hours_apart(self):
        read = ["python3", "-c", "import time; print(time.clock_gettime(time.CLOCK_MONOTONIC), time.time())"]
        one, two = ([float(word) for word in self.bed[i].run(read).out.split()] for i in (1, 2))
        self.assertAlmostEqual(two[0] - one[0], 3600, delta=20)
        self.assertAlmostEqual(two[1] - one[1], 0, delta=20)

    def test_a_cut_host_answers_nobody_and_a_healed_one_everybody(self):
        self.bed[2].cut()
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))
        self.assertFalse(self.bed[2].answers(self.bed[1], 0.5))
        self.assertTrue(self.bed[1].answers(self.bed[3]), "the others are not concerned")
        self.bed[2].heal()
        wait_until(lambda: self.bed[1].answers(self.bed[2]), 30, "an answer")
        wait_until(lambda: self.bed[2].answers(self.bed[1]), 30, "an answer")

    def test_deaf_and_mute(self):
        self.bed[2].mute()
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))
        self.bed[2].open()
        self.assertTrue(self.bed[1].answers(self.bed[2]))
        self.bed[2].deaf()
        self.assertFalse(self.bed[1].answers(self.bed[2], 0.5))

    def test_a_crash_leaves_nothing_and_a_boot_brings_it_back(self):
        self.bed[3].start(["sh", "-c", "sleep 1000 & setsid sleep 1000 & wait"])
        wait_until(lambda: len(self.bed[3].processes()) == 3, 10, "three processes")
        self.bed[3].crash()
        self.assertEqual(self.bed[3].processes(everything=True), [])
        self.assertFalse(self.bed[3].is_up())
        self.bed[3].boot()
        self.assertTrue(self.bed[1].answers(self.bed[3]))
        self.assertEqual(self.bed[3].processes(), [])

    def test_roles(self):
        job = self.bed[1].start([DDRUN, "--nproc-per-node=2", WORKER, "pause"])
        wait_until(lambda: len(self.bed[1].of_role("worker")) == 2, 20, "two workers")
        self.assertEqual([len(self.bed[1].of_role(role)) for role in ("guard", "sweeper", "agent")], [1, 1, 1])
        self.bed[1].signal("agent", signal.SIGKILL)
        job.wait(30)
        self.assertEqual(self.left(), {})

    def test_what_is_left_is_seen(self):
        self.bed[2].start(["sleep", "1000"])
        wait_until(lambda: self.bed[2].processes(), 10, "the process")
        self.assertIn("sleep 1000", self.left(0.1)["h2"][0])
        self.bed.mend()


class Life(unittest.TestCase):
    def setUp(self):
        if obstacle := beds.obstacle():
            self.skipTest(obstacle)

    def test_the_bed_dies_with_its_owner(self):
        script = ("import sys, time; sys.path.insert(0, sys.argv[1]); import bed; b = bed.Bed(2)\n"
                  "b[1].start(['sleep', '1000'])\n"
                  "print(b.dir, b[1].init(), b.head.init(), flush=True); time.sleep(1000)")
        owner = subprocess.Popen([sys.executable, "-c", script, str(pathlib.Path(beds.__file__).parent)],
                                 stdout=subprocess.PIPE, text=True)
        folder, *pids = owner.stdout.readline().split()
        self.assertTrue(all(os.path.exists(f"/proc/{pid}") for pid in pids), str(pids))
        owner.kill()
        owner.wait()
        owner.stdout.close()
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 20, "the end of the hosts")

        def removed():  # by this call, or by another bed that begins now
            beds.remove_old()
            return not os.path.exists(folder)
        wait_until(removed, 20, "the end of the bed's folder")


if __name__ == "__main__":
    main()
