"""Torchrun's own parser beside ddrun's, and every line of command_lines.py under ddrun and under torchrun: what workers see and what comes out is the same, or an
entry of docs/coming-from-torchrun.md says how it differs. DDRUN_TEST_LINES=REGEX runs only the lines that match,
DDRUN_TEST_LINES_STEP=N each Nth one."""

import concurrent.futures
import json
import os
import random
import re
import subprocess
import threading

from command_lines import LINES
from differences import RULES, compare, rows_of_the_document
from harness import DDRUN, HERE, PYTHON, TorchTest, environment, main, run
from observation import Run
from warm_torchrun import WarmTorchrun

# These are also given to a torchrun of their own, to see that it is the same as the one that is kept warm.
COLD = ("--nproc-per-node=2 probe.py", "-t 3 --log-dir=DIR/logs --nproc-per-node=2 probe.py", "-m missing_module")


# Prints for each line of stdin, a list of words in JSON, what torchrun's parser makes of it: its values, or None if it
# refuses it, or "done" if it prints something and ends.
TORCHRUN_PARSER = """
import contextlib, io, json, sys
from torch.distributed.run import get_args_parser
for line in sys.stdin:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            values = vars(get_args_parser().parse_args(json.loads(line)))
        except SystemExit as end:
            values = None if end.code else "done"
    print(json.dumps(values))
"""
TORCHRUN_NAMES = """
from torch.distributed.run import get_args_parser
for action in get_args_parser()._actions:
    print(*(name for name in action.option_strings if name.startswith("--")))
"""
VALUES = {"nnodes": "2:3", "rdzv-backend": "c10d", "rdzv-endpoint": "h:1", "master-addr": "h", "local-addr": "h",
          "rdzv-conf": "timeout=9", "monitor-interval": "5", "start-method": "spawn", "event-log-handler": "console",
          "signals-to-handle": "SIGTERM", "logs-specs": "default", "numa-binding": "node", "print-completion": "bash"}
FLAGS = {"help", "standalone", "module", "no-python", "run-path", "virtual-local-rank"}


class Parsers(TorchTest):
    def torchrun(self, lines):
        said = subprocess.run([PYTHON, "-c", TORCHRUN_PARSER], input="".join(json.dumps(line) + "\n" for line in lines),
                              stdout=subprocess.PIPE, text=True, env=environment(), check=True)
        return [json.loads(line) for line in said.stdout.splitlines()]

    def test_public_lines(self):
        text = (HERE.parent / "support/cases/torchrun_lines.txt").read_text()
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        for typed, full, values in zip(lines[::2], lines[1::2], self.torchrun(line.split() for line in lines[::2])):
            with self.subTest(typed):
                options, program = re.fullmatch("= (?:(.*) )?-- (.*)", full).groups()
                words = [values["training_script"], *values["training_script_args"]]
                self.assertEqual([word for at, word in enumerate(words) if at != 1 or word != "--"], program.split())
                for option in (options or "").split():
                    name, _, value = option.removeprefix("--").partition("=")
                    theirs = values[name.replace("-", "_")]
                    theirs = ",".join(theirs) if isinstance(theirs, list) else theirs
                    self.assertEqual(theirs, type(theirs)(value or True), option)

    def test_starts_of_options(self):
        """Starts of torchrun's options, drawn by chance, are taken by both or refused by both."""
        names = subprocess.run([PYTHON, "-c", TORCHRUN_NAMES], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        draw = random.Random(64)
        of = {"--nnode": "nnodes", "--max_restart": "max-restarts", "--redirect": "redirects", "--nproc": "nproc-per-node"}
        for name in names * 3:
            of[name[:draw.randint(3, len(name))]] = name[2:].replace("_", "-")
        # Documented: torchrun takes it for --local-ranks-filter.
        starts = sorted(set(of) - {"--local-rank", "--local_rank"})
        line = {}
        for start in starts:
            value = [] if of[start] in FLAGS else [VALUES.get(of[start], "3")]
            line[start] = [draw.choice(([start, *value], ["=".join([start, *value])])), ["--" + of[start], *value]]
        wanted = self.torchrun([words + ["x"] for both in line.values() for words in both])
        self.assertGreater(len(starts), 80)
        for at, start in enumerate(starts):
            with self.subTest(start):
                theirs, full = wanted[2 * at:2 * at + 2]
                if full is None:  # --print-completion wants another package
                    continue
                ours, ours_full = (run([DDRUN, "config", "show", *words, "x"]) for words in line[start])
                self.assertEqual(ours_full.code, 0, str(ours_full))
                self.assertIn(theirs, (None, full), "torchrun takes it for another option")
                self.assertEqual(ours.code, 2 if theirs is None else 0, str(ours))
                if theirs is not None:
                    self.assertEqual(ours.out, ours_full.out)


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
