"""Every line of command_lines.py under ddrun and under torchrun: what workers see and what comes out is the same, or an
entry of docs/coming-from-torchrun.md says how it differs. DDRUN_TEST_LINES=REGEX runs only the lines that match,
DDRUN_TEST_LINES_STEP=N each Nth one."""

import concurrent.futures
import os
import re
import threading

from command_lines import LINES
from differences import RULES, compare, rows_of_the_document
from harness import TorchTest, main
from observation import Run
from warm_torchrun import WarmTorchrun

# These are also given to a torchrun of their own, to see that it is the same as the one that is kept warm.
COLD = ("--nproc-per-node=2 probe.py", "-t 3 --log-dir=DIR/logs --nproc-per-node=2 probe.py", "-m missing_module")


class CommandLines(TorchTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # So that "one worker for each CPU" is no crowd anywhere.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
        cls.warm = WarmTorchrun()
        cls.addClassCleanup(cls.warm.close)

    def test_table(self):
        self.assertGreaterEqual(len(LINES), 60)
        names = [line.name() for line in LINES]
        self.assertEqual(len(names), len(set(names)), "a line stands there twice")
        wanted, step = os.environ.get("DDRUN_TEST_LINES", ""), int(os.environ.get("DDRUN_TEST_LINES_STEP", "1"))
        shown, lock = set(), threading.Lock()

        def check(line):
            """What is wrong with this line."""
            ddrun, torchrun = Run(line, "ddrun"), Run(line, "torchrun", self.warm)
            ours, theirs = ddrun.observe(), torchrun.observe()
            rows, unexplained = compare(line, ours, theirs)
            if ours["exit status"] != line.status:
                unexplained.append(f"ddrun ended with {ours['exit status']}, not {line.status}")
            if line.text in COLD and not line.env and not line.do:
                cold = Run(line, "torchrun").observe()
                unexplained += [f"torchrun itself, warm and cold: {what}: {theirs.get(what)!r} and {cold.get(what)!r}"
                                for what in sorted(set(theirs) | set(cold)) if theirs.get(what) != cold.get(what)]
            with lock:
                shown.update(rows)
            return "\n  ".join([*unexplained, ddrun.raw, torchrun.raw]) if unexplained else ""

        lines = [line for line in LINES[::step] if re.search(wanted, line.name())]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for line, wrong in zip(lines, [pool.submit(check, line) for line in lines]):
                with self.subTest(line.name()):
                    wrong = wrong.result()
                    if wrong:
                        self.fail(wrong)
        rows = rows_of_the_document()
        self.assertEqual(len(rows), len(set(rows)), "an id stands there twice")
        # Also where only some lines run.
        explained = {row for row, *_ in RULES} | {line.refused or line.accepted for line in LINES} - {""}
        self.assertEqual(set(rows), explained, "rows of the document, and those of rules and lines")
        self.assertEqual(shown - set(rows), set(), "differences without a row in the document")
        if len(lines) == len(LINES):
            self.assertEqual(set(rows) - shown, set(), "rows of the document that no line shows")


if __name__ == "__main__":
    main()
