#!/usr/bin/env python3
"""configs/fenced-checkpoint.sh: goes on after a restart, and a worker of an earlier round writes nothing."""

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

    def test_a_job_goes_on_where_it_was(self):
        work = self.work('[ "$RANK" = 0 ] || exit 0\n[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && [ "$(cat '
                         f'{self.shared}/checkpoint 2>/dev/null)" = 2 ] && kill -9 $PPID && exit 0\n'
                         f'echo "$DDRUN_ROUND" >> {self.folder}/steps\n')
        done = subprocess.run([DDRUN, "-n", "2", "--max-restarts=1", "--rdzv-id=job", SCRIPT, self.shared, "5"],
                              env={**os.environ, "WORK": work}, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.read("checkpoint"), ["5"])
        self.assertEqual(self.read("round"), ["job", "2"])
        self.assertEqual((self.folder / "steps").read_text().split(), ["1", "1", "2", "2", "2"])
        self.assertEqual(sorted(path.name for path in self.shared.iterdir()), ["checkpoint", "lock", "round"])

    def worker(self, number, steps, job="job", **more):
        """Rank 0 of a round, as ddrun starts it; its step waits for a file."""
        go = self.folder / f"go-{job}-{number}"
        work = self.work(f"touch {go}.waits\nwhile [ ! -e {go} ]; do sleep 0.05; done\n")
        variables = {"PATH": os.environ["PATH"], "RANK": "0", "TORCHELASTIC_RUN_ID": job, "DDRUN_ROUND": str(number)}
        process = subprocess.Popen([SCRIPT, self.shared, str(steps)], env={**variables, "WORK": work}, text=True,
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

    def test_a_worker_of_an_earlier_round_writes_nothing(self):
        old, go_old = self.worker(3, steps=100)
        self.waits(go_old)
        new, go_new = self.worker(4, steps=1)
        self.waits(go_new)
        # The new round has read the checkpoint and written none yet: the old one must not come between.
        go_old.touch()
        said = old.communicate(timeout=30)[1]
        self.assertEqual(old.returncode, 3, said)
        self.assertIn("another round writes to", said)
        self.assertIn("job 4; this one (job 3) is over", said)
        self.assertFalse((self.shared / "checkpoint").exists())
        go_new.touch()
        self.assertEqual(new.wait(30), 0)
        self.assertEqual(self.read("checkpoint"), ["1"])

    def test_one_that_begins_late_is_turned_away_and_another_job_is_not(self):
        new, go_new = self.worker(4, steps=1)
        go_new.touch()
        self.assertEqual(new.wait(30), 0)
        late, _ = self.worker(3, steps=2)
        self.assertIn("job 4; this one (job 3) is over", late.communicate(timeout=30)[1])
        self.assertEqual(late.returncode, 3)
        other, go_other = self.worker(1, steps=2, job="other")
        go_other.touch()
        self.assertEqual(other.wait(30), 0)
        self.assertEqual(self.read("checkpoint"), ["2"])
        self.assertEqual(self.read("round"), ["other", "1"])


if __name__ == "__main__":
    main()
