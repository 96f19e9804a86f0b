#!/usr/bin/env python3
"""--preload: what is refused, and what happens when the server, its workers or ddrun are killed. Every run is checked to
leave no process (tests/support/running.py)."""
import glob
import json
import os
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main, wait_until  # noqa: E402
from running import DDRUN, Running  # noqa: E402

PYTHON = {"PYTHON_EXEC": os.path.realpath(sys.executable)}  # a Python that is a shell script forks first
# Workers of attempt 0 wait for the file `go`, then rank 0 fails; those of attempt 1 end well.
RESTARTING = """
import os, sys, time
import shown
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, "preloaded", hasattr(sys.modules["shown"], "LOADED_BY") and shown.LOADED_BY != os.getpid(), shown.VALUE, flush=True)
while not os.path.exists("go") if attempt == 0 else os.path.exists("hold"):
    time.sleep(0.01)
sys.exit(3 if attempt == 0 and os.environ["RANK"] == "0" else 0)
"""
SHOWN = "import os\nLOADED_BY = os.getpid()\nVALUE = {}\n"
# Two threads, and a fork that warns of them as Python 3.12 does.
THREADS = """
import os, threading, time, warnings
for _ in range(2):
    threading.Thread(target=time.sleep, args=(60,), daemon=True, name="beat").start()
os.register_at_fork(after_in_parent=lambda: warnings.warn("multi-threaded", DeprecationWarning, stacklevel=2))
"""
# Each has a process of its own in a plain start.
CHILD = "import subprocess\nsubprocess.Popen(['sleep', '61'])\n"
ORPHAN = "import subprocess\nsubprocess.run('sleep 61 & sleep 61 &', shell=True, check=True)\n"
MANAGER = "import multiprocessing\nmanager = multiprocessing.get_context('fork').Manager()\n"
# As pydantic-settings has it: a copy in lower case, in which fields are looked up.
SETTINGS = """
import os
class Settings:
    def __init__(self):
        variables = {name.lower(): value for name, value in os.environ.items()}
        for name in self.__annotations__:
            setattr(self, name, variables.get(name))
"""
# None of their copies of os.environ is for a rank.
HARMLESS = """
import os, subprocess
subprocess.run(["true"], env={**os.environ, "ADDED": "1"}, check=True)
subprocess.run(["true"], env=os.environ.copy(), check=True)
options = {name: value for name, value in os.environ.items() if name.startswith("PATH")}
"RANKS" in os.environ, dict(os.environb), list(os.environ), repr(os.environ)
"""
# Reads SET, UNSET, DELETED and EQUAL; of the others none that a worker could have changed in time.
READER = """
import os, shutil, subprocess
LEVELS = os.environ["SET"], os.getenv("UNSET"), os.environb.get(b"DELETED"), os.environ.setdefault("EQUAL", "1")
shutil.which("true"), subprocess.run(["true"], check=True), os.environ.copy(), dict(os.environb), sorted(os.environ), list(os.environ.items())
[os.environ[name] for name in list(os.environ)]
"""
# With what it changes only after it has imported the module, as a program without --preload.
CHANGER = """
import os
os.environ.update(SET="0", LISTED="2", EQUAL="1", PATH="/none", DDRUN_OWN="1")
os.environ.update(SET="2", NEW="3")
os.environ.setdefault("UNSET", "4")
os.environb[b"UNSET"] = b"5"
del os.environ["DELETED"]
os.environ["UNSET"] = "6"
saved = os.environ.copy()
os.environ.clear()
os.environ.update(saved)
if os.fork() == 0:
    os.environ["OTHER"] = "1"
    os._exit(0)
os.wait()
import reader
os.environ["LATER"] = "2"
print(type(os.environ).__name__, repr(os.environ)[:9], isinstance(os.environ, os._Environ), os.environ.copy() == dict(os.environ), os.getenv("UNSET"))
try:
    os.environ["SET"] = 1
except TypeError as error:
    print(error.__traceback__.tb_next.tb_next.tb_next)
"""
# The server's fork with this number fails.
FORK_FAILS = """
import errno
calls, fork = [], os.fork
def counted():
    calls.append(1)
    if len(calls) == {}:
        raise BlockingIOError(errno.EAGAIN, "")
    return fork()
os.fork = counted
"""


