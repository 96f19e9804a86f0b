"""What ddrun.run and ddrun.Group do when something is wrong: with the job, its connections, its output or the caller."""
import contextlib
import gc
import io
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from harness import processes_of, wait_until
from test_group import FOREVER, PackageTest, pid, rank, run_with_package, touch, wait_for


def value_or(action):
    """"value" on rank 0; rank 1 raises an exception, is killed, or leaves."""
    if rank() == 0:
        return "value"
    if action == "raise":
        raise ValueError("no data")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


def receive(source, size):
    data = b""
    while len(data) < size:
        if not (more := source.recv(size - len(data))):
            raise ConnectionError
        data += more
    return data


class Proxy:
    """Between ranks and caller over TCP. Changes a frame to each rank, or from it, of which 0 is the greeting: where is the byte
    to change, below 72 of its header, or None, which ends the connection in the middle of it."""

    def __init__(self, test, port, direction, where, number=1):
        self.port, self.direction, self.where, self.number = port, direction, where, number
        self.listener = socket.create_server(("127.0.0.1", 0))
        test.addCleanup(self.listener.close)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                to_rank, _ = self.listener.accept()
                to_caller = socket.create_connection(("127.0.0.1", self.port))
                for source, target, name in ((to_caller, to_rank, "to"), (to_rank, to_caller, "from")):
                    threading.Thread(target=self.forward, args=(source, target, name == self.direction), daemon=True).start()

    def forward(self, source, target, changes):
        with contextlib.suppress(OSError):
            target.sendall(receive(source, 32))
            for number in range(1000):
                header = bytearray(receive(source, 8 + 32 + 32))
                payload = bytearray(receive(source, int.from_bytes(header[:8], "big")))
                frame = header + payload
                if changes and number == self.number:
                    if self.where is None:
                        target.sendall(frame[:-5])
                        break
                    frame[self.where] ^= 1
                target.sendall(frame)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Lines(unittest.TestCase):
    def test_pieces(self):
        """Lines are the same however they are cut; a newline after a carriage return may come later than that."""
        with mock.patch("sys.path", [str(pathlib.Path(__file__).parents[2] / "python"), *sys.path]):
            from ddrun._lines import Marks, Splitter
        marks = Marks()
        label, mark = marks.label, marks.mark
        text = (f"{label}1{label}one\nddrun: error\n12:00 {label}0{label}two\r\n{label}10{label}50%\r{label}10{label}100%\n"
                f"{label}1{label}torn{mark}7\n{label}2{label}{mark}8\n{label}x{label}{mark}9\n{label}${{rank}}{label}\nend").encode()
        expected = [(1, b"one\n", None), (None, b"ddrun: error\n", None), (0, b"12:00 two\n", None), (10, b"50%\r", None),
                    (10, b"100%\n", None), (1, b"torn\n", 7), (2, b"", 8), (None, f"{label}x{label}{mark}9\n".encode(), None),
                    (None, f"{label}${{rank}}{label}\n".encode(), None), (None, b"end", None)]
        for size in range(1, len(text) + 1):
            splitter = Splitter(marks)
            lines = [line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size])] + splitter.end()
            cut = [(0, b"12:00 two\r", None), (0, b"\n", None)]
            self.assertIn(lines, (expected, expected[:2] + cut + expected[3:]), size)

    def test_long_lines(self):
        """Their pieces are of one rank, and end between two characters; a mark may follow."""
        with mock.patch("sys.path", [str(pathlib.Path(__file__).parents[2] / "python"), *sys.path]):
            from ddrun import _lines
        marks = _lines.Marks()
        text = f"{marks.label}3{marks.label}{'€' * 20}{marks.mark}7\n{marks.label}4{marks.label}next\n".encode()
        for longest in range(70, 90):
            with mock.patch.object(_lines, "LONGEST", longest):
                splitter = _lines.Splitter(marks)
                lines = [line for at in range(len(text)) for line in splitter.feed(text[at : at + 1])]
            ranks, texts, numbers = zip(*lines)
            self.assertEqual((set(ranks[:-1]), lines[-1], numbers[-2]), ({3}, (4, b"next\n", None), 7))
            self.assertEqual("".join(piece.decode().rstrip("\n") for piece in texts[:-1]), "€" * 20)


