#!/usr/bin/env python3
"""Jobs that hang: in each `ddrun stacks`, and what ddrun shows by itself, begin with the rank that the others wait for,
and with its line. A kind of hang in a program is a scene; those of PyTorch need its environment (scripts/setup
--pytorch), and DDRUN_TEST_TORCH_HANGS says how many are tried."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE.parents[2] / "python")]
from cases import main, wait_until  # noqa: E402
from ddrun import _errors  # noqa: E402
from running import DDRUN, Running, environment, run  # noqa: E402

HANG = HERE / "hang.py"
LINES = HANG.read_text(encoding="utf-8").splitlines()
TORCH = pathlib.Path.home() / ".cache/ddrun/torch-2.15/bin/python"
RANKS = 4


def line(text):
    """Where `text` stands in hang.py."""
    return "hang.py:" + str(next(i + 1 for i, each in enumerate(LINES) if each.strip().startswith(text)))


# What the block of the first group has, by kind of hang.
PYTHON = {
    "python": ["computes", "stuck_in_python"],
    "call": ["reads a pipe", "stuck_in_call", line("os.read(out")],
    "native": ["stuck_in_native", "native: ", "pthread_mutex_lock"],
    "stopped": ["is stopped by a signal", "stuck_stopped", line("os.kill(")],
    "kernel": ["state D", "stuck_in_kernel", line("ctypes.CDLL(os.environ")],
    "order": ["all_reduce", "stuck_in_order", line("group.all_reduce()")],
}
# Those of PyTorch alone.
TORCH_ONLY = {
    "record": PYTHON["call"],
    "forward": [*PYTHON["call"], "Layer.forward"],
    "save": ["opens a file", "torch/distributed/checkpoint/filesystem.py", line("checkpoint.save(")],
    "loader": ["waits for a pipe", "torch/utils/data/dataloader.py", "    child ", f"stuck_in_call ({line('os.read(out')}), reads a pipe"],
}
CPP = {
    "python": ["computes", "train::stuck_in_loop"],
    "call": ["reads a pipe", "train::stuck_in_call", "train::step"],
    "native": ["pthread_mutex_lock", "train::stuck_in_native"],
    "stopped": ["is stopped by a signal", "train::stuck_stopped"],
    "order": ["train::stuck_in_order"],
}


# How a rank waits for other processes, and what its group then has.
BELOW = r"""import os, subprocess, sys, time
def run(*command, **options): return subprocess.Popen(command, **options)
def stuck(): time.sleep(1000)
def rank0(): stuck()
def rank1(): run("sleep", "1001"); run(sys.executable, "-c", "import time\ndef compile(): time.sleep(1002)\ncompile()").wait()
def rank2(): run("sleep", "1003"); run("sleep", "1004").wait()
def rank3(): subprocess.run(["sh", "-c", "sleep 1005; true"], capture_output=True)
def rank4(): run("sh", "-c", f"{sys.executable} -c 'import time; time.sleep(1006)' | cat").wait()
def rank5(): run("sleep", "1007"); run("sleep", "1008"); os.wait()
def rank6():
  reader, writer = os.pipe()
  import threading, select
  ready = select.poll(); ready.register(reader)
  threading.Thread(target=ready.poll, daemon=True).start()
  run("sleep", "1009"); run("sleep", "1010", pass_fds=[writer])
  exec(compile("threading.Event().wait()", "/env/torch/utils/data/dataloader.py", "exec"))
def rank7():
  from concurrent.futures import ProcessPoolExecutor
  ProcessPoolExecutor(1).submit(time.sleep, 1011).result()
globals()["rank" + os.environ["RANK"]]()
"""
SHOWN_BELOW = [
    r"  rank 0 \(pid \d+\): sleeps, .*\n    stuck ",
    r"  rank 1 \(pid \d+, child \d+ python3\S*\): sleeps, .*\n    compile ",
    r"  rank 2 \(pid \d+\): waits for a child process, .*(\n    .*)*\n    rank2 (.*\n    .*)*\n    child \d+ sleep: .*sleeps\n",
    r"  rank 3 \(pid \d+\): waits for .*(\n    .*)*\n    rank3 (.*\n    .*)*\n    child \d+ sleep: .*sleeps\n",
    r"  rank 4 \(pid \d+, child \d+ python3\S*\): sleeps, ",
    r"  rank 5 \(pid \d+\): waits for a child process, .*(\n    (?!child ).*)*\n    rank5 (.*\n    (?!child ).*)*\n(?!    )",
    r"  rank 6 \(pid \d+\): waits for another thread .*(\n    .*)*\n    rank6 (.*\n    .*)*\n    child \d+ sleep: .*sleeps\n",
    r"  rank 7 \(pid \d+\): waits for another thread .*(\n    .*)*\n    rank7 (.*\n    .*)*\n    child \d+ python3\S*: .*sleeps\n",
]


def first_group(page):
    """The lines of a page's first group."""
    lines = page.splitlines()
    begin = next((i for i, each in enumerate(lines) if each.startswith("  rank")), len(lines))
    end = next((i for i in range(begin + 1, len(lines)) if not lines[i].startswith("    ")), len(lines))
    return "\n".join(lines[begin:end])


