#!/usr/bin/env python3
"""What a program has not written when it ends is written by its end: what a plain Python writes is there, byte by byte.
More is there only where that loses something, as after gc.disable().

Programs are drawn from pieces that hold unwritten text, and endings. DDRUN_TEST_ENDS is their number, DDRUN_TEST_SEED the
first one's; DDRUN_PYTHONS names Pythons to try besides this one, separated by colons."""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from cases import main  # noqa: E402
from running import DDRUN, run  # noqa: E402

PYTHONS = [sys.executable, *filter(None, os.environ.get("DDRUN_PYTHONS", "").split(":"))]
PRELOADS = "json", "logging", "numpy", "torch"
KEPT = "FILE = open('kept.txt', 'a')\nFILE.write('imported\\n')\n"  # it is preloaded, or imported by the program

HOLDERS = (
    "file = open('file', 'w')\nfile.write('epoch,loss\\n1,2')\ndef train(): pass\n",
    "class Log:\n    def __init__(self):\n        import csv\n        self.rows = csv.writer(open('rows', 'w'))\nlog = Log()\n"
    "log.rows.writerow([1, 2])\n",
    "import helper\nhelper.out.write('of a module')\n",
    "class Summary:\n    def __init__(self): self.file = open('summary', 'w')\n    def __del__(self): self.file.write('summary')\n"
    "summary = Summary()\n",
    "import os\nclass Closing:\n    def __init__(self): self.file = open('closing', 'w')\n    def __del__(self):\n"
    "        os.write(1, b'closed %r\\n' % self.file.closed)\n        self.file.write('end\\n')\n        self.file.close()\n"
    "closing = Closing()\nclosing.file.write('begin\\n')\n",
    "import gzip\npacked = gzip.GzipFile('packed', 'w', mtime=0)\npacked.write(b'x' * 100)\ndef pack(): return packed\n",
    "import os\nfd = os.open('shared', os.O_WRONLY | os.O_CREAT)\nfirst, second = open(fd, 'w'), open(os.dup(fd), 'w')\n"
    "second.write('second')\nfirst.write('first')\nboth = lambda: (first, second)\n",
    "cycle = [open('cycle', 'wb')]\ncycle.append(cycle)\ncycle[0].write(b'cycle')\n",
    "import sys\nsys.kept = [open('held', 'w'), lambda: sys]\nsys.kept[0].write('held')\n",
    "import logging\nlogging.basicConfig(filename='log', level='INFO')\nlogging.info('logged')\n",
    "import logging, logging.handlers\nmemory = logging.handlers.MemoryHandler(100, target=logging.FileHandler('memory'))\n"
    "logging.getLogger('memory').addHandler(memory)\nlogging.getLogger('memory').warning('in memory')\n",
    "import kept\nkept.FILE.write('written\\n')\n",
    "def lines():\n    with open('lines', 'w') as file:\n        while True:\n            yield file.write('line\\n')\n"
    "generator = lines()\nnext(generator)\n",
    "import tempfile\nspooled = tempfile.TemporaryFile('w')\nspooled.write('gone')\n",
    "import io\nclass Text(io.TextIOWrapper):\n    def close(self): self.write('own end'); super().close()\n"
    "text = Text(open('text', 'wb'))\n",
    "settings = {'name': 'run 1'}\nclass Named:\n    def __del__(self):\n        with open('named', 'w') as file: file.write(settings['name'])\n"
    "named = Named()\n",
)
ENDINGS = (
    "print('end')\n",
    "import sys\nsys.exit(3)\n",
    "import sys\nsys.exit('text')\n",
    "raise ValueError('no data')\n",
    "raise KeyboardInterrupt\n",
    "import sys\ndef last():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n        sys.last_value = error\nlast()\n",
    "import threading\nthreading.Timer(0.05, lambda: open('thread', 'w').write('of a thread')).start()\n",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    "import atexit\natexit.register(lambda: open('atexit', 'w').write('at exit'))\n",
    "import sys\nprint('last line')\nsys.stdout.close()\n",
    "import gc\ngc.disable()\n",
    "import os\nos._exit(5)\n",
)
HELPER = "out = open('helper', 'w')\ndef write(): out.write('never')\n"
BLOCKED = """
import os
r, w = os.pipe()
pipe = open(w, 'w')
while True:
    pipe.write('x' * 4096)
"""


class Ends(unittest.TestCase):
    longMessage = True
    maxDiff = None

    def outcome(self, python, text, *options):
        """The status, and what is in its files and in stdout."""
        with tempfile.TemporaryDirectory(prefix="ddrun-test-") as folder:
            for name, content in (("program.py", text), ("helper.py", HELPER), ("kept.py", KEPT)):
                pathlib.Path(folder, name).write_text(content, encoding="utf-8")
            ended = run([DDRUN, "--label=none", *options, "program.py"], cwd=folder, timeout=60,
                        env={"PYTHON_EXEC": python, "PYTHONPATH": folder})
            files = {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir()) if path.is_file()}
        self.assertNotIn("FutureWarning", ended.err)
        return ended.code, {**files, "stdout": ended.out.encode()}

    def test_drawn_programs(self):
        first = int(os.environ.get("DDRUN_TEST_SEED", "1"))
        for python in PYTHONS:
            has = ["kept"] + subprocess.run([python, "-c", "import importlib.util as u, sys\nprint(*[n for n in sys.argv[1:] if u.find_spec(n)])",
                                  *PRELOADS], stdout=subprocess.PIPE, check=True, text=True).stdout.split()
            for seed in range(first, first + int(os.environ.get("DDRUN_TEST_ENDS", "16"))):
                dice = random.Random(seed)
                # Every ending and preload comes in turn, whatever the number.
                text = "".join(dice.sample(HOLDERS, 3)) + ENDINGS[seed % len(ENDINGS)]
                preload = has[seed % len(has)]
                text = f"import {preload}\n" + text
                with self.subTest(seed=seed, preload=preload, python=python):
                    code, plain = self.outcome(python, text)
                    status, files = self.outcome(python, text, f"--preload={preload}")
                    self.assertEqual(status, code, text)
                    cut = {name: content[:len(plain[name])] for name, content in files.items() if name in plain}
                    self.assertEqual(cut, plain, text)

    def test_a_pipe_that_takes_nothing(self):
        limits = "--timeout=2s", "--shutdown-timeout=0.2s"
        self.assertEqual(self.outcome(sys.executable, BLOCKED, "--preload=json", *limits),
                         self.outcome(sys.executable, BLOCKED, *limits))


if __name__ == "__main__":
    main()
