#!/usr/bin/env python3
"""Programs of Python by all their names, and what --run-path promises, with any Python and no package."""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from cases import main  # noqa: E402
from running import DDRUN, run  # noqa: E402

SAY = "import os, sys; print(os.environ['RANK'], __name__, sys.argv[1:], flush=True)\n"

# Each worker leaves a file when it has come to its end, later with each rank, and at its exit says whose it sees.
RETURNS = """
import atexit, os, sys, time
rank, folder = int(os.environ["RANK"]), sys.argv[1]
atexit.register(lambda: print(rank, "saw", *sorted(os.listdir(folder)), flush=True))
time.sleep(rank / 4)
open(os.path.join(folder, str(rank)), "w").close()
if rank == 1:
    sys.exit(0)
"""

# The others do not end by themselves: a test with a rank that fails does not wait for them.
FAILS = """
import os, time
def load():
    raise ValueError("no data")
if os.environ["RANK"] == "1":
    load()
time.sleep(60)
"""


class InAFolder(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-python-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def file(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def ddrun(self, *args, **env):
        return run([DDRUN, *args], cwd=self.folder, timeout=60, env={"TMPDIR": str(self.folder), **env})


class Meeting(InAFolder):
    """A script whose ranks are to meet, and never connect to the store."""
    SCRIPT = "import os\nif 'MEET' in os.environ:\n    %s\n"
    NOTE = "ddrun: note: train.py has Accelerator(…), but no rank connected to the store: all 2 ran alone; "

    def notes(self, text, *args, program=("train.py",), code=0):
        self.file("train.py", text)
        result = self.ddrun(*args, *program)
        self.assertEqual(result.code, code, result.err)
        return [line for line in result.err.splitlines() if "ran alone" in line]

    def test_they_did_not(self):
        for program in (["train.py"], [sys.executable, "train.py"]):
            [note] = self.notes(self.SCRIPT % "Accelerator(cpu=True)", "-n", "2", program=program)
            self.assertEqual(note, self.NOTE + "fine if they are independent, else give --env ACCELERATE_USE_CPU=true, if on CPUs")
        for call in "dist.init_process_group('gloo')", "Trainer(model).fit()":
            [note] = self.notes(self.SCRIPT % call, "-n", "2")
            self.assertIn(f"train.py has {call.split('.')[-1 if 'dist' in call else 0].split('(')[0]}(…)", note)

    def test_no_note(self):
        text = self.SCRIPT % "Accelerator()"
        port = "os.environ['MASTER_' + 'PORT']"
        for why, others in (("one worker", (text,)), ("the user wants none", (text, "-n", "2", "-q")),
                            ("a class of its own", ("class Trainer():\n    pass\nTrainer()\n", "-n", "2")),
                            ("a place of its own", (text + "at = 'tcp://10.0.0.1:1'\n", "-n", "2")),
                            ("no such call", ("print()", "-n", "2")),
                            ("a rank has connected", (text + f"import socket\nif os.environ['RANK'] == '1':\n"
                             f"    socket.create_connection((os.environ['MASTER_ADDR'], {port}))\n", "-n", "2"))):
            with self.subTest(why):
                self.assertEqual(self.notes(*others), [])
        self.assertEqual(self.notes(text + "raise SystemExit(3)", "-n", "2", code=3), [])


class Names(InAFolder):
    def setUp(self):
        super().setUp()
        self.file("app/__main__.py", SAY)
        self.file("by-line", f"#!/usr/bin/env python3\n{SAY}")
        self.file("text", SAY)
        with zipfile.ZipFile(self.folder / "archive", "w") as archive:
            archive.writestr("__main__.py", SAY)
        shutil.copy(self.folder / "archive", self.folder / "app.pyz")

    def test_a_program_that_only_python_can_run_is_run_by_python(self):
        for args in (["app"], ["./app"], [str(self.folder / "app")], ["app.pyz"], ["archive"], ["./archive"], ["by-line"],
                     ["./by-line"], ["--run-path", "text"], ["--run-path", "app"], ["--run-path", "app.pyz"]):
            with self.subTest(args):
                result = self.ddrun("--nproc-per-node=2", *args, "a", "-b")
                self.assertEqual(result.code, 0, str(result))
                self.assertEqual(sorted(result.out.splitlines()),
                                 [f"[{rank}] {rank} __main__ ['a', '-b']" for rank in (0, 1)], str(result))


class RunPath(InAFolder):
    def test_nobody_leaves_before_all_have_returned(self):
        self.file("returns", RETURNS)
        (self.folder / "ends").mkdir()
        result = self.ddrun("--nproc-per-node=3", "--run-path", "returns", "ends")
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual(sorted(result.out.splitlines()), [f"[{rank}] {rank} saw 0 1 2" for rank in range(3)], str(result))

    def test_an_exception_is_in_the_error_file_and_in_the_report(self):
        self.file("fails", FAILS)
        result = self.ddrun("--nproc-per-node=2", "--run-path", "-r3", "--log-dir=logs", "fails")
        self.assertEqual(result.code, 1, str(result))
        self.assertIn("ddrun: error: rank 1 exited with code 1", result.err)
        self.assertIn("ValueError: no data", result.err)
        [error] = self.folder.glob("logs/latest/attempt_0/*/error.json")
        self.assertEqual(error.parent.name, "1")
        message = json.loads(error.read_text())["message"]
        self.assertEqual(message["message"], "ValueError: no data")
        stack = message["extraInfo"]["py_callstack"].splitlines()
        self.assertEqual(stack[:2], ["Traceback (most recent call last):", '  File "fails", line 6, in <module>'])
        # The worker's own words are those of a script that was started by itself.
        self.assertEqual((error.parent / "stderr.log").read_text().splitlines(), stack)

    def test_an_exit_code_is_kept_and_is_no_exception(self):
        self.file("exits", "import sys; sys.exit(int(sys.argv[1]))\n")
        for code in (0, 7):
            with self.subTest(code):
                result = self.ddrun("--nproc-per-node=2", "--run-path", "--log-dir=logs", "exits", str(code))
                self.assertEqual(result.code, code, str(result))
                self.assertEqual(list(self.folder.rglob("error.json")), [])

    def test_modules_beside_the_script_are_found(self):
        self.file("sub/beside.py", "word = 'beside'\n")
        self.file("sub/imports", "import beside; print(beside.word)\n")
        result = self.ddrun("--run-path", "sub/imports")
        self.assertEqual((result.code, result.out), (0, "beside\n"), str(result))


if __name__ == "__main__":
    main()