class Success(PackageTest):
    """It is proved by ddrun's verdict and an answer of each rank."""

    def test_status_that_is_lost(self):
        """The caller ignores SIGCHLD, or another thread reaps its children."""
        for case in ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "threading.Thread(target=reap, daemon=True).start()"):
            result = self.start(f"""
import ddrun, os, signal, sys, threading, time
def reap():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.001)
{case}
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_group_faults import value_or
for action in ("raise", "kill", "leave"):
    try:
        print(ddrun.run(value_or, action, nproc_per_node=2))
    except Exception as error:
        print(type(error).__name__)
print(ddrun.run(pow, 2, 3, nproc_per_node=2))
""").wait()
            self.assertEqual(result.out, "ValueError\nRankDied\nRankDied\n[8, 8]\n", str(result))

    def test_program_without_ranks(self):
        with mock.patch.dict(os.environ, DDRUN_PROGRAM="/bin/true"), self.assertRaisesRegex(RuntimeError, "without a verdict"):
            self.ddrun.run(pid, nproc_per_node=2)

    def test_connection_that_is_tampered_with(self):
        """A task does not run, or its value is not taken; nothing hangs."""
        ran = self.tmp / "ran"

        def function():
            ran.touch()
            return "value"
        for direction in ("to", "from"):
            for where in (2, -3, None):
                def behind_proxy(port, direction=direction, where=where):
                    return [["127.0.0.1", Proxy(self, port, direction, where).listener.getsockname()[1]]]
                with self.subTest(direction=direction, where=where), mock.patch("ddrun._job.addresses", behind_proxy), \
                        contextlib.redirect_stderr(io.StringIO()), self.assertRaises(self.ddrun.RankDied) as caught:
                    self.ddrun.run(function, nproc_per_node=1, options=["--hosts=localhost"])
                self.assertEqual((caught.exception.exit_code, ran.exists()), (117, False) if direction == "to" else (0, True))

    def test_task_that_is_tampered_with(self):
        """Of a group, in a later frame: no changed byte of its length, its tags or its payload gives a value."""
        ran = self.tmp / "ran"

        def function(first):
            if not first:
                ran.touch()
            return "value"
        for direction in ("to", "from"):
            for where in (7, 8, 39, 40, 71, 72, 200 if direction == "to" else 80, -1):
                ran.unlink(missing_ok=True)
                with self.subTest(direction=direction, where=where), contextlib.redirect_stderr(io.StringIO()):
                    def behind_proxy(port, direction=direction, where=where):
                        return [["127.0.0.1", Proxy(self, port, direction, where, 2).listener.getsockname()[1]]]
                    with mock.patch("ddrun._job.addresses", behind_proxy):
                        group = self.group(1, hosts="localhost")
                    self.assertEqual(group.run(function, True), ["value"])
                    with self.assertRaises(self.ddrun.RankDied):
                        group.run(function, False)
                    self.assertEqual(ran.exists(), direction == "from")
                    group.close(now=True)

    def test_caller_that_leaves_before_the_task(self):
        """In run a rank then has not done what it was there for."""
        with mock.patch("ddrun._job.Job.send", lambda job, peer, *_: job.post(peer.writer.close)), \
                self.assertRaisesRegex(self.ddrun.RankDied, "exited with code 117"):
            self.ddrun.run(pid, nproc_per_node=2)

    def test_goodbye(self):
        """A rank of a group ends well after it, and only then."""
        group = self.group(2)
        peer = group.peers()[0]
        group._job.post(peer.writer.close)
        with self.assertRaisesRegex(self.ddrun.RankDied, "rank 0 .*exited with code 117"):
            while True:
                group.run(pid)
        group = self.group(2)
        group.close()
        self.assertEqual((group._job.status, group._job.proved), (0, group._job.round))

    def test_reader_that_dies(self):
        with mock.patch("ddrun._job.Splitter.feed", side_effect=ValueError("what it says")), \
                self.assertRaisesRegex(RuntimeError, "thread that reads ddrun .*what it says"):
            self.ddrun.run(print, "a line", nproc_per_node=2)


