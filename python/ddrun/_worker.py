"""One rank: its main thread runs the tasks that the caller sends, a second thread receives them.

A task is (number, payload), see _payload. Other messages are ("interrupt", number), ("abort",), ("exit",) and ("goodbye",),
after which the rank ends with status 0; it ends with NOT_CONNECTED if the connection ends without that. The answer is
(number, "value", pickled, begun, seconds) or (number, "error", error, begun, seconds), see `describe`; begun: how many
collectives, see `collectives`. A rank asks (None, "display" or "debug", (number, *content)), which the caller answers by
("answer", number, answer), and tells (None, "continue" or "over", content). Before an answer and a request a rank of a group
writes a line with the job's mark and the number to stdout and stderr: the caller knows by it that it has all that was printed.
"""

import contextlib
import itertools
import json
import os
import queue
import signal
import socket
import sys
import threading
import time

from ddrun import _connection, _home, _process_group, _task
from ddrun._connection import NOT_CONNECTED

FIRST_REQUEST = 10**12  # above the numbers of tasks
rank = None  # of this process


class Rank:
    def __init__(self, connection):
        self.connection, self.once = connection, connection.welcome["once"]
        self.running = self.interrupted = None
        self.tasks, self.answers, self.heard = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()
        self.asking, self.numbers = threading.Lock(), itertools.count(FIRST_REQUEST * (1 + int(os.environ["RANK"])))
        self.debugger = None  # of this task

    def send(self, *message):
        self.connection.send(message)

    def tell(self, kind, content):
        """From a task. In a thread of its own, as an interrupt of this one would leave half a message."""
        thread = threading.Thread(target=self.send, args=(None, kind, content), daemon=True)
        thread.start()
        thread.join()

    def ask(self, kind, *content, timeout=None):
        """The caller's answer, when it has shown what was printed before. Raises queue.Empty after `timeout` seconds."""
        with self.asking:
            number = next(self.numbers)
            self.write_marks(number)
            self.tell(kind, (number, *content))
            while (answer := self.answers.get(timeout=timeout))[0] != number:
                pass
            return answer[1]

    def on_breakpoint(self, *args, **kwargs):
        if "PYTHONBREAKPOINT" in os.environ or self.running is None:
            return sys.__breakpointhook__(*args, **kwargs)
        if self.once:
            raise RuntimeError("breakpoint() is served in calls of a ddrun.Group")
        self.debug().set_trace(sys._getframe(1))

    def debug(self):
        """The debugger."""
        if not self.debugger:
            from ddrun._debugger import Debugger

            self.debugger = Debugger(self)
        return self.debugger

    def leave(self):
        """In a process that a task has forked."""
        self.connection.close()
        self.send = self.ask = lambda *message, **_: None

    def listen(self):
        """Runs in the second thread, to which no signal is delivered: it would not wake the main thread."""
        try:
            while True:
                message = self.connection.receive()
                if message[0] == "interrupt":
                    self.interrupt(message[1])
                elif message[0] == "answer":
                    self.answers.put(message[1:])
                elif message[0] == "abort":
                    _process_group.abort()
                elif message[0] == "exit":
                    os._exit(1)
                elif message[0] == "goodbye":
                    return self.tasks.put(0)
                else:
                    self.tasks.put(message)
        except Exception as error:  # if the caller is dead ddrun ends a running task
            if not isinstance(error, EOFError):
                print(f"the connection to the program that called ddrun failed: {error}", file=sys.stderr)
            self.tasks.put(NOT_CONNECTED)

    def interrupt(self, number):
        """As Ctrl-C in a terminal: processes that the task has started are interrupted too. Blocks for 0.1 s at most."""
        self.interrupted = number  # before the look at `running`: a task may be about to begin, see perform
        self.heard.clear()
        group = 0 if os.getpgrp() == os.getpid() else os.getpid()
        # A signal just before a system call does not interrupt that: it is repeated until the handler has run.
        for _ in range(10 if signal.getsignal(signal.SIGINT) == self.on_interrupt else 1):
            if self.running == number and not self.heard.is_set():
                os.kill(group, signal.SIGINT)
                group = os.getpid()
                self.heard.wait(0.01)

    def on_interrupt(self, _, frame):
        self.heard.set()
        if self.running is not None and frame.f_code is not self.work.__code__:  # there the task has just ended
            raise KeyboardInterrupt

    def work(self):
        """Returns the exit status; with `once` after one task, with 1 if it raised an exception."""
        while isinstance(task := self.tasks.get(), tuple):
            number, payload = task
            before, start = _process_group.collectives(), time.monotonic()
            try:
                answer = self.perform(number, payload)
            except KeyboardInterrupt as error:  # it came while another exception was handled
                self.running = None
                answer = "error", _task.describe(error)
            self.running = None
            if self.debugger:
                self.debugger.end()
                self.debugger = None
            if not self.once:  # then the end of the process is the end of its output
                self.write_marks(number)
            begun = {name: count - before.get(name, 0) for name, count in _process_group.collectives().items()}
            try:
                self.send(number, *answer, begun, time.monotonic() - start)
            except OSError:
                return NOT_CONNECTED
            if self.once:
                if answer[0] == "error":
                    write_error_file(answer[1])
                return answer[0] == "error"
        return task

    def perform(self, number, payload):
        self.running = number
        try:
            if self.interrupted == number:
                raise KeyboardInterrupt
            value = _task.perform(payload)
        except _task.ChildExit:
            raise
        except SystemExit as error:
            if error.code:
                return "error", _task.describe(error)
            value = None
        except BaseException as error:
            return "error", _task.describe(error)
        try:
            return "value", _task.dump_result(value, f"what the function returned on rank {os.environ['RANK']}")
        except Exception as error:
            return "error", _task.describe(error)

    def write_marks(self, number):
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            with contextlib.suppress(Exception):  # the task has replaced or closed it
                stream.flush()
            with contextlib.suppress(OSError):  # the same; the caller waits for a bounded time
                os.write(descriptor, f"{self.connection.welcome['mark']}{number}\n".encode())


def write_error_file(error):
    """As torch.distributed.elastic's @record: ddrun names the exception."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": error[1], "extraInfo": {"py_callstack": error[2]}}
        with open(path, "w") as file:
            json.dump({"message": message}, file)


def main():
    names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "DDRUN_ROUND")
    hello = ({name: int(os.environ[name]) for name in names}, socket.gethostname(), os.getpid(),
             getattr(sys.stdout, "encoding", None) or "utf-8")
    connection = _connection.connect(json.loads(os.environ.pop("DDRUN_PYTHON_JOB")), hello)
    _home.take_over(connection.welcome["home"])
    _home.make_main(connection.welcome["home"])
    global rank
    rank = Rank(connection)
    os.register_at_fork(after_in_child=rank.leave)
    sys.breakpointhook = rank.on_breakpoint
    if not rank.once:
        signal.signal(signal.SIGINT, rank.on_interrupt)
    everything = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=rank.listen, daemon=True, name="ddrun").start()
    signal.pthread_sigmask(signal.SIG_SETMASK, everything)
    _task.base_pickler()  # which takes time, so not before the caller knows of this rank
    if connection.welcome["cells"]:
        from ddrun import _cells

        _cells.shell()  # while the user types the first cell
    sys.exit(rank.work())
