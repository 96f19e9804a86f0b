"""PyTorch's file-based watchdog timers, with ddrun as the server."""
import json
import os
import pathlib
import re
import stat
import subprocess

from harness import TorchTest, main, run_ddrun, script


class FileTimer(TorchTest):
    def run_timers(self, mode, *options, **env):
        bystander = subprocess.Popen(["sleep", "600"])
        try:
            result = run_ddrun(
                ["--label=none", "--nproc-per-node=2", f"--report={self.tmp}/report.json", *options,
                 script("file_timer.py"), mode],
                env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "NOT_OURS": bystander.pid, **env})
            self.assertIsNone(bystander.poll(), str(result))
        finally:
            bystander.kill()
            bystander.wait()
        self.files = set(re.findall(r"rank \d in attempt \d: (.*)", result.out))
        self.attempts = json.loads((self.tmp / "report.json").read_text())["attempts"]
        for file in self.files:
            self.assertFalse(os.path.exists(file), str(result))
        return result

    def test_a_rank_that_is_not_through_in_time_is_ended_and_the_group_restarted(self):
        result = self.assert_success(self.run_timers("stuck", "--max-restarts=1"))
        self.assertEqual(len(self.attempts), 2)
        dead = self.attempts[0]["workers"][1]
        self.assertEqual(self.attempts[0]["first_failed_rank"], 1)
        self.assertEqual(dead["signal"]["name"], "SIGTERM")
        self.assertEqual(dead["why"], "watchdog timer train.py#41 expired: ddrun sent SIGTERM")
        self.assertIn("rank 1: watchdog timer train.py#41 expired: ddrun sent SIGTERM", result.err)
        self.assertRegex(result.err, r"rank 1 \(pid \d+\) killed by SIGTERM.*: watchdog timer train.py#41 expired: "
                                     r"ddrun sent SIGTERM; restarting all 2 workers")
        self.assertIn("was given something that is no timer: ignored", result.err)
        self.assertEqual(len(re.findall(r"watchdog timer not ours of process \d+ has expired, which is not one of this "
                                        r"job: left alone", result.err)), 1, str(result))
        self.assertEqual(len(self.files), 1, str(result))  # one file for all attempts
        self.assertTrue(self.files.pop().startswith(f"{os.environ.get('TMPDIR', '/tmp')}/watchdog_timer_"))

    def test_a_process_of_a_rank_is_ended_and_named(self):
        file = self.tmp / "my timer"
        os.mkfifo(file)  # one that a job before has left is replaced
        before = os.stat(file)
        result = self.run_timers("child", TORCHELASTIC_TIMER_FILE=str(file))
        self.assertEqual(result.code, 1, str(result))
        self.assertEqual(self.files, {str(file)})
        self.assertTrue(stat.S_ISFIFO(before.st_mode))
        self.assertIn("the child ended with -9", result.err)
        self.assertRegex(self.attempts[0]["workers"][1]["why"],
                         r"^watchdog timer loading of its process \d+ expired: ddrun sent SIGKILL$")

    def test_what_is_no_fifo_is_not_touched(self):
        file = self.tmp / "precious"
        file.write_text("data")
        result = run_ddrun(["--nproc-per-node=1", "true"],
                           env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(file)})
        self.assertEqual(result.code, 125, str(result))
        self.assertIn("is there already, and is no FIFO", result.err)
        self.assertEqual(pathlib.Path(file).read_text(), "data")


if __name__ == "__main__":
    main()
