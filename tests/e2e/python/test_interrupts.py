#!/usr/bin/env python3
"""An interrupt of a rank of the Python package, between any two lines of the loop that runs its tasks."""
import os
import pathlib
import signal
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "python")]
from cases import main  # noqa: E402

from ddrun import _worker  # noqa: E402


class Loop(unittest.TestCase):
    def test_interrupts_between_lines(self):
        """The rank stays; only what runs in the task is interrupted."""
        lines = []

        def trace(frame, event, _):
            if frame.f_code is not _worker.Rank.work.__code__:
                return None
            if event == "line":
                lines.append(frame.f_lineno)
                rank.on_interrupt(signal.SIGINT, frame)
            return trace

        def perform(number, _):
            rank.running = number
            if number == 2:
                rank.on_interrupt(signal.SIGINT, sys._getframe())
            return "value", number
        with mock.patch.dict(os.environ, {"RANK": "0"}):
            rank = _worker.Rank(mock.Mock(welcome={"once": False, "mark": ""}))
        rank.perform, rank.write_marks = perform, mock.Mock()
        for task in ((1, b""), (2, b""), (3, b""), 0):
            rank.tasks.put(task)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            status = rank.work()
        finally:
            sys.settrace(before)
        answers = [call.args[0][1] for call in rank.connection.send.call_args_list]
        self.assertEqual((status, answers), (0, ["value", "error", "value"]))
        self.assertGreater(len(set(lines)), 8)


if __name__ == "__main__":
    main()
