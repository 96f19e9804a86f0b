"""Functions on ranks: ddrun.run, ddrun.Group, and the functions of accelerate and torch that are made of them."""
import bdb
import contextlib
import faulthandler
import functools
import io
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import uuid
from unittest import mock

from harness import DDRUN, PYTHON, Running, TorchTest, VENV, environment, main, processes_of, running, wait_until
from documents import DOCS, ROOT, Page

PACKAGE = {"PYTHONPATH": ROOT / "python", "DDRUN_PROGRAM": DDRUN}
FOREVER = 1000  # seconds


class BadLuck(Exception):
    pass


class NotPickled(Exception):
    def __reduce__(self):
        raise TypeError("no")


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a}-{b}")


def raise_two():
    raise TwoArguments(1, 2)


async def answer():
    return 7


def rank():
    return int(os.environ["RANK"])


def pid():
    return os.getpid()


def fail_on(failing, error):
    if rank() == failing:
        raise error
    time.sleep(FOREVER)


def kill_on(killed):
    if rank() == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FOREVER)


def raise_not_pickled():
    raise NotPickled("what it says")


def touch(folder):
    (folder / f"{rank()}").touch()


def wait_for(folder, other):
    while not (folder / f"{other}").exists():
        time.sleep(0.01)


def sleep(folder):
    touch(folder)
    time.sleep(FOREVER)


def summed():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return reduced(torch.tensor(rank()))


def reduced(value):
    import torch.distributed as dist

    dist.all_reduce(value)
    return value.item()


def fail_in_collective(folder, failing, function):
    """Once the others have begun it; then they call the function of it."""
    import torch
    import torch.distributed as dist

    if rank() == failing:
        for other in range(dist.get_world_size()):
            if other != failing:
                wait_for(folder, other)
        raise BadLuck
    work = dist.all_reduce(torch.tensor(1), async_op=True)
    touch(folder)
    function(work)


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


class Counted:
    """Appends to a list each time that it is pickled."""

    def __init__(self, pickled):
        self.pickled = pickled

    def __reduce__(self):
        self.pickled.append(self)
        return Counted, ([],)


class PackageTest(TorchTest):
    needs = ("cloudpickle",)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        global ddrun
        import ddrun
        cls.ddrun = ddrun

    def setUp(self):
        super().setUp()
        os.environ[running.MARK] = self.mark = uuid.uuid4().hex
        self.addCleanup(self.assert_none_left)
        self.printed = {"stdout": "", "stderr": ""}
        patch = mock.patch("ddrun._output.HOLD", FOREVER)  # seconds that a line waits for equal ones
        patch.start()
        self.addCleanup(patch.stop)

    def assert_none_left(self):
        self.assertEqual(processes_of(self.mark), {})

    def show(self, stream, text):
        self.printed[stream] += text

    def group(self, *args, **options):
        group = ddrun.Group(*args, show=self.show, **options)
        self.addCleanup(group.close, now=True)
        return group

    def wait_for_ranks(self, *ranks):
        wait_until(lambda: {path.name for path in self.tmp.iterdir()} >= {str(rank) for rank in ranks}, 120, "files of ranks")

    def start(self, text, *args):
        """A program that uses the package."""
        (self.tmp / "program.py").write_text(text)
        made = Running([PYTHON, self.tmp / "program.py", *args], env={**PACKAGE, "HOME": self.tmp})
        self.addCleanup(made.kill)
        return made