class Job(unittest.TestCase):
    cwd = HERE

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-hangs-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.env = {"HANG_FOLDER": self.folder, "XDG_RUNTIME_DIR": self.folder, "TMPDIR": self.folder,
                    "HANG_VFORK": os.environ["DDRUN_TEST_VFORK"], "PYTHONFAULTHANDLER": None}

    def start(self, *args, ranks=RANKS, before=(), **options):
        running = Running([*before, DDRUN, "-n", ranks, *args], env={**self.env, **options}, cwd=self.cwd, timeout=100)
        self.addCleanup(running.kill)
        return running

    def start_stuck(self, *args, **options):
        running = self.start(*args, **options)
        wait_until(lambda: "stuck" in running.output()[0], 60, what=lambda: f"rank 2 of {running.output()}")
        return running

    def ask(self, running, *options, before=()):
        return subprocess.run([*before, DDRUN, "stacks", str(running.process.pid), *options],
                              env=environment(**self.env), capture_output=True, text=True, timeout=30)

    def shows(self, running, words, rank=2, before=(), also=""):
        """Waits until `ddrun stacks` begins with this rank, these words are in its group, and `also` is there, too."""
        seen = []

        def found():
            seen[:] = [self.ask(running, before=before)]
            group = first_group(seen[0].stdout)
            return group.startswith(f"  rank {rank} ") and all(word in group for word in words) and also in seen[0].stdout
        wait_until(found, 20, what=lambda: f"{words} of rank {rank} in {seen[0].stdout}\n{seen[0].stderr}")
        return seen[0].stdout

    def end(self, running):
        running.process.terminate()
        self.assertEqual(running.wait().code, 143)

    def scene(self, words, *command, also="", **options):
        with self.subTest(command=command[-2:]):
            (self.folder / "hub").unlink(missing_ok=True)
            running = self.start_stuck(*command, **options)
            page = self.shows(running, words, also=also)
            self.end(running)
            return page

    def workers(self, running):
        found = json.loads(self.ask(running, "--json").stdout or "{}")
        return {each["rank"]: each["pid"] for each in found.get("ranks", [])}


class Hangs(Job):
    def test_plain_sockets(self):
        for kind, words in PYTHON.items():
            # A rank may be on its way there when the first page is made.
            also = "ranks 0,1,3: waits for other ranks, " if kind in ("python", "call") else ""
            self.scene([*words, "train_step", "step=3"], HANG, kind, also=also)

    def test_a_rank_that_has_ended(self):
        running = self.start("sh", "-c", "[ $RANK = 0 ] || exec sleep 1000", ranks=2)
        wait_until(lambda: "  rank 0: has ended\n" in self.ask(running).stdout)
        self.assertRegex(self.ask(running, "--all-threads").stdout, r"\nrank 1 \(pid \d+ sleep\), 1 thread\n  thread \d+ \(sleep\): sleeps\n")
        self.end(running)

    def test_processes_below_a_rank(self):
        (self.folder / "job.py").write_text(BELOW, encoding="utf-8")
        running = self.start(self.folder / "job.py", ranks=8)
        pages = []

        def is_shown():
            pages[:] = [self.ask(running).stdout]
            return all(re.search(each, pages[0]) for each in SHOWN_BELOW)
        wait_until(is_shown, 20, what=lambda: [each for each in SHOWN_BELOW if not re.search(each, pages[0])] + pages)
        for pid in self.workers(running).values():
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: self.ask(running).stdout.count("is stopped by a signal") > 2)
        for pid in self.workers(running).values():
            os.kill(pid, signal.SIGCONT)
        wait_until(is_shown, 20, what=lambda: [each for each in SHOWN_BELOW if not re.search(each, pages[0])] + pages)
        self.end(running)

    def test_preload(self):
        page = self.scene([*PYTHON["call"], "step=3"], "--preload=json", HANG, "call")
        self.assertNotIn("--preload", page)

    def test_cpp(self):
        for kind, words in CPP.items():
            if kind == "python" and not may_sample():
                print("\nleft out: a loop in C++: the kernel does not let this user sample a running thread", file=sys.stderr)
                continue
            self.scene([*words, "main"], os.environ["DDRUN_TEST_HANG"], kind)

    def test_allreduce(self):
        allreduce = str(pathlib.Path(DDRUN).with_name("ddrun-allreduce"))
        late = f"[ $RANK = 2 ] && echo stuck && sleep 1000; exec {allreduce}"
        self.scene(["sleeps", "child"], "sh", "-c", late)
        running = self.start(allreduce, "-b", "1M", "-e", "1M", "--iters=1000000000")
        workers = wait_until(lambda: self.workers(running))
        os.kill(workers[2], signal.SIGSTOP)
        self.shows(running, ["is stopped by a signal"])
        self.end(running)

    def test_without_ptrace_as_an_ordinary_user(self):
        user = []
        if os.geteuid() == 0:
            user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
            os.chown(self.folder, 65534, 65534)
        running = self.start_stuck(HANG, "native", before=[sys.executable, HERE / "forbid_ptrace.py", *user])
        self.shows(running, PYTHON["native"], before=user)
        self.end(running)

    @unittest.skipUnless(TORCH.exists(), "there is no PyTorch (scripts/setup --pytorch)")
    def test_torch(self):
        kinds = {**PYTHON, **TORCH_ONLY}
        order = sorted(kinds, key=lambda kind: kind not in ("record", "order"))
        for kind in order[:int(os.environ.get("DDRUN_TEST_TORCH_HANGS", len(kinds)))]:
            words = kinds[kind]
            page = self.scene([*words, "train_step", "step=3"], "--no-python", TORCH, HANG, kind, "torch")
            self.assertIn("\n  ranks 0,1,3: waits for other ranks", page)
            self.assertEqual(page.count("\n    child "), kind == "loader")