class Bounds(PackageTest):
    """Whatever ranks print."""

    def test_rank_that_prints_without_end(self):
        """A call begins beside a thread that prints; one that prints on after the interrupt is started anew."""
        def flood(after_interrupts):
            while True:
                with contextlib.suppress(KeyboardInterrupt if after_interrupts else ()):
                    while True:
                        os.write(1, b"a line of a hundred characters".ljust(99) + b"\n")
        group = self.ddrun.Group(1, show=lambda stream, text: None)
        self.addCleanup(group.close, now=True)
        pids = group.run(pid)
        group.run(lambda: threading.Thread(target=flood, args=(False,), daemon=True).start())
        for _ in range(3):
            self.assertEqual(group.run(pid), pids)
        threading.Timer(0.5, group.interrupt).start()
        with mock.patch("ddrun._call.ABORT_AFTER", 0.2), mock.patch("ddrun._call.RESTART_AFTER", 0.2), \
                self.assertRaisesRegex(KeyboardInterrupt, "rank 0 did not stop; all ranks were started anew"):
            group.run(flood, True)
        self.assertNotEqual(group.run(pid), pids)

    def test_caller_that_is_slow(self):
        """Ranks wait for it, and it holds a bounded number of bytes."""
        group, most = self.group(1), 0

        def show(stream, text):
            nonlocal most
            if not most:
                wait_until(lambda: group._job.paused, 120, "a pause")
            most = max(most, group._job.added - group._job.taken)
            self.printed[stream] += text[-1]
        group._output.write = show
        for fold in group._output.folds.values():
            fold.write = lambda text: show("stdout", text)
        count = 400_000
        group.run(lambda: sys.stdout.write("x" * 99 + "\n") and [os.write(1, b"line\n" * 1000) for _ in range(count // 1000)])
        self.assertEqual(len(self.printed["stdout"]), count + 1)
        self.assertTrue((5 << 20) < most < (5 << 20) + (1 << 22), most)

    def test_line_without_end(self):
        """Whether the caller is slow or not, memory is bounded, and nothing is lost."""
        program = """
import ddrun, os, sys, time
if __name__ == "__main__":
    count, pause = 0, float(sys.argv[1])
    def show(stream, text):
        global count
        count += text.count("\N{EURO SIGN}")
        time.sleep(pause)
    def memory(name):
        return int(open("/proc/self/status").read().split(name)[1].split()[0]) >> 10
    with ddrun.Group(1, show=show) as group:
        group.run(int)
        open("/proc/self/clear_refs", "w").write("5")
        before = memory("VmRSS:")
        for byte in range(3):
            group.run(lambda: [os.write(1, b"." * byte), *(os.write(1, ("\N{EURO SIGN}" * 10_000).encode()) for _ in range(3333))])
        print(count, memory("VmHWM:") - before, file=sys.stderr)
"""
        for pause in (0, 0.02):
            count, memory = map(int, self.start(program, pause).wait().err.split())
            self.assertLess(3 * 3333 * 10_000 - count, 20)  # ddrun breaks the line after each 16 MiB
            self.assertLess(memory, 16)

    def test_text_is_text(self):
        """Of ranks, of modules that are preloaded and of --before: no byte of it is a label or a mark."""
        (self.tmp / "says_much.py").write_text(r"print('\x02a\x02b\x1e7\x02 from the server')")
        said = "\x02a\x02b\x1e12\n\x1e{}\n"
        with mock.patch("sys.path", [*sys.path, str(self.tmp)]):
            group = self.group(2, preload="says_much", options=[r"--before=printf '\002a\002b\0361\n'"])
        self.assertEqual(group.run(lambda: (print(said, end=""), rank())[1]), [0, 1])
        self.assertEqual(group.run(rank), [0, 1])
        self.assertEqual(self.printed["stdout"], "[before] \x02a\x02b\x1e1\n[preload] \x02a\x02b\x1e7\x02 from the server\n"
                         + "".join(f"[0,1] {line}\n" for line in said.split("\n")[:-1]))

    def test_console(self):
        """The caller's may have another encoding, or be closed; ranks write with theirs."""
        program = "import ddrun\nprint(ddrun.run(lambda: print(chr(233) + chr(0x20ac)) or 'value', nproc_per_node=1))\n"
        for encoding, expected in (("latin-1:backslashreplace", b"\xe9\\u20ac\n['value']\n"), ("ascii:backslashreplace", None)):
            (self.tmp / "console.py").write_text(program)
            done = subprocess.run([sys.executable, self.tmp / "console.py"], capture_output=True, check=False, timeout=120,
                                  env={**os.environ, "PYTHONIOENCODING": encoding})
            self.assertEqual(done.stdout, expected or b"\\xe9\\u20ac\n['value']\n", done.stderr)
        (self.tmp / "console.py").write_text(f"import ddrun, os\n{program.replace('print(ddrun', 'x = (ddrun')}"
                                             f"open({str(self.tmp / 'value')!r}, 'w').write(x[0])\n")
        subprocess.run(["sh", "-c", f'exec "{sys.executable}" console.py >&- 2>&-'], cwd=self.tmp, check=True, timeout=120)
        self.assertEqual((self.tmp / "value").read_text(), "value")


class Connections(PackageTest):
    def test_many_strangers(self):
        """They wait in the backlog; ranks connect once those in front have had their time."""
        strangers = []

        def flood(address):
            for _ in range(200):
                strangers.append(stranger := socket.socket(socket.AF_UNIX))
                self.addCleanup(stranger.close)
                stranger.connect(address)
        real = subprocess.Popen

        def start(*args, **options):
            (address,) = json.loads(options["env"]["DDRUN_PYTHON_JOB"])["addresses"]
            flood(address)
            return real(*args, **options)
        with mock.patch("ddrun._job.HANDSHAKE_TIMEOUT", 0.3), mock.patch("subprocess.Popen", start):
            before = len(os.listdir("/proc/self/fd"))
            group = self.group(2)
            self.assertEqual(group.run(rank), [0, 1])
            self.assertLess(len(os.listdir("/proc/self/fd")), before + len(strangers) + 100)

    def test_caller_that_does_not_answer(self):
        """A rank ends after its time, whatever is at the caller's address; it tries the next one first."""
        from ddrun import _connection
        nonce, late = bytes(32), b""
        for answer in (b"", nonce[:16], nonce + bytes(72), nonce + b"\xff" * 72, late):
            with socket.create_server(("127.0.0.1", 0)) as bad, socket.create_server(("127.0.0.1", 0)) as silent:
                def serve(answer=answer, bad=bad):
                    with contextlib.suppress(OSError):
                        while True:
                            bad.accept()[0].sendall(answer)
                threading.Thread(target=serve, daemon=True).start()
                job = {"addresses": [["127.0.0.1", end.getsockname()[1]] for end in (bad, silent)], "port": 0, "key": "00" * 32}
                err = io.StringIO()
                with mock.patch("ddrun._connection.TIMEOUT", 0.5), contextlib.redirect_stderr(err), \
                        self.assertRaises(SystemExit) as caught:
                    _connection.connect(job, None)
                self.assertEqual(caught.exception.code, 117)
                self.assertIn("cannot connect to the program that called ddrun", err.getvalue())
                silent.settimeout(10)
                silent.accept()[0].close()

    def test_long_path(self):
        folders = [f"/nowhere/{number:0200}" for number in range(2000)]
        with mock.patch("sys.path", [*sys.path, *folders]):
            self.assertEqual(self.ddrun.run(lambda: sys.path[-1], nproc_per_node=1), [folders[-1]])
            self.assertEqual(self.group(1, preload="json").run(lambda: sys.path[-1]), [folders[-1]])

    def test_failed_starts(self):
        """Leave neither descriptors nor processes."""
        def descriptors():
            gc.collect()  # other tests'
            return set(os.listdir("/proc/self/fd"))
        self.ddrun.run(pid, nproc_per_node=1)
        before = descriptors()
        with mock.patch.dict(os.environ, DDRUN_PROGRAM=str(self.tmp / "ddrun")), self.assertRaises(FileNotFoundError):
            self.ddrun.run(pid)
        self.assertLessEqual(descriptors(), before)
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")), \
                self.assertRaisesRegex(RuntimeError, "new thread"):
            self.ddrun.Group(2)
        self.assertLessEqual(descriptors(), before)
        wait_until(lambda: not processes_of(self.mark), 60, "the end of the job")


    def test_message_that_cannot_be_unpickled(self):
        """Is named, and ends nothing."""
        def function():
            class Here:
                pass
            Here.__module__ = Here.__qualname__ = "only_here"
            sys.modules["only_here"] = type(sys)("only_here")
            sys.modules["only_here"].only_here = Here
            sys.breakpointhook.__self__.send(None, "display", Here())  # of the Rank
        group = self.group(1)
        group.run(function)
        self.assertEqual(group.run(rank), [0])
        self.assertRegex(self.printed["stderr"], "^ddrun: a message of rank 0 cannot be unpickled: .*only_here.*\n$")


class Processes(PackageTest):
    def test_fork_of_the_caller(self):
        """It leaves the group alone."""
        result = self.start("""
import ddrun, os, sys
with ddrun.Group(2) as group:
    if (child := os.fork()) == 0:
        try:
            group.run(pow, 2, 3)
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(0)
    print(os.waitpid(child, 0)[1], group.run(pow, 2, 3))
""").wait()
        self.assertRegex(result.out, r"^this group belongs to process \d+, of which this one is a fork.*\n0 \[8, 8\]\n$", str(result))

    def test_pools_and_daemons(self):
        """A caller that forks them, in or between calls: its group and they go on, and the end waits for none of them."""
        result = self.start("""
import ddrun, multiprocessing, os, signal, subprocess, threading
context, real, children = multiprocessing.get_context("fork"), subprocess.Popen, []
def start(*args, **options):  # as in another thread, while the job has its pipes open here
    children.append(child := os.fork())
    if child == 0:
        signal.pause()
    return real(*args, **options)
def call():
    return ddrun.run(pow, 3, 2, nproc_per_node=2)
if __name__ == "__main__":
    subprocess.Popen = start
    group, pooled = ddrun.Group(2), []
    subprocess.Popen = real
    def use_pool():
        with context.Pool(2) as pool:
            pooled.extend(pool.map(abs, range(-50, 0)))
    thread = threading.Thread(target=use_pool)
    thread.start()
    print([group.run(pow, 2, 3) for _ in range(5)][-1])
    thread.join()
    daemon = context.Process(target=signal.pause, daemon=True)
    daemon.start()
    with context.Pool(1) as pool:
        print(pooled[0], pool.apply(call), group.run(pow, 2, 3))
        group.close()
        print(pool.apply(abs, (-1,)), daemon.is_alive())
    os.kill(children[0], signal.SIGKILL)
""").wait()
        self.assertEqual(result.out, "[8, 8]\n50 [9, 9] [8, 8]\n1 True\n", str(result))

    def test_caller_that_becomes_a_daemon(self):
        """The job ends with the process that made it; its fork makes another one."""
        result = self.start("""
import ddrun, os, select
group, ends = ddrun.Group(2), os.pipe()
pids = [peer.pid for peer in group.peers()]
if os.fork():
    os.read(ends[0], 1)
    os._exit(0)
os.setsid()
pidfds = [os.pidfd_open(pid) for pid in pids]
os.write(ends[1], b"x")
for pidfd in pidfds:
    select.select([pidfd], [], [], 60)[0] or print("a rank lives on")
with ddrun.Group(2) as another:
    print(another.run(pow, 2, 3))
group.close()
""")
        wait_until(lambda: "[8, 8]\n" == result.output()[0], 60, result.output)
        wait_until(lambda: not result.processes(), 60, result.processes)

    def test_thread_that_ends(self):
        """A group outlives the thread that made it."""
        made = []
        thread = threading.Thread(target=lambda: made.append(self.group(2)))
        thread.start()
        thread.join()
        pids = made[0].run(pid)
        wait_until(lambda: not thread.is_alive(), 60, "the end of the thread")
        self.assertEqual([made[0].run(pid), made[0].peers()[0].pid], [pids, pids[0]])

    def test_ranks_that_die_at_once(self):
        """Again and again: the start ends."""
        (self.tmp / "dies.py").write_text("import os, threading\n"
                                          "def fail(*_): raise RuntimeError('no thread')\n"
                                          "threading.Thread.start = fail\n")
        with mock.patch("sys.path", [*sys.path, str(self.tmp)]), self.assertRaises(self.ddrun.RankDied):
            self.group(2, preload="dies").run(pid)


if __name__ == "__main__":
    run_with_package()