class Run(PackageTest):
    def run_4(self, function, *args, **options):
        out, err = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                return ddrun.run(function, *args, **{"nproc_per_node": 4, **options})
        finally:
            self.printed = {"stdout": out.getvalue(), "stderr": err.getvalue()}
            self.assert_none_left()

    def test_values(self):
        factor = 10
        self.assertEqual(self.run_4(answer), [7] * 4)
        self.assertEqual(self.run_4(lambda add, times: factor * rank() + add * times, 1, times=2), [2, 12, 22, 32])
        self.assertEqual(self.printed, {"stdout": "", "stderr": ""})

    @mock.patch("ddrun._output.HOLD", 60)
    def test_output(self):
        """All of it comes before the values; equal lines come once."""
        def function():
            print("same")
            os.system("echo rank $RANK >&2")
        self.run_4(function)
        self.assertEqual(self.printed["stdout"], "[0-3] same\n")
        self.assertEqual(sorted(self.printed["stderr"].splitlines()), [f"[{rank}] rank {rank}" for rank in range(4)])

    def test_exception(self):
        with self.assertRaises(BadLuck) as caught:
            self.run_4(fail_on, 2, BadLuck("twice"))
        self.assertEqual((caught.exception.args, caught.exception.ddrun_rank), (("twice",), 2))
        self.assertEqual(caught.exception.__notes__, [f"rank 2 of 4 on {socket.gethostname()}, the first to fail"])
        self.assertRegex(str(caught.exception.__cause__), "Traceback (?s:.*), in fail_on\n(?s:.*)BadLuck: twice")
        self.assertNotIn("_worker.py", str(caught.exception.__cause__))

    def test_exception_that_cannot_be_pickled(self):
        with self.assertRaisesRegex(ddrun.RankError, "NotPickled: what it says"):
            self.run_4(raise_not_pickled)
        with self.assertRaisesRegex(ddrun.RankError, "SystemExit: 3"):
            self.run_4(sys.exit, 3)
        with self.assertRaisesRegex(TypeError, "what the function returned on rank [0-3] cannot be sent: .*pickle"):
            self.run_4(threading.Lock)
        with self.assertRaisesRegex(ddrun.RankError, r"TwoArguments: 1-2 \(.*TwoArguments cannot be unpickled: .*missing"):
            self.run_4(raise_two)

    def test_death(self):
        with self.assertRaisesRegex(ddrun.RankDied, "rank 1 .*killed by SIGKILL") as caught:
            self.run_4(kill_on, 1)
        self.assertEqual((caught.exception.rank, caught.exception.signal, caught.exception.exit_code), (1, signal.SIGKILL, None))
        self.assertEqual(caught.exception.host, socket.gethostname())
        with self.assertRaises(ddrun.RankDied) as caught:
            self.run_4(os._exit, 7)
        self.assertEqual((caught.exception.signal, caught.exception.exit_code), (None, 7))

    def test_restart(self):
        def function():
            assert os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
            return rank()
        self.assertEqual(self.run_4(function, options=["--max-restarts=1"]), [0, 1, 2, 3])
        self.assertRegex(self.printed["stderr"], "^ddrun: restarting: rank [0-3] .* exited with code 1\n$")

    def test_wrong_options(self):
        for options in ({"nproc_per_node": "x"}, {"options": ["--nope"]}):
            with self.subTest(options=options), self.assertRaisesRegex(RuntimeError, "^ddrun: error: [^\n]*$"):
                self.run_4(pid, **options)
        with self.assertRaisesRegex(ValueError, "--label is not for calls"):
            self.run_4(pid, options=["--label=none"])