class Kills(Job):
    """Workers are killed while they are read, DDRUN_TEST_STACK_KILLS times."""

    def test_kills(self):
        kills = int(os.environ.get("DDRUN_TEST_STACK_KILLS", "1000"))
        report = self.folder / "report.json"
        work = self.folder / "work.py"
        work.write_text("import threading\ndef work(step):\n  while True: step = (lambda n: n + 1)(step)\n"
                        "threading.Thread(target=work, args=(0,)).start()\nwork(1)\n")
        running = self.start("--max-restarts=100000", "--same-cause=0", f"--report={report}", work, ranks=2)

        def listening():  # its file is there a moment earlier
            for path in (self.folder / "ddrun").glob("*.sock"):
                with socket.socket(socket.AF_UNIX) as asker:
                    if asker.connect_ex(str(path)) == 0:
                        return path
            return None
        path = wait_until(listening, what=running.output)
        killed = answers = 0
        while killed < kills:
            with socket.socket(socket.AF_UNIX) as asker:
                try:
                    asker.connect(str(path))
                    asker.sendall(b'{"question": "stacks", "format": "json"}\n')
                except OSError as error:
                    self.fail(f"{error}: {running.output()[1][-2000:]}")
                if killed_one(running, killed):
                    killed += 1
                with asker.makefile() as answer:
                    answers += len(json.loads(answer.readline()).get("stacks", {}).get("ranks", []))
        self.assertGreater(answers, kills / 2)
        running.process.terminate()
        self.assertEqual(running.wait().code, 143)
        written = json.loads(report.read_text())
        ends = [worker["signal"]["name"] for attempt in written["attempts"][:-1] for worker in attempt["workers"]
                if not worker["stopped_by_ddrun"]]
        self.assertEqual(set(ends), {"SIGKILL"})


