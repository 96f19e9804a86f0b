"""A ddrun job whose ranks are connected to this process."""

import asyncio
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

from ddrun import _channel, _home, find_ddrun
from ddrun._worker import MARK

LABEL = "\x02"  # before the rank of a line
MOST_IDLE_LINES = 10000


class Job:
    """Starts ddrun. A second thread owns the connections and pipes and posts to `inbox`:

    ("hello", peer), ("answer", peer, message), ("gone", peer), ("line", rank or None, stream, text), ("event", dict) of
    ddrun's --events, and ("exit", status) as the last one. Methods are for the first thread and do not block, unless they
    say so. What ranks print is always read, so that they never wait for this process; `idle` bounds what is kept.
    """

    def __init__(self, options, output, once=False, cells=False):
        program, self.inbox, self.idle, self.dropped = find_ddrun(), queue.SimpleQueue(), False, 0
        # What `take` has seen: the ranks of the last attempt, by rank, and how many they will be; the first one's failure,
        # an event of ddrun; ddrun's exit status.
        self.output, self.peers, self.round, self.size, self.death, self.status = output, {}, 0, 0, None, None
        self.restarting = False  # ends of ranks are no failures
        given = [*options, os.environ.get("DDRUN_HOSTS") and "--hosts"]
        self.remote = any(option and option.startswith(("--hosts", "--hostfile")) for option in given)
        self.key = os.urandom(32) if self.remote else b""
        path, port = f"\0ddrun-{os.urandom(16).hex()}", 0  # in no directory: nothing is left if this process is killed
        if self.remote:
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
            self.listener = socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024)
            self.listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones inherit it
            port = self.listener.getsockname()[1]
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen(1024)
        pipes = [os.pipe() for _ in range(3)]
        job = {"addresses": addresses(port) if port else [path], "port": port, "key": self.key.hex(), "once": once,
               "cells": cells, "home": _home.of_caller()}
        variables = {"DDRUN_PYTHON_JOB": json.dumps(job), "PYTHON_EXEC": sys.executable}
        if not once:  # rank 0 opens a store for each process group: in ddrun's the addresses of an earlier one would stay
            variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        place = [f"-x={name}" for name in variables] if self.remote else ["--env-detect=none"]  # else not all of a Slurm job
        command = [program, "-q", "--end-with-parent", "--stdin=none", f"--log-line-prefix-template={LABEL}${{rank}}{LABEL}",
                   f"--events=/dev/fd/{pipes[2][1]}", *place, *options,
                   os.path.join(os.path.dirname(os.path.abspath(__file__)), "_rank.py")]
        try:
            # In a new session: Jupyter interrupts all of the kernel's process group, which would end the job.
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipes[0][1], stderr=pipes[1][1],
                                            pass_fds=[pipes[2][1]], env={**os.environ, **variables}, start_new_session=True)
        finally:
            for _, end in pipes:
                os.close(end)
        self.ends = [end for end, _ in pipes]
        self.thread = threading.Thread(target=lambda: asyncio.run(self.serve()), daemon=True, name="ddrun")
        self.thread.start()

    # The thread of the job.

    async def serve(self):
        self.loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self.admit, sock=self.listener)
        readers, events = [], lambda text: self.inbox.put(("event", json.loads(text)))
        for end, read in zip(self.ends, (self.line_of("stdout"), self.line_of("stderr"), events)):
            reader = asyncio.StreamReader(limit=1 << 26)
            protocol = asyncio.StreamReaderProtocol(reader)
            await self.loop.connect_read_pipe(lambda protocol=protocol: protocol, os.fdopen(end, "rb", 0))
            readers.append(asyncio.ensure_future(read_lines(reader, read)))
        await asyncio.gather(*readers)
        status = self.process.wait()  # its ends of all pipes are closed: this does not block for long
        server.close()
        self.inbox.put(("exit", status))

    def line_of(self, stream):
        def read(text):
            if self.idle and self.inbox.qsize() > MOST_IDLE_LINES:
                self.dropped += 1
                return
            stamp, label, labelled = text.partition(LABEL)  # stamp: of --timestamps
            rank, _, text = labelled.partition(LABEL) if label else (None, "", text)
            if label and stamp and not text.startswith(MARK):
                text = stamp + text
            self.inbox.put(("line", int(rank) if label else None, stream, text))

        return read

    async def admit(self, reader, writer):
        peer = None
        try:
            _channel.check_peer(writer.get_extra_info("socket"))
            ours = os.urandom(_channel.NONCE_BYTES) if self.key else b""
            writer.write(ours)
            theirs = await asyncio.wait_for(reader.readexactly(len(ours)), 10)
            outgoing, incoming = _channel.directions(self.key, ours, theirs)
            first = await asyncio.wait_for(read_frame(reader, incoming, _channel.HELLO_LIMIT), 10)
            peer = Peer(first, outgoing, writer)
            self.inbox.put(("hello", peer))
            while True:
                self.inbox.put(("answer", peer, await read_frame(reader, incoming)))
        except (OSError, EOFError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()
            if peer:
                self.inbox.put(("gone", peer))

    # The first thread.

    def take(self, deadline=None):
        """Shows what ranks print until there is another item, which it returns; None at the deadline."""
        item = self.next(deadline)
        kind, *content = item or [None]
        if kind == "hello" and content[0].round >= self.round:
            peer, = content
            if peer.round > self.round:
                self.peers, self.round, self.restarting = {}, peer.round, False
                self.size = peer.world_size if self.remote else peer.local_world_size
            self.peers[peer.rank] = peer
            if len(self.peers) == self.size:
                self.output.set_ranks(self.peers, peer.world_size)
        elif kind == "event" and content[0]["event"] in ("failed", "lost") and not self.restarting:
            if content[0]["round"] >= self.round:
                self.death = self.death or content[0]
        elif kind == "exit":
            self.status, = content
        return item

    def next(self, deadline):
        while True:
            if self.inbox.empty():
                self.output.flush()
            times = [moment for moment in (deadline, self.output.deadline()) if moment is not None]
            try:
                kind, *content = item = self.inbox.get(timeout=max(0, min(times) - time.monotonic()) if times else None)
            except queue.Empty:
                self.output.show()
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                continue
            if kind != "line":
                return item
            if (number := self.output.line(*content)) is not None:
                return "mark", (number, content[1])

    def send(self, peer, *message):
        """See _worker."""
        message = pickle.dumps(message)
        self.post(lambda: peer.writer.write(peer.outgoing.frame(message)))

    def post(self, function):
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # ddrun has ended, and the loop with it

    def signal(self, number):
        try:
            self.process.send_signal(number)
        except ProcessLookupError:
            pass

    def end(self, peers=(), seconds=10):
        """Blocks until ddrun has ended. Ranks in `peers` end by themselves; what has not ended after `seconds` is killed."""
        for peer in peers:
            self.post(peer.writer.close)
        if not peers:
            self.signal(signal.SIGTERM)
        self.thread.join(seconds)
        for repeated in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second makes ddrun kill all
            if self.thread.is_alive():
                self.signal(repeated)
                self.thread.join(2)


class Peer:
    """The connection of a rank."""

    def __init__(self, hello, outgoing, writer):
        variables, self.host, self.pid = hello
        self.rank, self.round = variables["RANK"], variables["DDRUN_ROUND"]
        self.world_size, self.local_world_size = variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]
        self.outgoing, self.writer = outgoing, writer


async def read_frame(reader, direction, limit=1 << 62):
    size = int.from_bytes(await reader.readexactly(8), "big")
    if size > limit:
        raise ConnectionError("a first frame is too long")
    tag = await reader.readexactly(_channel.TAG_BYTES) if direction.key else b""
    return pickle.loads(direction.check(tag, await reader.readexactly(size)))


async def read_lines(reader, read):
    """Lines, and pieces that end with a carriage return."""
    pending = b""
    while chunk := await reader.read(1 << 16):
        *lines, pending = (pending + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\r\n").split(b"\n")
        for line in lines:
            read(line.decode(errors="replace") + ("" if line.endswith(b"\r") else "\n"))
    if pending:
        read(pending.decode(errors="replace"))


def addresses(port):
    """Of this machine, as other hosts may reach it; a rank adds the one that its ssh connection came from."""
    found = {}
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((far, 9))  # sends nothing
                found[probe.getsockname()[0]] = None
            except OSError:
                pass
    return [[address, port] for address in found]
