#!/usr/bin/env python3
"""configs/fenced-checkpoint.sh: goes on after a restart and in a next run, and a worker of an earlier
run or round writes nothing."""

import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main, wait_until  # noqa: E402

SCRIPT = ROOT / "configs/fenced-checkpoint.sh"
DDRUN = os.environ.get("DDRUN_TEST_PROGRAM", ROOT / "build/dev/bin/ddrun")


@unittest.skipUnless(shutil.which("flock"), "flock not installed")
class FencedCheckpoint(unittest.TestCase):
    longMessage = True
    numbers = itertools.count()

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-fence-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.shared = self.folder / "shared"

    def work(self, text):
        """What a step does."""
        script = self.folder / f"work-{len(list(self.folder.iterdir()))}"
        script.write_text("#!/bin/sh\n" + text)
        script.chmod(0o755)
        return str(script)

    def read(self, name):
        return (self.shared / name).read_text().split()

    def run_of(self, *args, work):
        """A run of ddrun with one restart."""
        return subprocess.run([DDRUN, "-n", "2", "--max-restarts=1", "--no-restart-on=3", "--rdzv-id=job", SCRIPT, self.shared,
                               *args], env={**os.environ, "WORK": work}, capture_output=True, text=True, timeout=60, check=False)

    def broken_work(self, at):
        """Rank 0 kills itself once where this is the newest checkpoint; notes the rounds of steps."""
        return self.work(f'[ "$RANK" = 0 ] || exit 0\n[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && [ "$(cat {self.shared}/checkpoint '
                         f'2>/dev/null)" = {at} ] && kill -9 $PPID && exit 0\necho "$DDRUN_ROUND" >> {self.folder}/steps\n')

    def steps(self):
        return (self.folder / "steps").read_text().split()

    def test_a_job_goes_on_where_it_was(self):
        done = self.run_of("5", work=self.broken_work(at=2))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.read("checkpoint"), ["5"])
        self.assertEqual(self.read("round"), ["1", "2", "job"])
        self.assertEqual(self.steps(), ["1", "1", "2", "2", "2"])
        self.assertEqual(sorted(path.name for path in self.shared.iterdir()), ["checkpoint", "lock", "round"])

    def test_the_same_job_again_resumes(self):
        done = self.run_of("3", "1", work=self.broken_work(at=2))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.steps(), ["1", "1", "2"])
        # It begins at round 1 again, and is restarted too.
        done = self.run_of("6", "2", work=self.broken_work(at=4))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.steps(), ["1", "1", "2", "1", "2", "2"])
        self.assertEqual(self.read("checkpoint"), ["6"])
        self.assertEqual(self.read("round"), ["2", "2", "job"])

    def test_a_run_needs_a_number_of_its_own(self):
        done = self.run_of("1", "7", work=self.broken_work(at=0))
        self.assertEqual(done.returncode, 0, done.stderr)
        # The restart would be of a greater round than the note's.
        for number in ("7", "6"):
            again = self.run_of("9", number, work=self.broken_work(at=0))
            self.assertEqual(again.returncode, 3, again.stderr)
            self.assertIn(f"run 7, round 1 of job; this one (run {number}, round 1 of job) is over; to go on in a new run give it "
                          "a number greater than 7", again.stderr)
        self.assertEqual(self.read("checkpoint"), ["1"])
        self.assertEqual(self.read("round"), ["7", "1", "job"])
        for number in ("-1", "x", "1 2", "9" * 30):
            again = self.run_of("9", number, work=self.broken_work(at=0))
            self.assertEqual(again.returncode, 2, again.stderr)
            self.assertIn(f"the number of the run is to be one like 2, not {number}", again.stderr)

    def worker(self, number, steps, job="job", run=1, **more):
        """Rank 0 of a round, as ddrun starts it; its step waits for a file."""
        go = self.folder / f"go-{job}-{run}-{number}-{next(self.numbers)}"
        work = self.work(f"touch {go}.waits\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
        variables = {"PATH": os.environ["PATH"], "RANK": "0", "TORCHELASTIC_RUN_ID": job, "DDRUN_ROUND": str(number)}
        process = subprocess.Popen([SCRIPT, self.shared, str(steps), str(run)], env={**variables, "WORK": work}, text=True,
                                   stderr=subprocess.PIPE, start_new_session=True, **more)
        self.addCleanup(self.end, process)
        return process, go

    @staticmethod
    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def waits(self, go):
        wait_until(pathlib.Path(f"{go}.waits").exists, what="a step")

    def is_over(self, process, note, mine):
        said = process.communicate(timeout=30)[1]
        self.assertEqual(process.returncode, 3, said)
        self.assertIn("another round writes to", said)
        self.assertIn(f"{note}; this one ({mine}) is over", said)

    def check_replaced(self, old, new, note, mine):
        old, go_old = old
        self.waits(go_old)
        new, go_new = new()
        self.waits(go_new)
        # The new round has read the checkpoint and written none yet: the old one must not come between.
        go_old.touch()
        self.is_over(old, note, mine)
        self.assertFalse((self.shared / "checkpoint").exists())
        go_new.touch()
        self.assertEqual(new.wait(30), 0)
        self.assertEqual(self.read("checkpoint"), ["1"])

    def test_a_worker_of_an_earlier_round_writes_nothing(self):
        self.check_replaced(self.worker(3, steps=100), lambda: self.worker(4, steps=1),
                            "run 1, round 4 of job", "run 1, round 3 of job")

    def test_a_worker_of_an_earlier_run_writes_nothing(self):
        for rounds in ((3, 1), (1, 1), (1, 2)):
            with self.subTest(rounds=rounds):
                shutil.rmtree(self.shared, ignore_errors=True)
                self.check_replaced(self.worker(rounds[0], steps=100), lambda last=rounds[1]: self.worker(last, steps=1, run=2),
                                    f"run 2, round {rounds[1]} of job", f"run 1, round {rounds[0]} of job")

    def test_one_that_begins_late_is_turned_away(self):
        new, go_new = self.worker(4, steps=1, run=2)
        go_new.touch()
        self.assertEqual(new.wait(30), 0)
        # The last round's own: it has been started twice, which ddrun never does with a round.
        for number, run, job in ((3, 2, "job"), (4, 2, "job"), (5, 1, "job"), (5, 2, "other"), (5, 1, "other")):
            late, _ = self.worker(number, steps=2, run=run, job=job)
            self.is_over(late, "run 2, round 4 of job", f"run {run}, round {number} of {job}")
        self.assertEqual(self.read("checkpoint"), ["1"])
        other, go_other = self.worker(1, steps=2, run=3, job="other")
        go_other.touch()
        self.assertEqual(other.wait(30), 0)
        self.assertEqual(self.read("checkpoint"), ["2"])
        self.assertEqual(self.read("round"), ["3", "1", "other"])

    def test_a_note_that_cannot_be_understood_is_left_alone(self):
        self.shared.mkdir()
        for note in ("job 2", "", "1 x job", "1"):
            (self.shared / "round").write_text(note + "\n")
            late, _ = self.worker(9, steps=1)
            late.communicate(timeout=30)
            self.assertEqual(late.returncode, 3)
            self.assertEqual((self.shared / "round").read_text(), note + "\n")


if __name__ == "__main__":
    main()