def killed_one(running, number):
    """Kills a worker; False if there is none at the moment."""
    workers = [pid for pid, line in running.processes().items() if line.endswith("/work.py") and "ddrun" not in line.split()[0]]
    if not workers:
        return False
    try:
        os.kill(workers[number % len(workers)], signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def may_sample():
    allowed = pathlib.Path("/proc/sys/kernel/perf_event_paranoid")
    return allowed.exists() and (int(allowed.read_text()) <= 2 or os.geteuid() == 0)


class Stops(Job):
    """The same page before ddrun stops a job that hangs."""

    def check(self, result, why):
        page = _errors.PAGE.search(result.err)[0]
        self.assertTrue(page.startswith("ddrun: ranks 0,1,3 wait for rank 2: stuck_in_call (hang.py:"), page)
        self.assertIn(why, page.splitlines()[1])
        group = first_group(page)
        self.assertTrue(group.startswith("  rank 2 (pid "), page)
        for word in PYTHON["call"]:
            self.assertIn(word, group)
        file = pathlib.Path(page.split("  all threads: ")[1].splitlines()[0])
        self.assertIn("thread ", file.read_text(encoding="utf-8"))
        return file

    def test_time_limit(self):
        report = self.folder / "report.json"
        result = self.start_stuck("-q", "--timeout=4s", f"--report={report}", HANG, "call").wait()
        self.assertEqual(result.code, 124)
        file = self.check(result, "after 4.0 s (--timeout)")
        self.assertEqual(file.parent, self.folder)
        self.assertIn("\n  cause:   rank 2 held up the others: ", result.err)
        written = json.loads(report.read_text())
        self.assertEqual(written["stacks"], [str(file)])
        self.assertEqual(written["cause"]["worker"]["rank"], 2)
        self.assertIn("; rank 2 held up the others: ", written["message"])
        [attempt] = written["attempts"]
        self.assertEqual((attempt["cause"]["rank"], attempt["cause"]["evidence"]), (2, "stack"))
        self.assertEqual((attempt["stacks"][0]["ranks"], attempt["stacks"][0]["doing"]), ([2], "reads a pipe"))
        self.assertIn("stuck_in_call", [frame["function"] for frame in attempt["stacks"][0]["python"]])

    def test_time_limit_of_two_programs(self):
        result = self.start("-q", "--timeout=4s", "sleep", "1000", ":", "-n", RANKS, HANG, "call", ranks=1).wait()
        self.assertEqual(result.code, 124)
        self.assertRegex(result.err, r"\n  cause:   \S+ rank 2 held up the others: ")

    def test_quit(self):
        running = self.start_stuck(f"--log-dir={self.folder}/logs", HANG, "call")
        running.process.send_signal(signal.SIGQUIT)
        result = running.wait()
        self.assertEqual(result.code, 131)
        self.assertIn("/attempt_0/stacks-1.txt", str(self.check(result, "at SIGQUIT")))
        self.assertIn("\n  cause:   rank 2 held up the others: ", result.err)

    def test_end_of_grace_time(self):
        script = ("if [ $RANK = 1 ]; then until [ -e $HANG_FOLDER/ready ]; do sleep 0.01; done; exit 3; fi\n"
                  "trap '' TERM; touch $HANG_FOLDER/ready; exec sleep 1000")
        result = self.start("--shutdown-timeout=1s", "sh", "-c", script, ranks=2).wait()
        self.assertEqual(result.code, 3)
        self.assertIn("where the ranks of this machine are, when the grace time of 1.0 s ended:\n  rank 0 (pid ", result.err)
        self.assertNotIn("held up", result.err)
        # The page shows all that a file would.
        self.assertNotIn("all threads: ", result.err)
        self.assertEqual(list(self.folder.glob("*stacks*")), [])

    def test_a_second_signal_does_not_wait(self):
        running = self.start_stuck(HANG, "call")
        running.process.send_signal(signal.SIGQUIT)
        wait_until(lambda: "stopping 4 workers" in running.output()[1])
        running.process.send_signal(signal.SIGQUIT)
        self.assertEqual(running.wait().code, 131)

    def test_timed_out_rank_is_not_the_cause(self):
        report = self.folder / "report.json"
        # Rank 0 gives up when rank 1 sleeps.
        times_out = ("import os, time\n"
                     "def load_batch(): time.sleep(1000)\n"
                     "place = os.environ['HANG_FOLDER'] + '/rank1'\n"
                     "if os.environ['RANK'] == '1':\n"
                     "    os.symlink('/proc/%s/stat' % os.getpid(), place)\n"
                     "    load_batch()\n"
                     "while not os.path.exists(place) or ') S ' not in open(place).read():\n"
                     "    time.sleep(0.01)\n"
                     "raise RuntimeError('Timed out waiting 6000ms for recv operation to complete')\n")
        (self.folder / "job.py").write_text(times_out)
        result = self.start(f"--report={report}", self.folder / "job.py", ranks=2).wait()
        self.assertEqual(result.code, 1)
        self.assertIn("where the ranks of this machine are, after rank 0 timed out:\n  rank 1 (pid ", result.err)
        self.assertIn("ddrun: error: rank 1 held up the others: load_batch (job.py:2), sleeps (pid ", result.err)
        self.assertIn("  status:  rank 0 exited with code 1 ", result.err)
        written = json.loads(report.read_text())
        self.assertEqual(written["attempts"][0]["cause"]["rank"], 1)
        self.assertEqual(written["attempts"][0]["cause"]["evidence"], "stack")
        self.assertEqual(written["attempts"][0]["first_failed_rank"], 0)


if __name__ == "__main__":
    main()
