#!/usr/bin/env python3
"""A worker of --preload ends as a plain Python: its files, stdout, stderr and status are the same, byte by byte. There is
more only where a plain Python loses text, as after gc.disable().

Programs are drawn from pieces that hold unwritten text or do something when they are finalized, and endings.
DDRUN_TEST_ENDS is their number, DDRUN_TEST_SEED the first one's; DDRUN_PYTHONS names Pythons to try besides this one,
separated by colons."""
import concurrent.futures
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from cases import main  # noqa: E402
from running import DDRUN, run  # noqa: E402

PYTHONS = [sys.executable, *filter(None, os.environ.get("DDRUN_PYTHONS", "").split(":"))]
PRELOADS = "json", "logging", "numpy", "torch"
KEPT = "FILE = open('kept.txt', 'a')\n"  # it is preloaded, or imported by the program

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
    "import sys\nsys.kept = [open('held', 'w')]\nsys.kept[0].write('held')\n",
    "import logging\nlogging.basicConfig(filename='log', level='INFO')\nlogging.info('logged')\n",
    "import logging, logging.handlers\nmemory = logging.handlers.MemoryHandler(100, target=logging.FileHandler('memory'))\n"
    "logging.getLogger('memory').addHandler(memory)\nlogging.getLogger('memory').warning('in memory')\n",
    "import kept\nkept.FILE.write('written\\n')\n",
    "def lines():\n    with open('lines', 'w') as file:\n        while True:\n            yield file.write('line\\n')\n"
    "generator = lines()\nnext(generator)\n",
    "import tempfile\nspooled = tempfile.TemporaryFile('w')\nspooled.write('gone')\n",
    "import io\nclass Text(io.TextIOWrapper):\n    def close(self): self.write('own end'); super().close()\n"
    "text = Text(open('text', 'wb'))\n",
    "import sys\nsys.stdout = open(1, 'w', closefd=False)\nprint('buffered')\n",
    "import sys\nclass Tee:\n    def __init__(self): self.file, self.stdout = open('tee', 'w'), sys.stdout\n"
    "    def write(self, text): self.file.write(text); self.stdout.write(text)\n    def flush(self): self.stdout.write('flushed\\n')\n"
    "sys.stdout = Tee()\nprint('to both')\n",
    "import builtins, os\nclass OfBuiltins:\n    def __del__(self, write=os.write): write(1, b'of builtins\\n')\nbuiltins.own = OfBuiltins()\n",
    "class Printing:\n    def __del__(self): print('printed at the end')\nprinting = Printing()\n",
    "class Raising:\n    def __del__(self): raise ValueError('at the end')\nraising = Raising()\n",
    "import os, sys\nclass Finalizing:\n    def __del__(self): os.write(1, b'finalizing %r\\n' % sys.is_finalizing())\nfinalizing = Finalizing()\n",
    "async def never(): pass\nnever_awaited = never()\n",
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
    "import atexit\natexit.register(lambda: open('atexit', 'w').write('at exit'))\n",
    "import atexit, os\natexit.register(os.write, 1, b'at exit\\n')\n",
    "import atexit\natexit.register(lambda: 1 / 0)\n",
    "import sys\nprint('last line', flush=True)\nsys.stdout.close()\n",
    "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')\n",
    "import os, sys\nif os.fork() == 0:\n    sys.exit()\nos.wait()\n",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    # A plain Python may lose text after these.
    "import os\nos._exit(5)\n",
    "import gc\ngc.disable()\n",
)
LOSING = ENDINGS[-2:]
# A child that runs the end of the program would start another one.
CHILD_AT_EXIT = """
import atexit, multiprocessing
def start():
    process = multiprocessing.get_context("fork").Process(target=print, args=("child",), kwargs={"flush": True})
    process.start()
    process.join()
    print(process.exitcode)
atexit.register(start)
"""
HELPER = "out = open('helper', 'a')\nout.write('imported\\n')\ndef write(): out.write('never')\n"
# Its end waits for a reader.
BLOCKED = """
import os
r, w = os.pipe()
os.set_blocking(w, False)
try:
    while True:
        os.write(w, bytes(4096))
except BlockingIOError:
    os.set_blocking(w, True)
pipe = open(w, 'w')
pipe.write('x')
print('end')
"""
# What differs from run to run in stderr: times, process ids and addresses, and folders.
CHANGING = re.compile(r"after [\d.]+ m?s|\bpid \d+|\b0x[0-9a-f]+|/\S*/ddrun-test-\w+|stacks-\d+")


class Ends(unittest.TestCase):
    longMessage = True
    maxDiff = None

    def outcome(self, python, text, *options):
        """The status, and what is in its files; the lines of stdout and stderr."""
        with tempfile.TemporaryDirectory(prefix="ddrun-test-") as folder:
            for name, content in (("program.py", text), ("helper.py", HELPER), ("kept.py", KEPT)):
                pathlib.Path(folder, name).write_text(content, encoding="utf-8")
            ended = run([DDRUN, "--label=none", *options, "program.py"], cwd=folder, timeout=60,
                        env={"PYTHON_EXEC": python, "PYTHONPATH": folder})
            files = {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir()) if path.is_file()}
        # The order in which objects are finalized depends on when the collector has run.
        return ended.code, {**files, "stdout": sorted(ended.out.splitlines()),
                            "stderr": sorted(CHANGING.sub("…", ended.err).splitlines())}

    def compare(self, python, text, preload):
        code, plain = self.outcome(python, text)
        self.assertNotIn(code, (125, 126, 127), plain)
        status, files = self.outcome(python, text, f"--preload={preload}")
        # A plain Python loses text after some endings, and of what only an object in sys holds.
        lost = [name for name, content in files.items() if not plain.get(name) or text.endswith(LOSING)]
        self.assertEqual((status, {**files, **{name: plain.get(name) for name in lost}}), (code, plain), text)

    def test_drawn_programs(self):
        first = int(os.environ.get("DDRUN_TEST_SEED", "1"))
        for python in PYTHONS:
            has = ["kept"] + subprocess.run([python, "-c", "import importlib.util as u, sys\nprint(*[n for n in sys.argv[1:] if u.find_spec(n)])",
                                  *PRELOADS], stdout=subprocess.PIPE, check=True, text=True).stdout.split()
            seeds = range(first, first + int(os.environ.get("DDRUN_TEST_ENDS", "16")))
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                running = {}
                for seed in seeds:
                    dice = random.Random(seed)
                    # Every ending and preload comes in turn, whatever the number.
                    preload = has[seed % len(has)]
                    text = f"import {preload}\n" + "".join(dice.sample(HOLDERS, 3)) + ENDINGS[seed % len(ENDINGS)]
                    running[seed, preload] = pool.submit(self.compare, python, text, preload)
                for (seed, preload), done in running.items():
                    with self.subTest(seed=seed, preload=preload, python=python):
                        done.result()

    def test_child_at_exit(self):
        self.compare(sys.executable, CHILD_AT_EXIT, "json")

    def test_written_by_an_import(self):
        """Once, by the server, before it forks workers."""
        text = "import helper\nhelper.out.write('written\\n')\n"
        _, files = self.outcome(sys.executable, text, "--preload=helper", "--nproc-per-node=3")
        self.assertEqual(files["helper"].decode(), "imported\n" + 3 * "written\n")

    def test_a_pipe_that_takes_nothing(self):
        limits = "--timeout=2s", "--shutdown-timeout=0.2s"
        self.assertEqual(self.outcome(sys.executable, BLOCKED, "--preload=json", *limits),
                         self.outcome(sys.executable, BLOCKED, *limits))


if __name__ == "__main__":
    main()