class Groups(PackageTest):
    def test_calls(self):
        group = self.group(3)
        pids = group.run(pid)
        self.assertEqual([peer.pid for peer in group.peers()], pids)
        self.assertEqual(set(group.map(lambda a, b: (a * b, os.getpid() in pids), range(20), range(20))),
                         {(value * value, True) for value in range(20)})
        self.assertEqual(group.map(divmod, range(20), [3] * 20), [divmod(value, 3) for value in range(20)])
        group.put(shared=7)
        self.assertEqual(group.pull("shared + rank"), [7, 8, 9])
        self.assertEqual(group.run(lambda: shared * world_size), [21] * 3)  # noqa: F821  of the ranks
        self.assertEqual(group.run(pid, ranks=[2, 0]), [pids[2], pids[0]])
        self.assertEqual(group.pull("rank", ranks=1), [1])
        with self.assertRaisesRegex(ValueError, "no rank 3,7 here; there are 0-2"):
            group.run(pid, ranks=[3, 1, 7])
        self.assertEqual(group.run(pid), pids)
        group.close()
        self.assert_none_left()
        self.assertEqual(self.printed, {"stdout": "", "stderr": ""})

    def test_threads(self):
        """A call while another one runs is an error, and disturbs that one as little as one after it."""
        group, values = self.group(2), []

        def function(folder):
            touch(folder)
            wait_for(folder, "go")
        thread = threading.Thread(target=lambda: values.append(group.run(function, self.tmp)))
        thread.start()
        self.wait_for_ranks(0, 1)
        for call in (lambda: group.run(pid), group.restart, group.peers):
            with self.assertRaisesRegex(RuntimeError, "runs in another thread"):
                call()
        (self.tmp / "go").touch()
        thread.join()
        self.assertEqual((values, group.run(rank)), ([[None, None]], [0, 1]))

    def test_descriptions(self):
        self.assertEqual(set(dir(ddrun)), {"__version__", "find_ddrun", "run", "Group", "RankDied", "RankError", "LaunchConfig",
                                           "elastic_launch", "notebook_launcher"})
        group = self.group(2, options="--timestamps --env=A='b c'")
        self.assertEqual(group.run(os.getenv, "A"), ["b c"] * 2)
        self.assertEqual(repr(group), f"<Group: 2 ranks on {socket.gethostname()}>")
        self.assertRegex(repr(group.peers()), r"^\[<rank 0 of 2: pid \d+ on .*>, <rank 1 of 2: ")
        group.close()
        self.assertEqual(repr(group), "<Group: ended>")

    def test_words(self):
        """run takes those of a Group; one that the function has too is for functools.partial."""
        def limited(timeout=None, ranks=None, options=()):
            return timeout, ranks, options, rank()
        for call in (lambda: ddrun.run(limited, nproc_per_node=1, timeout=60), lambda: ddrun.run(limited, options="--tee=3"),
                     lambda: group.run(limited, ranks=[1]), lambda: group.run(functools.partial(limited, ranks=0), timeout=1)):
            group = self.group(2)
            with self.assertRaisesRegex(TypeError, r"is a parameter of this call and of .*functools\.partial\(function, "):
                call()
        given = functools.partial(limited, timeout=3, ranks=4)
        self.assertEqual(group.run(given, ranks=[1], timeout=60), [(3, 4, (), 1)])
        self.assertEqual(group.run(limited, 1, 2, [3]), [(1, 2, [3], 0), (1, 2, [3], 1)])
        self.assertEqual(ddrun.run(given, nproc_per_node=2, preload="json", timeout=60, show=self.show),
                         [(3, 4, (), 0), (3, 4, (), 1)])

    def test_timeout(self):
        """TimeoutError, whose cause and note say where ranks were; the group can be used again."""
        def asleep(chosen):
            if rank() in chosen:
                time.sleep(FOREVER)
        group = self.group(3, timeout=0.5)
        for call, names in ((lambda: group.run(asleep, [0, 2]), "ranks 0,2"), (lambda: group.map(asleep, [[0, 1, 2]]), "rank 0"),
                            (lambda: group.run(asleep, [1], timeout=0.1, ranks=[1]), "rank 1")):
            with self.assertRaisesRegex(TimeoutError, f"more than 0.[15] s; {names} had not answered") as caught:
                call()
            self.assertIn("time.sleep(FOREVER)", str(caught.exception.__cause__))
            self.assertRegex(caught.exception.__notes__[0], rf"^where the ranks of .*\n  {names}\D.*sleeps, .*\n    .*asleep ")
            self.assertNotIn("_worker.py", caught.exception.__notes__[0])
            self.assertEqual(group.run(rank, timeout=60), [0, 1, 2])
        self.assertRegex(group.stacks([1]), r"^where the ranks of .*\n  rank 1 .*waits for another thread")
        with self.assertRaisesRegex(TimeoutError, "^ddrun: error: stopped after 1.0 s") as caught:
            ddrun.run(time.sleep, FOREVER, nproc_per_node=2, timeout=1)
        self.assertRegex(caught.exception.__notes__[0], r"^ddrun: where the ranks .*after 1.0 s \(--timeout\):\n  rank")

    def test_input(self):
        """There is none, and the exception says what to write instead; what replaces sys.stdin is read."""
        def ask(text=None):
            if text is not None:
                sys.stdin = io.StringIO(text)
            return input("name? ")
        with self.assertRaisesRegex(EOFError, "input.. is not served on ranks; ask in the program .*as an argument.*%ddrun push"):
            ddrun.run(ask, nproc_per_node=1, show=self.show)
        self.assertEqual(self.group(1).run(ask, "ann\n"), ["ann"])
        with self.assertRaisesRegex(EOFError, "^EOF when reading a line$"):
            self.group(1).run(ask, "")

    def test_map(self):
        """The function is sent once to each rank, items when they are due; what fails names its item."""
        group, pickled = self.group(2), []

        def bad(number, *_):
            if number == 37:
                raise BadLuck(number)
            return number

        self.assertEqual(group.map(bad, filter(lambda number: number != 37, range(1000))), [*range(37), *range(38, 1000)])
        # Of items without an end.
        with self.assertRaises(BadLuck) as caught:
            group.map(bad, itertools.count(), itertools.repeat("x" * 1000))
        self.assertRegex("\n".join(caught.exception.__notes__), r"rank \d of 2(?s:.*)item 37 of map: 37, 'x+\.\.\.x+'$")
        count = Counted(pickled)
        self.assertEqual(group.map(lambda number: count and number, range(100)), [*range(100)])
        self.assertEqual(len(pickled), 1)

        def fails():
            yield 1
            raise KeyError("of the items")
        with self.assertRaisesRegex(KeyError, "of the items"):
            group.map(rank, fails())
        self.assertEqual((group.map(pow, [], []), group.map(pow, [2, 3], [3, 2])), ([], [8, 9]))

    def test_what_cannot_be_sent(self):
        """Is named: an argument, a variable that the function uses, what it returned on which rank."""
        group, lock = self.group(2), threading.Lock()
        for call, name in ((lambda: group.run(pid, lock), "argument 1 of pid"), (lambda: group.run(pid, of=[lock]), "argument of of pid"),
                           (lambda: group.run(lambda: lock.locked()), r"lock, which .*<lambda> uses,"),
                           (lambda: group.map(lambda _: lock.locked(), [1]), r"lock, which .*<lambda> uses,"),
                           (lambda: group.map(str, [1, lock]), "item 1 of map"), (lambda: ddrun.run(pid, lock), "argument 1 of pid"),
                           (lambda: group.put(x=lock), "argument 1 of put")):
            with self.assertRaisesRegex(TypeError, f"^{name} cannot be sent to ranks: cannot pickle '_thread.lock' object"):
                call()
        with self.assertRaisesRegex(TypeError, "^what the function returned on rank 1 cannot be sent: .*'_thread.lock' object"):
            group.run(threading.Lock, ranks=[1])
        self.assertEqual(group.run(rank), [0, 1])

    @mock.patch("ddrun._output.HOLD", 60)
    def test_output(self):
        def function():
            for line in ("same", f"rank {rank()}", "same"):
                print(line)
            print("torn", end="")
        group = self.group(2)
        group.run(function)
        self.assertEqual(self.printed["stdout"], "[0,1] same\n[0] rank 0\n[1] rank 1\n[0,1] same\n[0,1] torn\n")

    def test_time_stamps(self):
        """Of ddrun's option; a rank is asked once."""
        group = self.group(2, options=["--timestamps"])
        self.assertEqual(group.run(lambda: print("said", rank()), ranks=[1, 1]), [None])
        self.assertRegex(self.printed["stdout"], r"^\[1\] [\d:.]+ said 1\n$")

    def test_exception(self):
        group = self.group(3)
        pids = group.run(pid)
        for _ in range(3):
            with self.assertRaises(BadLuck) as caught:
                group.run(fail_on, 1, BadLuck())
            self.assertEqual(caught.exception.ddrun_rank, 1)
            self.assertEqual(group.run(pid), pids)

    def test_interrupts(self):
        group = self.group(3)
        pids = group.run(pid)

        def interrupt_by(action, ranks):
            for path in self.tmp.iterdir():
                path.unlink()
            thread = threading.Thread(target=lambda: (self.wait_for_ranks(*ranks), action()))
            thread.start()
            with self.assertRaises(KeyboardInterrupt):
                group.run(sleep, self.tmp, ranks=ranks)
            thread.join()
            self.assertEqual(group.run(pid), pids)

        interrupt_by(lambda: os.kill(os.getpid(), signal.SIGINT), [0, 1, 2])
        interrupt_by(lambda: os.kill(os.getpid(), signal.SIGINT), [1])
        interrupt_by(group.interrupt, [0, 1, 2])

    def test_restart_and_death(self):
        group = self.group(2)
        pids = [group.run(pid)]
        group.put(kept=1)
        group.restart()
        pids.append(group.run(pid))
        with self.assertRaises(NameError):
            group.pull("kept")
        with self.assertRaisesRegex(ddrun.RankDied, "rank 1 .*killed by SIGKILL") as caught:
            group.run(kill_on, 1)
        self.assertEqual((caught.exception.rank, caught.exception.pid), (1, pids[1][1]))
        self.assertIn("all ranks start anew", caught.exception.__notes__[0])
        pids.append(group.run(pid))
        os.kill(pids[2][0], signal.SIGALRM)  # between two calls
        with self.assertRaisesRegex(ddrun.RankDied, "rank 0 .*killed by SIGALRM"):
            group.run(sleep, self.tmp)
        pids.append(group.run(pid))
        self.assertEqual(len({pid for of_round in pids for pid in of_round}), 8)

        def aborts():
            if rank() == 1:
                faulthandler.disable()
                os.abort()
            time.sleep(FOREVER)
        with self.assertRaisesRegex(ddrun.RankDied, r"^rank 1 .*killed by SIGABRT.*$") as caught:
            group.run(aborts)
        self.assertRegex(caught.exception.__notes__[0], r"^ddrun: where the ranks .*after rank 1 aborted:\n  rank 0 .*\n    .*aborts ")
        self.assertEqual(self.printed, {"stdout": "", "stderr": ""})

    def test_modules(self):
        """Ranks import them from the caller's sys.path, changed ones anew after a restart."""
        module = self.tmp / "answers.py"
        module.write_text("def answer():\n    return 1\n")
        with mock.patch("sys.path", [*sys.path, str(self.tmp)]):
            from answers import answer
            group = self.group(2)
        self.assertEqual(group.run(answer), [1, 1])
        module.write_text("def answer():\n    return 22\n")
        self.assertEqual(group.run(answer), [1, 1])
        group.restart()
        self.assertEqual(group.run(answer), [22, 22])

    @mock.patch("ddrun._group.RESTART_AFTER", 1)
    def test_end_without_a_failure(self):
        """A rank that leaves by itself is dead too."""
        def leave():
            os._exit(0) if rank() == 1 else time.sleep(FOREVER)
        group = self.group(2)
        with self.assertRaisesRegex(ddrun.RankDied, "rank 1 .*exited with code 0"):
            group.run(leave)
        self.assertEqual(group.run(rank), [0, 1])
        with self.assertRaisesRegex(ddrun.RankDied, "rank 0 .*exited with code 0 before it has answered"):
            ddrun.run(lambda: 5 if rank() else os._exit(0), nproc_per_node=2)

    def test_restart_after_a_death(self):
        group = self.group(2)
        pids = group.run(pid)
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{pids[0]}"))
        group.restart()
        self.assertEqual(group.run(rank), [0, 1])

    def test_output_between_calls(self):
        """Neither a rank that prints much nor one whose stdout is closed blocks."""
        def print_later():
            def count():
                for number in itertools.count():
                    print(number)
                    if enough.exists():
                        return touch(enough.parent)
            threading.Thread(target=count).start()
        group, enough = self.group(1), self.tmp / "enough"
        group.run(print_later)
        wait_until(lambda: group._job.dropped, 120, "more than is kept")
        enough.touch()
        wait_for(self.tmp, 0)
        self.assertEqual(group.run(rank), [0])
        self.assertRegex(self.printed["stderr"], r"^ddrun: [\d,]+ bytes that ranks printed between calls were not kept\n$")
        group.run(lambda: (sys.stdout.close(), os.close(1), os.close(2)))
        self.assertEqual(group.run(rank), [0])

    def test_hosts(self):
        group = self.group(2, hosts="localhost,127.0.0.1")
        self.assertEqual(group.run(rank), [0, 1, 2, 3])
        self.assertEqual(group.run(bytes, 5_000_000, ranks=[3]), [bytes(5_000_000)])
        self.assertEqual({peer.pid for peer in group.peers()}, set(group.run(pid)))
        with self.assertRaises(BadLuck):
            group.run(fail_on, 3, BadLuck())
        port = group._job.listener.getsockname()[1]
        proof = self.tmp / "unpickled"
        silent = socket.create_connection(("127.0.0.1", port))
        self.addCleanup(silent.close)
        message = pickle.dumps(({"RANK": 0}, Touch(proof), 1))
        framed = len(message).to_bytes(8, "big") + bytes(32) + message
        for sent in (bytes(32) + framed, framed, bytes(32) + (1 << 40).to_bytes(8, "big") + bytes(40)):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                received = b""
                with contextlib.suppress(ConnectionResetError):
                    while more := stranger.recv(1000):
                        received += more
                self.assertEqual(len(received), 32)  # the nonce
        self.assertEqual(group.run(rank), [0, 1, 2, 3])
        self.assertFalse(proof.exists())

    @unittest.skipUnless(os.geteuid() == 0, "only root can be another user")
    def test_another_user(self):
        group = self.group(1)
        proof = self.tmp / "unpickled"
        self.tmp.chmod(0o777)
        message = pickle.dumps(({"RANK": 0}, Touch(proof), 1))
        script = f"""import socket
with socket.socket(socket.AF_UNIX) as stranger:
    stranger.connect({group._job.listener.getsockname()})
    try:
        stranger.sendall({len(message).to_bytes(8, "big") + message})
        print(stranger.recv(1) or "closed")
    except OSError:
        print("closed")
"""
        done = subprocess.run(["python3", "-c", script], user=65534, group=65534, capture_output=True, text=True, timeout=60,
                              cwd="/", check=False)
        self.assertEqual(done.stdout, "closed\n", done.stderr)
        self.assertEqual(group.run(rank), [0])
        self.assertFalse(proof.exists())

    def test_caller_is_killed(self):
        """In a call, and between two."""
        for call in ("group.run(time.sleep, 1000)", "time.sleep(1000)"):
            with self.subTest(call):
                caller = self.start(f"import ddrun, time\ngroup = ddrun.Group(2)\nprint('ready', flush=True)\n{call}\n")
                wait_until(lambda caller=caller: "ready" in caller.output()[0], 120, caller.output)
                self.assertGreaterEqual(len(caller.processes()), 4)
                caller.process.kill()
                wait_until(lambda caller=caller: not caller.processes(), 60, caller.processes)

    def test_end_without_close(self):
        result = self.start("import ddrun\ngroup = ddrun.Group(2)\nprint(group.run(int))\n").wait()
        self.assertEqual((result.code, result.out, result.err), (0, "[0, 0]\n", ""))


