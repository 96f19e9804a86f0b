"""What a worker says about its own failure with PyTorch's `record`."""
import json

from harness import DDRUN, TorchTest, main, run_ddrun, run_torchrun, script


def without_times(content):
    """What may be compared, which is all but the time."""
    content["message"]["extraInfo"].pop("timestamp")
    return content


class Record(TorchTest):
    def test_message_traceback_and_a_copy_for_the_launcher_around_us(self):
        args = ["--nproc-per-node=2", script("recorded.py"), "training"]
        ours = run_ddrun([f"--report={self.tmp}/report.json", f"--log-dir={self.tmp}/logs", *args],
                         env={"TORCHELASTIC_ERROR_FILE": self.tmp / "ours.json"})
        theirs = run_torchrun(args, env={"TORCHELASTIC_ERROR_FILE": self.tmp / "theirs.json"})
        self.assertEqual((ours.code, theirs.code), (1, 1), f"{ours}\n{theirs}")
        self.assertIn("ddrun: error: rank 1 exited with code 1", ours.err)
        self.assertIn("  message: ValueError: boom in training\n", ours.err)
        self.assertIn("ValueError: boom in training", theirs.err)

        error = json.loads((self.tmp / "report.json").read_text())["attempts"][0]["workers"][1]["error"]
        self.assertEqual(error["message"], "ValueError: boom in training")
        self.assertIn("Traceback (most recent call last):\n", error["traceback"])
        self.assertIn('raise ValueError(f"boom in {sys.argv[1]}")', error["traceback"])
        self.assertTrue(error["file"].endswith("/error.json"))
        self.assertNotIn("  trace:", ours.err)  # it stands on the screen just above

        copied = json.loads((self.tmp / "ours.json").read_text())
        self.assertEqual(copied["message"]["errorCode"], 1)
        self.assertEqual(without_times(copied), without_times(json.loads((self.tmp / "theirs.json").read_text())))

    def test_a_script_of_run_path_is_recorded_without_asking(self):
        boom = self.tmp / "boom"
        boom.write_text("import sys\nraise ValueError(f'no data in {sys.argv[1]}')\n")
        args = ["--run-path", str(boom), "here"]
        ours = run_ddrun([f"--log-dir={self.tmp}/ours", *args])
        theirs = run_torchrun([f"--log-dir={self.tmp}/theirs", *args])
        self.assertEqual((ours.code, theirs.code), (1, 1), f"{ours}\n{theirs}")
        self.assertIn("  message: ValueError: no data in here\n", ours.err)
        self.assertIn("ValueError: no data in here", theirs.err)
        mine = self.tmp / "ours/latest/attempt_0/0/error.json"
        [other] = self.tmp.glob("theirs/*/attempt_0/0/error.json")
        contents = [without_times(json.loads(file.read_text())) for file in (mine, other)]
        stacks = [content["message"]["extraInfo"].pop("py_callstack") for content in contents]
        self.assertEqual(*contents)
        for stack in stacks:
            self.assertTrue(stack.endswith("ValueError: no data in here\n"), stack)

    def test_a_launcher_around_us_shows_it(self):
        inner = [DDRUN, "--nproc-per-node=2", script("recorded.py"), "the inner job"]
        outer = run_ddrun(["--nproc-per-node=1", *inner])
        self.assertEqual(outer.code, 1, str(outer))
        self.assertEqual(outer.err.count("message: ValueError: boom in the inner job"), 2, str(outer))
        around = run_torchrun(["--nproc-per-node=1", "--no-python", *inner])
        self.assertEqual(around.code, 1, str(around))
        self.assertIn("ValueError: boom in the inner job", around.err.partition("Root Cause")[2], str(around))


if __name__ == "__main__":
    main()
