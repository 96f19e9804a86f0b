#!/usr/bin/env python3
"""Equal lines that the Python package shows once: the table of cases that the command passes, too (tests/unit/logs)."""
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


if __name__ == "__main__":
    main()