class Breakpoints(PackageTest):
    def debug(self, call, *lines):
        """What call() returns, and the prompts; lines of input, or functions that are called in place of it."""
        prompts, left = [], list(lines)

        def answer(prompt):
            prompts.append(prompt)
            line = left.pop(0)
            return line() if callable(line) else line
        with mock.patch("builtins.input", answer):
            value = call()
        self.assertEqual(left, [])
        return value, prompts

    def setUp(self):
        super().setUp()

        def function():
            number = rank() * 10
            print("before")
            breakpoint()
            number += 1
            return number
        self.function = function

    def after_another(self, group, line):
        wait_until(lambda: group._job.inbox.qsize() or "waits" in self.printed["stderr"], 60, "a request of another rank")
        return line

    def test_one_rank_at_a_time(self):
        group = self.group(2)
        values, prompts = self.debug(lambda: group.run(self.function), lambda: self.after_another(group, "p number"), "n", "n", "n", "p number", "number = 5", "c")
        first, second = prompts[0][:4], prompts[-1][:4]
        self.assertEqual({first, second}, {"[0] ", "[1] "})
        self.assertEqual(prompts, [f"{first}(Pdb) "] * 4 + [f"{second}(Pdb) "] * 3)
        chosen = int(first[1])
        self.assertEqual(values, [chosen * 10 + 1, 6][::-1 if chosen else 1])
        # The other rank may print it while this one answers.
        out = self.printed["stdout"].replace(f"[{1 - chosen}] before\n", "")
        self.assertRegex(out, rf"(?s)^(\[[\d,-]+\] before\n)+.*\[{chosen}\] > .*test_group\.py\(\d+\)function\(\)\n\[{chosen}\] -> "
                              rf"number \+= 1\n\[{chosen}\] {chosen * 10}\n")
        self.assertIn(f"{first}--Return--\n", out)
        self.assertRegex(self.printed["stderr"], rf"^ddrun: rank {1 - chosen} waits at a breakpoint until rank {chosen} goes on\n$")
        self.assertEqual(group.run(rank), [0, 1])

    def test_stack(self):
        """Without frames of ddrun; what is printed meanwhile comes before the next prompt."""
        group = self.group(1)
        self.debug(lambda: group.run(self.function), "w", "print('shown', number)", "u", "c")
        self.assertRegex(self.printed["stdout"], r"^before\n> .*function\(\)\n-> number \+= 1\n> .*function\(\)\n-> number \+= 1\n"
                                                 r"shown 0\n\*\*\* Oldest frame\n$")

    def test_ends(self):
        """By q, at the end of the input, where there is none, and by Ctrl-C."""
        group = self.group(2)

        def stop():
            raise KeyboardInterrupt

        def end():
            raise EOFError

        def none():
            raise OSError("reading from stdin is not possible")
        for line, error in (("q", bdb.BdbQuit), (end, bdb.BdbQuit), (none, bdb.BdbQuit), (stop, KeyboardInterrupt)):
            with self.subTest(line), self.assertRaises(error):
                self.debug(lambda: group.run(self.function), line)
            self.assertEqual(group.run(rank), [0, 1])
        self.assertRegex(self.printed["stderr"], r"no input for the debugger of rank \d: reading from stdin is not possible")

    def test_limits(self):
        """Time at a prompt does not count."""
        group = self.group(1, timeout=2)
        self.assertEqual(self.debug(lambda: group.run(self.function), lambda: time.sleep(3) or "c")[0], [1])

    def test_others_go_on(self):
        """The prompt comes while another rank answers all the time."""
        group, folder = self.group(2), self.tmp

        def item(number):
            if number == 0:
                breakpoint()
                (folder / "done").touch()
            return (folder / "done").exists()

        def items():
            yield 0
            for _ in range(10**6):
                if (folder / "done").exists():
                    return
                yield 1
            self.fail("the prompt did not come")
        self.assertTrue(self.debug(lambda: group.map(item, items()), "c")[0][0])

    def test_elsewhere(self):
        """In a thread it is served too; `run` and PYTHONBREAKPOINT."""
        def in_thread():
            thread = threading.Thread(target=function)
            thread.start()
            thread.join()
        group, function = self.group(1), self.function
        self.debug(lambda: group.run(in_thread), "n", "c")
        with self.assertRaisesRegex(RuntimeError, "in calls of a ddrun.Group"):
            ddrun.run(self.function, nproc_per_node=1)
        self.assertEqual(self.debug(lambda: self.group(1, options="--env=PYTHONBREAKPOINT=0").run(self.function)), ([1], []))


