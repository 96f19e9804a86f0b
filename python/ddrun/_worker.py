"""One rank: its main thread runs the tasks that the caller sends, a second thread receives them.

A task is (number, payload); payload is a pickled (function, args, kwargs). Other messages are ("interrupt", number),
("abort",) and ("exit",). The answer is (number, "value", pickled, begun) or (number, "error", error, begun), see `describe`;
begun: how many collectives, see `collectives`. Before an answer the rank writes a line with MARK and the number to stdout
and stderr: the caller knows by it that it has all that was printed.
"""

import json
import os
import pickle
import queue
import signal
import socket
import sys
import threading

from ddrun import _channel, _process_group, _task

MARK = "\x1e"
NOT_CONNECTED = 117  # exit code of a rank whose caller is gone
rank = None  # the Rank of this process


class Rank:
    def __init__(self, addresses, key, once):
        """once: for one task, after which the process exits with status 1 if it raised an exception."""
        self.once, self.running, self.interrupted = once, None, None
        self.tasks, self.sending, self.heard = queue.SimpleQueue(), threading.Lock(), threading.Event()
        self.socket = connect(addresses)
        self.reader = self.socket.makefile("rb")
        theirs = self.read(_channel.NONCE_BYTES) if key else b""
        ours = os.urandom(_channel.NONCE_BYTES) if key else b""
        self.socket.sendall(ours)
        self.incoming, self.outgoing = _channel.directions(key, theirs, ours)
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "DDRUN_ROUND")
        self.send({name: int(os.environ[name]) for name in names}, socket.gethostname(), os.getpid())

    def read(self, size):
        data = self.reader.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def send(self, *message):
        payload = pickle.dumps(message)
        with self.sending:
            self.socket.sendall(self.outgoing.frame(payload))

    def listen(self):
        """Runs in the second thread, to which no signal is delivered: it would not wake the main thread."""
        try:
            while True:
                size = int.from_bytes(self.read(8), "big")
                tag = self.read(_channel.TAG_BYTES) if self.incoming.key else b""
                message = pickle.loads(self.incoming.check(tag, self.read(size)))
                if message[0] == "interrupt":
                    self.interrupt(message[1])
                elif message[0] == "abort":
                    _process_group.abort()
                elif message[0] == "exit":
                    os._exit(1)
                else:
                    self.tasks.put(message)
        except (EOFError, OSError):
            self.tasks.put(None)  # the caller has closed the group; if it is dead ddrun ends a running task

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

    def on_interrupt(self, *_):
        self.heard.set()
        if self.running is not None:
            raise KeyboardInterrupt

    def work(self):
        while task := self.tasks.get():
            number, payload = task
            before = _process_group.collectives()
            try:
                answer = self.perform(number, payload)
            except KeyboardInterrupt as error:  # it came while another exception was handled
                self.running = None
                answer = "error", _task.describe(error)
            self.running = None
            write_marks(number)
            begun = {name: count - before.get(name, 0) for name, count in _process_group.collectives().items()}
            try:
                self.send(number, *answer, begun)
            except OSError:
                return NOT_CONNECTED
            if self.once:
                if answer[0] == "error":
                    write_error_file(answer[1])
                return answer[0] == "error"
        return 0

    def perform(self, number, payload):
        self.running = number
        try:
            if self.interrupted == number:
                raise KeyboardInterrupt
            value = _task.perform(payload)
        except SystemExit as error:
            if error.code:
                return "error", _task.describe(error)
            value = None
        except BaseException as error:
            return "error", _task.describe(error)
        try:
            return "value", _task.dumps(value)
        except Exception as error:
            return "error", _task.describe(error)


def connect(addresses):
    """addresses: paths of sockets, or [host, port]. To the first that answers."""
    for address in addresses:
        try:
            if isinstance(address, str):
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(address)
                _channel.check_peer(connection)
            else:
                connection = socket.create_connection(address, timeout=10)
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            reason = error
    print(f"{socket.gethostname()} cannot connect to the program that called ddrun at {addresses}: {reason}", file=sys.stderr)
    sys.exit(NOT_CONNECTED)


def write_marks(number):
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
            os.write(descriptor, f"{MARK}{number}\n".encode())
        except (OSError, ValueError, AttributeError):
            pass  # the task has closed it; the caller waits for a bounded time


def write_error_file(error):
    """As torch.distributed.elastic's @record: ddrun names the exception."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": error[1], "extraInfo": {"py_callstack": error[2]}}
        with open(path, "w") as file:
            json.dump({"message": message}, file)


def main():
    global rank
    job = json.loads(os.environ.pop("DDRUN_PYTHON_JOB"))
    main_module = sys.modules["__main__"] = type(sys)("__main__")
    addresses = job["addresses"]
    if port := job["port"]:
        addresses.append([os.environ.get("SSH_CONNECTION", "127.0.0.1").split()[0], port])
    rank = Rank(addresses, bytes.fromhex(job["key"]), job["once"])
    vars(main_module).update(__builtins__=sys.modules["builtins"], rank=int(os.environ["RANK"]),
                             world_size=int(os.environ["WORLD_SIZE"]))
    if not rank.once:
        signal.signal(signal.SIGINT, rank.on_interrupt)
    everything = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Thread(target=rank.listen, daemon=True, name="ddrun").start()
    signal.pthread_sigmask(signal.SIG_SETMASK, everything)
    import cloudpickle  # noqa: F401  not before the caller knows of this rank

    if job["cells"]:
        from ddrun import _cells

        _cells.shell()  # while the user types the first cell
    sys.exit(rank.work())
