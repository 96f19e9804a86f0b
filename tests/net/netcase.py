"""What tests in several hosts share: the test case with its bed, and the words of what is skipped."""

import os
import pathlib
import time
import unittest

import bed as beds
from bed import wait_until
from cases import main  # noqa: F401  for the tests

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build/dev/bin"
DDRUN = os.environ.get("DDRUN_TEST_PROGRAM", str(BUILD / "ddrun"))
WORKER = os.environ.get("DDRUN_TEST_WORKER", str(BUILD / "ddrun_test_worker"))
CLOCK_OFFSET = os.environ.get("DDRUN_TEST_CLOCK_OFFSET",
                              str(BUILD.parent / "tests/helpers/libddrun_test_clock_offset.so"))
HELD_WRITES = os.environ.get("DDRUN_TEST_HELD_WRITES", str(BUILD.parent / "tests/helpers/libddrun_test_held_writes.so"))
ALLREDUCE = os.environ.get("DDRUN_TEST_ALLREDUCE", str(BUILD / "ddrun-allreduce"))


def is_static():
    """Why no library of the test's can be loaded into ddrun; empty if one can."""
    if b"ld-linux" not in pathlib.Path(DDRUN).read_bytes()[:4096]:
        return "a static program loads no library"
    return ""


def held_writes(path, until):
    """Variables with which what ddrun writes below `path` waits for a file `until`: tests/helpers/held_writes.cpp."""
    return {"LD_PRELOAD": HELD_WRITES, "DDRUN_TEST_HELD_PATH": f"{path}/", "DDRUN_TEST_HELD_UNTIL": str(until)}


class NetTest(unittest.TestCase):
    """A bed for the tests of a class, `self.bed`, mended after each of them; each has to leave nothing running."""
    hosts = 2
    bed_options = {}
    longMessage = True
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        obstacle = beds.obstacle()
        if obstacle:
            raise unittest.SkipTest(obstacle)
        cls.bed = beds.Bed(cls.hosts, **cls.bed_options)
        cls.addClassCleanup(cls.bed.close)

    def setUp(self):
        self.addCleanup(self._mend)

    def _mend(self):
        said = "\n".join(str(started) for started in self.bed.started)
        left = self.left()
        self.bed.mend()
        self.assertFalse(left, f"left running\n{said}")

    def clock_jumps_to(self, host, seconds):
        """All of ddrun and of its workers that runs there is seen to be met by it."""
        host.clock_jumps_to(seconds)
        shown = host.run(["date", "+%s"])
        self.assertAlmostEqual(float(shown.out) - time.time(), seconds, delta=20, msg=f"the clock of {host}")
        def apart():
            return all(host.has_clock_apart(seen.pid) or not os.path.exists(f"/proc/{seen.pid}/exe")
                       for seen in host.processes() if seen.name in ("ddrun", "job-sweeper"))
        # One that is just becoming its program has nothing mapped yet.
        wait_until(apart, 10, f"the clock of {host} in all of ddrun there")

    def left(self, patience=15):
        """What runs on the hosts; waits a little for what is on its way out."""
        def running():
            return {host.name: [str(seen) for seen in seen_there] for host in self.bed.hosts
                    if (seen_there := host.processes())}
        try:
            wait_until(lambda: not running(), patience)
        except AssertionError:
            return running()
        return {}