class Torch(PackageTest):
    def check(self, group):
        self.assertEqual(group.run(summed), [6] * 4)
        pids = group.run(pid)
        # The others cannot be interrupted, or can and have begun a collective that never ends.
        for name, function in (("stuck", lambda work: work.wait()), ("asleep", lambda _: time.sleep(FOREVER))):
            (self.tmp / name).mkdir()
            with self.assertRaises(BadLuck) as caught:
                group.run(fail_in_collective, self.tmp / name, 2, function)
            self.assertIn("process group", caught.exception.__notes__[1])
            self.assertEqual(group.run(summed), [6] * 4)
            self.assertEqual(group.run(pid), pids)
        group.restart()
        self.assertFalse(set(group.run(pid)) & set(pids))
        self.assertEqual(group.run(summed), [6] * 4)

    def test_preloaded(self):
        self.check(self.group(4, preload="torch"))

    @mock.patch("ddrun._group.RESTART_AFTER", 1)
    @mock.patch("ddrun._call.RESTART_AFTER", 1)
    def test_rank_that_cannot_be_interrupted(self):
        """It hears nothing of a restart either: its main thread holds Python's lock."""
        def hold():
            import ctypes

            if rank() == 0:
                wait_for(folder, 1)
                raise BadLuck
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            touch(folder)
            ctypes.PyDLL(None).sleep(FOREVER)
        folder = self.tmp
        group = self.group(2)
        with self.assertRaises(BadLuck) as caught:
            group.run(hold)
        self.assertIn("rank 1 did not stop; all ranks were started anew", caught.exception.__notes__[1])
        self.assertEqual(group.run(rank), [0, 1])
        self.assertEqual(self.printed, {"stdout": "", "stderr": ""})


    def test_page(self):
        self.assertGreater(Page(DOCS / "python.md", self.tmp, VENV).run().ran, 0)


def run_with_package():
    """With the Python that has cloudpickle."""
    if sys.executable != PYTHON and list(VENV.glob("lib/python3*/site-packages/cloudpickle")):
        os.execve(PYTHON, [PYTHON, *sys.argv], environment(**PACKAGE, DDRUN_TEST_PROGRAM=DDRUN))
    faulthandler.dump_traceback_later(280, exit=True)
    main()


if __name__ == "__main__":
    run_with_package()
