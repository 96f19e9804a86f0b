#!/usr/bin/env python3
"""What the Python package shows of lines: equal ones once, by the table of cases that the command passes, too
(tests/unit/logs); bars; crashes."""
import json
import pathlib
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "python")]
from cases import main  # noqa: E402

from ddrun import _output  # noqa: E402

CASES = json.loads((ROOT / "tests/support/cases/fold.json").read_text())


class Folding(unittest.TestCase):
    def test_cases(self):
        self.assertGreaterEqual(len(CASES), 8)
        for case in CASES:
            with self.subTest(case["name"]), mock.patch.object(_output.time, "monotonic") as clock:
                shown = []
                fold = _output.Fold(shown.append)
                fold.ranks = set(range(case["ranks"]))

                def pass_time(until, fold=fold, clock=clock):
                    while (deadline := fold.deadline()) is not None and deadline <= until:
                        clock.return_value = deadline
                        fold.show()
                    clock.return_value = until
                for at, rank, text in case["lines"]:
                    pass_time(at / 1000)
                    fold.add(rank, text + "\n")
                pass_time(10)
                self.assertEqual([line.rstrip("\n") for line in shown], case["shown"])


class Bars(unittest.TestCase):
    """Of a notebook's cell."""

    def test_rows(self):
        """One for each bar; blank text clears it until it is drawn anew, a line ends it."""
        output, shown = _output.Output(mock.Mock()), []

        def display(data, **_):
            shown.append(data["text/plain"])
            return mock.Mock(update=display)
        ipython = mock.Mock(display=display)
        with mock.patch.dict(sys.modules, {"IPython": ipython, "IPython.display": ipython}):
            output.in_notebook = True
            output.begin()
            for rank, stream, text, rows in (
                    (0, "stderr", "\r", None), (1, "stderr", "10%\r", "[1] 10%"), (0, "stderr", "20%\r", "[0] 20%\n[1] 10%"),
                    (1, "stdout", "a line\n", None), (0, "stderr", "   \r", "[1] 10%"), (0, "stderr", "written\n", None),
                    (0, "stderr", "30%\r", "[0] 30%\n[1] 10%"), (1, "stderr", "100%\n", "[0] 30%"), (0, "stderr", "\r", "")):
                shown.clear()
                output.line(rank, stream, text)
                output.show(True)
                self.assertEqual(shown, [] if rows is None else [rows], text)


class Crashes(unittest.TestCase):
    def test_frames(self):
        """Neither the package's thread nor the frames that lead to the task are shown, in a crash only."""
        package, ipython = pathlib.Path(_output.__file__).parent, "/venv/IPython/core/interactiveshell.py"
        own = [f'  File "{package}/_worker.py", line 7 in work\n', f'  File "{ipython}", line 7 in run_code\n']
        users = ["Thread 0x2 (most recent call first):\n", '  File "/home/load.py", line 3 in load\n', "\n",
                 "Current thread 0x3 (most recent call first):\n", '  File "Cell In[2]", line 3 in crash\n']
        text = ["Thread 0x1 (most recent call first):\n", own[0], '  File "/usr/threading.py", line 7 in run\n', "\n", *users, *own]
        output = _output.Output(mock.Mock())
        with mock.patch.object(output.folds["stderr"], "add") as add:
            for line in [*text, "Fatal Python error: Segmentation fault\n", "\n", *text]:
                output.line(1, "stderr", line)
        self.assertEqual([call.args for call in add.mock_calls],
                         [(1, line) for line in [*text, "Fatal Python error: Segmentation fault\n", "\n", *users]])


if __name__ == "__main__":
    main()