class Server(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-preload-"))
        self.addCleanup(shutil.rmtree, self.dir)
        self.write("train.py", "print('ran')")

    def write(self, name, text):
        (self.dir / name).write_text(text)

    def start(self, *args, timeout=60, env={}):
        return Running([DDRUN, "--label=none", *args], timeout=timeout, env={**PYTHON, **env}, cwd=self.dir)

    def restarting(self, *args, count=2, **options):
        """A job whose workers of attempt 0 run, and pids: [server], [workers], [standby workers of a restart]."""
        self.write("restarting.py", RESTARTING)
        self.write("shown.py", SHOWN.format(1))
        job = self.start("-n", count, "--preload=shown", "--max-restarts=3", *args, "restarting.py", **options)

        def kinds():
            server, workers, standby, parents = [], [], [], set()
            for pid, command in job.processes().items():
                if "ddrun --preload" not in command:
                    continue
                try:
                    parents.add(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                    if os.getsid(pid) != pid:
                        server.append(pid)
                    elif os.readlink(f"/proc/{pid}/fd/1") == "/dev/null" and len(os.listdir(f"/proc/{pid}/fd")) == 4:  # waits
                        standby.append(pid)
                    else:
                        workers.append(pid)
                except OSError:
                    return None
            # While a generation of the server lives on, it is the parent of those that it has forked.
            found = [len(server), len(workers), len(standby), len(parents)] == [1, count, count, 1]
            return (server, workers, standby) if found else None

        return job, wait_until(kinds, what="a server, workers and standby workers")

    def go(self, job):
        self.write("go", "")
        result = job.wait()
        lines = sorted(line for line in result.out.splitlines() if line.startswith("attempt"))
        return result, lines

    def test_refused(self):
        """Before anything starts, and each with what to do."""
        for text, said in (
                ("import nonesuch\n", "importing named failed: ModuleNotFoundError: No module named 'nonesuch'"),
                ("import sys\nsys.exit(4)\n", "importing named failed: SystemExit: 4"),
                ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True, name='beat').start()\n",
                 "importing named starts 1 thread (beat), which forked workers would lack; leave named out of --preload"),
                (THREADS, "importing named starts 2 threads (beat), which forked workers would lack; leave named out of --preload"),
                ("import os\nos.environ['WORLD_SIZE']\n",
                 "importing named reads WORLD_SIZE (named, line 2), which is set in workers only; leave named out of --preload"),
                ("import os\nos.environ.get('LOCAL_RANK')\n",
                 "importing named reads LOCAL_RANK (named, line 2), which is set in workers only; leave named out of --preload"),
                ("import os\n'RANK' in os.environ\n",
                 "importing named reads RANK (named, line 2), which is set in workers only; leave named out of --preload"),
                ("import os\nos.environb.get(b'RANK')\n",
                 "importing named reads RANK (named, line 2), which is set in workers only; leave named out of --preload"),
                ("input()\n", "importing named failed: EOFError: EOF when reading a line"),
                (CHILD, "importing named starts 1 process (sleep), which all workers would share; leave named out of --preload"),
                (ORPHAN, "importing named starts 2 processes (sleep), which all workers would share; leave named out of --preload"),
                (MANAGER, f"importing named starts 1 process ({os.path.basename(PYTHON['PYTHON_EXEC'])}), which all workers would share; leave named out of --preload")):
            with self.subTest(said=said):
                self.write("named.py", text)
                result = self.start("-n", "2", "--preload=json,named", "train.py").wait()
                self.assertEqual((result.code, result.out), (2, ""), result)
                self.assertEqual(result.err.splitlines()[-1], f"ddrun: error: --preload: {said}", result)
                self.assertNotIn("Warning", result.err, result)
                self.assertNotIn("holds the output open", result.err, result)

    def test_copies_of_the_environment(self):
        """One line names the module, and variables of a worker that it looks up in its copy; the job runs."""
        self.write("settings.py", SETTINGS)
        for text, said in (
                ("import settings\nclass Job(settings.Settings):\n    rank: int\n    world_size: int\nJob()\n", "line 5), which lacks RANK, WORLD_SIZE"),
                ("import os\nrank = os.environ.copy().get('LOCAL_RANK')\n", "line 2), which lacks LOCAL_RANK"),
                ("import os\nrank = dict(os.environ).get('RANK', 0)\n", "line 2), which lacks RANK"),
                ("import os\nrank = (os.environ | {}).get('RANK', 0)\n", "line 2), which lacks RANK"),
                ("import os\nrank = os.environb.copy().get(b'RANK', 0)\n", "line 2), which lacks RANK"),
                ("import os\nKEPT = {**os.environ}\n", "line 2), which lacks RANK and the like"),
                (HARMLESS, None)):
            with self.subTest(text=text):
                self.write("named.py", text)
                result = self.start("-n", "2", "--preload=json,named", "train.py").wait()
                expected = said and f"ddrun: --preload: importing named copies os.environ (named, {said} until workers start\n"
                self.assertEqual((result.code, result.out, result.err), (0, "ran\nran\n", expected or ""), result)

    def test_changed_variables(self):
        """One line for each that a module has read: it has another value there than it would have without --preload."""
        self.write("reader.py", READER + "LATER, OTHER = map(os.environ.get, ('LATER', 'OTHER'))\n")
        self.write("changer.py", CHANGER)
        variables = {**PYTHON, "SET": "0", "LISTED": "1", "DELETED": "1"}
        result = Running([DDRUN, "--preload=json,reader", "changer.py"], env=variables, cwd=self.dir).wait()
        said = [f"ddrun: warning: {name} was read by reader when it was preloaded; set it with --env"
                for name in ("SET", "UNSET", "DELETED")]
        self.assertEqual((result.code, result.out, result.err.splitlines()),
                         (0, "_Environ environ({ True True 6\nNone\n", said), result)

    def test_variables_of_libraries(self):
        """Those that a library reads itself count from when it is mapped."""
        (self.dir / "libgomp.so.1").write_bytes(b"text")
        self.write("named.py", "import mmap\nwith open('libgomp.so.1', 'rb') as file:\n    MAP = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n")
        self.write("train.py", "import os\nos.environ.update(OMP_NUM_THREADS='1', OMPI='1', MKL_NUM_THREADS='1')\n")
        result = self.start("--preload=named", "train.py").wait()
        self.assertEqual((result.code, result.err), (0, f"ddrun: warning: OMP_NUM_THREADS was read by {os.path.realpath(self.dir)}/"
                                                        "libgomp.so.1 when it was preloaded; set it with --env\n"), result)

    def test_own_variables_of_ranks(self):
        """What an import sets is not on top of them."""
        self.write("named.py", "import os\nos.environ['RANK'] = '7'\nos.environ['OTHER'] = '8'\n")
        self.write("train.py", "import os\nprint(os.environ['RANK'], os.environ['OTHER'])\n")
        result = self.start("-n", "2", "--preload=named", "train.py").wait()
        self.assertEqual((result.code, sorted(result.out.splitlines())), (0, ["0 8", "1 8"]), result)

    def test_many_workers(self):
        """They wait for the end of the process that forked them without using its CPU."""
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cpus)})
        try:
            result = self.start("-n", "120", "--preload=json", "train.py").wait()
        finally:
            os.sched_setaffinity(0, cpus)
        self.assertEqual((result.code, result.out, result.err), (0, "ran\n" * 120, ""))
        self.assertLess(result.seconds, 10)

    def test_warnings_are_errors(self):
        """The server gives no cause for one."""
        self.write("named.py", THREADS.replace("time.sleep, args=(60,)", "int"))
        for name in "PYTHONWARNINGS", "PYTHONWARNDEFAULTENCODING":
            result = Running([DDRUN, "--label=none", "--preload=named", "train.py"], env={**PYTHON, name: "error"}, cwd=self.dir).wait()
            self.assertEqual((result.code, result.out, result.err), (0, "ran\n", ""), result)

    def test_not_for_executables(self):
        result = self.start("--preload=json", "true").wait()
        self.assertEqual((result.code, result.err), (2, "ddrun: error: --preload=json: true is not a Python program\n"))

    def test_output_of_an_import(self):
        """It is shown once, and not again by workers."""
        self.write("named.py", "import sys\nprint('half a line', end='')\nprint('warned', file=sys.stderr)\n")
        for label, host in ("rank", ""), ("host", socket.gethostname().partition(".")[0] + ":"):
            result = Running([DDRUN, "-n", "2", f"--label={label}", "--preload=named", "train.py"], env=PYTHON, cwd=self.dir).wait()
            self.assertEqual((result.code, sorted(result.out.splitlines())),
                             (0, sorted([f"[{host}0] ran", f"[{host}1] ran", f"[{host}preload] half a line"])))
            self.assertEqual(result.err, f"[{host}preload] warned\n")

    def test_search_path(self):
        """What an import puts in front of it stays there."""
        self.write("named.py", "import sys\nsys.path.insert(0, '/first')\n")
        self.write("train.py", "import sys\nprint(sys.path[:2])\n")
        self.assertEqual(self.start("--preload=named", "train.py").wait().out, f"{['/first', os.path.realpath(self.dir)]}\n")

    def test_stopped_standby_workers(self):
        """Signals are heard meanwhile; within one limit for all of them the program starts plainly."""
        job, (_, _, standby) = self.restarting()
        for pid in standby:
            os.kill(pid, signal.SIGSTOP)
        self.write("go", "")
        wait_until(lambda: "restart 1 of 3" in job.output()[1], what="the restart")
        job.process.send_signal(signal.SIGTERM)
        result = job.wait()
        self.assertEqual(result.code, 143, result)
        self.assertLess(result.seconds, 8)
        (self.dir / "go").unlink()

        # One that answers between two that do not makes no second limit.
        job, (_, _, standby) = self.restarting(count=4)
        stopped = sorted(standby)[::2]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        self.write("hold", "")
        self.write("go", "")
        for pid, seconds in zip(stopped, (60, 5)):
            wait_until(lambda pid=pid: f"a standby worker (pid {pid}) has taken no assignment within 10.0 s" in job.output()[1],
                       seconds, "the end of the limit")
        (self.dir / "hold").unlink()
        result, lines = self.go(job)
        self.assertEqual((result.code, lines), (0, ["attempt 0 preloaded True 1"] * 4 + ["attempt 1 preloaded False 1"] * 2 +
                                                ["attempt 1 preloaded True 1"] * 2), result)
        self.assertLess(result.seconds, 30)

    def test_changed_source(self):
        """Report and events have both imports."""
        job, _ = self.restarting("--report=report.json", "--events=events")
        self.write("shown.py", SHOWN.format(2))
        os.utime(self.dir / "shown.py", ns=(1, 1))
        result, lines = self.go(job)
        self.assertEqual((result.code, lines), (0, ["attempt 0 preloaded True 1"] * 2 + ["attempt 1 preloaded True 2"] * 2), result)
        self.assertIn("shown.py has changed: importing the modules of --preload anew\n", result.err)
        report = json.loads((self.dir / "report.json").read_text())
        events = [json.loads(line) for line in (self.dir / "events").read_text().splitlines()]
        found = [event for event in events if event["event"] == "preloaded"]
        self.assertEqual([(event["round"], event["modules"], event["imports"]) for event in found], [(1, ["shown"], 1), (2, ["shown"], 2)])
        self.assertEqual(report["preload"], {key: found[1][key] for key in ("modules", "import_s", "memory_kib", "imports")})
        self.assertTrue(0 < found[0]["import_s"] < 30 and 1000 < found[0]["memory_kib"] < 100_000, found)

    def test_server_killed(self):
        """Running workers go on, standby workers are used; then workers start without it."""
        job, (server, _, _) = self.restarting()
        os.kill(server[0], signal.SIGKILL)
        said = f"the server of --preload (pid {server[0]}) has ended: workers import their modules themselves from now on"
        wait_until(lambda: said in job.output()[1], what=said)
        result, lines = self.go(job)
        self.assertEqual((result.code, lines), (0, ["attempt 0 preloaded True 1"] * 2 + ["attempt 1 preloaded True 1"] * 2), result)
        self.assertEqual(result.err.count("the server of --preload"), 1)

    def test_standby_worker_killed(self):
        """One that is missing is replaced by a plain start."""
        job, (_, _, standby) = self.restarting()
        os.kill(standby[0], signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{standby[0]}"), what="its end")
        result, lines = self.go(job)
        self.assertEqual((result.code, lines), (0, ["attempt 0 preloaded True 1"] * 2 +
                                                ["attempt 1 preloaded False 1", "attempt 1 preloaded True 1"]), result)

    def test_fork_fails(self):
        """Workers without a server start by themselves; a restart without standby workers has a new server."""
        for number, preloaded in ((2, ["False", "True"]), (3, ["True", "True"])):
            with self.subTest(number=number):
                self.write("restarting.py", RESTARTING)
                self.write("shown.py", SHOWN.format(1) + FORK_FAILS.format(number))
                job = self.start("-n", "2", "--preload=shown", "--max-restarts=1", "restarting.py")
                wait_until(lambda: job.output()[0].count("attempt 0") == 2, what="both workers")
                result, lines = self.go(job)
                os.unlink(self.dir / "go")
                self.assertEqual((result.code, lines), (0, [f"attempt {attempt} preloaded {forked} 1" for attempt in (0, 1)
                                                            for forked in preloaded]), result)
                said = f"the server cannot fork more than {number - 1} worker{'s' * (number > 2)}: Resource temporarily unavailable"
                self.assertEqual(result.err.count(said), 2, result)

    def test_cgroup(self):
        """Workers and those that wait for a restart are in the job's, where there is one; the server is not."""
        job, (server, workers, standby) = self.restarting()
        names = [f"ddrun-{pid}" for pid in job.processes()]
        groups = [name for name in names for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
                  if glob.glob(f"{root}/**/{name}", recursive=True)]
        members = [pid for pid in server + workers + standby if "/ddrun-" in pathlib.Path(f"/proc/{pid}/cgroup").read_text()]
        self.go(job)
        if not groups:
            self.skipTest("the job has no cgroup here")
        self.assertEqual(sorted(members), sorted(workers + standby))

    def test_workers_killed(self):
        """With SIGKILL for all that is in the cgroup: the same server forks new ones, and they are in it as well."""
        for variable in "DDRUN_NO_CGROUP", "DDRUN_NO_PROC_CHILDREN", "DDRUN_TEST_NOTHING":
            with self.subTest(variable=variable):
                job, (_, workers, standby) = self.restarting("--shutdown-timeout=0", env={variable: "1"})
                member = ["/ddrun-" in pathlib.Path(f"/proc/{pid}/cgroup").read_text() for pid in workers][0]
                self.write("hold", "")
                self.write("go", "")
                wait_until(lambda: job.output()[0].count("attempt 1") == 2, what=lambda: job.output())
                self.assertFalse([pid for pid in workers + standby if os.path.exists(f"/proc/{pid}")])
                now = [pid for pid, command in job.processes().items() if "ddrun --preload" in command and os.getsid(pid) == pid]
                self.assertEqual(["/ddrun-" in pathlib.Path(f"/proc/{pid}/cgroup").read_text() for pid in now], [member] * len(now))
                self.assertGreaterEqual(len(now), 2)
                os.unlink(self.dir / "hold")
                result, lines = self.go(job)
                os.unlink(self.dir / "go")
                self.assertEqual((result.code, lines), (0, ["attempt 0 preloaded True 1"] * 2 + ["attempt 1 preloaded True 1"] * 2), result)

    def test_ddrun_killed(self):
        """Guard and agent: nothing stays, as the run's end checks."""
        job, _ = self.restarting()
        for pid, command in job.processes().items():
            if command.startswith(DDRUN):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not job.processes(), what=lambda: job.processes())
        job.wait()

    def importing(self):
        """A job whose server imports a module that takes its time."""
        self.write("slow.py", "import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
        job = self.start("-n", "2", "--preload=slow", "train.py")
        wait_until(lambda: "importing" in job.output()[0], what="the import")
        return job

    def test_signal_while_importing(self):
        job = self.importing()
        job.process.send_signal(signal.SIGTERM)
        result = job.wait()
        self.assertEqual((result.code, result.out), (143, "importing\n"), result)
        self.assertNotIn("holds the output open", result.err)
        self.assertLess(result.seconds, 30)

    def test_server_killed_while_importing(self):
        job = self.importing()
        [server] = [pid for pid, command in job.processes().items() if "ddrun --preload" in command]
        os.kill(server, signal.SIGKILL)
        result = job.wait()
        self.assertEqual(result.code, 125, result)
        self.assertIn(f"the server of --preload (pid {server}) has ended while it imported its modules", result.err)


if __name__ == "__main__":
    main()
