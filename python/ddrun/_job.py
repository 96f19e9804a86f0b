"""A ddrun job whose ranks are connected to this process."""

import asyncio
import collections
import contextlib
import fcntl
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import termios
import threading
import time

from ddrun import _channel, _home, find_ddrun
from ddrun._lines import Marks, Splitter
from ddrun._options import SWITCHED_OFF, check_options

__tracebackhide__ = True  # by pytest

HELD = 5 << 20  # bytes of lines that the caller has not taken; with copies of long ones less than 16 MiB of memory
LINE_COST = 300  # bytes that a line takes beside its text
MOST_UNPROVED = 64  # connections; others wait until they are accepted
HANDSHAKE_TIMEOUT = 10  # seconds
CHUNK = 1 << 16  # bytes that are read at once
FOREVER = 1e6  # seconds
STOP_TIMEOUT = 10  # seconds, then ddrun is killed


class Job:
    """Starts ddrun. A second thread owns the connections and pipes and posts to `inbox`:

    ("hello", peer), ("answer", peer, message), ("gone", peer) and ("event", dict) of ddrun's --events; lines of ranks are
    in `lines`. Methods are for the first thread and do not block, unless they say so. More lines than `HELD` are not read
    during a call, so that ranks wait for this process; between calls (`idle`) they are read and dropped.
    """

    def __init__(self, options, output, once=False, cells=False):
        _home.refuse_import()
        check_options(options)
        self.inbox, self.lines, self.waiting = queue.SimpleQueue(), collections.deque(), False
        self.added = self.taken = self.dropped = 0  # bytes of lines
        self.idle = self.paused = False
        # What `take` has seen: the ranks of the last attempt, by rank, and how many they will be; the first one's failure,
        # an event of ddrun; ddrun's exit status, 0 only if its verdict is a success, of the round `proved`.
        self.output, self.peers, self.round, self.size, self.death, self.status = output, {}, 0, 0, None, None
        self.verdict = self.proved = None
        self.restarting = False  # ends of ranks are no failures
        self.shown = 0  # when a line was, by time.monotonic()
        self.result = self.broken = None  # of the second thread: the status, and why it ended early
        marks, given = Marks(), [*options, os.environ.get("DDRUN_HOSTS") and "--hosts"]
        self.remote = any(option and option.startswith(("--hosts", "--hostfile")) for option in given)
        self.key = os.urandom(32) if self.remote else b""
        self.welcome = {"home": _home.of_caller(), "mark": marks.mark, "cells": cells, "once": once}
        with contextlib.ExitStack() as opened:
            pipes = [os.pipe() for _ in range(3)]
            for ends in pipes:
                opened.callback(os.close, ends[0])
            self.listener = opened.enter_context(listen(self.remote))
            name = self.listener.getsockname()
            job = {"addresses": addresses(name[1]) if self.remote else [name.decode()],
                   "port": name[1] if self.remote else 0, "key": self.key.hex()}
            variables = {"DDRUN_PYTHON_JOB": json.dumps(job), "PYTHON_EXEC": sys.executable, **_home.flags()}
            if not once:  # rank 0 opens a store for each process group: in ddrun's the addresses of an earlier one would stay
                variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            place = [f"-x={name}" for name in variables] if self.remote else ["--env-detect=none"]  # not all of a Slurm job
            command = [find_ddrun(), "-q", "--ci=none", "--end-with-parent", "--stdin=none", f"--events=/dev/fd/{pipes[2][1]}",
                       f"--log-line-prefix-template={marks.template}", *place, *SWITCHED_OFF, *options,
                       os.path.join(os.path.dirname(os.path.abspath(__file__)), "_rank.py")]
            try:
                # In a new session: Jupyter interrupts all of the kernel's process group, which would end the job.
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipes[0][1], stderr=pipes[1][1],
                                                pass_fds=[pipes[2][1]], env={**os.environ, **variables}, start_new_session=True)
            finally:
                for _, end in pipes:
                    os.close(end)
            self.thread = threading.Thread(target=self.work, args=(marks, [end for end, _ in pipes]), daemon=True, name="ddrun")
            try:
                self.thread.start()
            except BaseException:
                self.stop()
                raise
            opened.pop_all()  # the thread closes them

    def stop(self):
        """Blocks until ddrun, whose output is not read, has ended."""
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    # The thread of the job.

    def work(self, marks, ends):
        try:
            asyncio.run(self.serve(marks, ends))
        except BaseException as error:
            self.broken = f"the thread that reads ddrun has failed: {type(error).__name__}: {error}"
        finally:
            self.listener.close()
            if self.broken:
                self.stop()
            status = self.process.wait()
            self.result = 1 if self.broken else status
            self.inbox.put(None)

    async def serve(self, marks, ends):
        self.loop, self.room = asyncio.get_running_loop(), asyncio.Event()
        self.encodings = {}  # by rank
        accepting = asyncio.ensure_future(self.accept())
        readers, transports, pipes = [], [], []
        for end, name in zip(ends, ("stdout", "stderr", "events")):
            reader = asyncio.StreamReader(limit=CHUNK)
            protocol = asyncio.StreamReaderProtocol(reader)
            pipe = os.fdopen(end, "rb", 0)
            transports.append((await self.loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe))[0])
            pipes.append((end, reader, transports[-1]))
            readers.append(self.read_events(reader) if name == "events" else self.read_lines(reader, name, Splitter(marks)))
        done, ending = asyncio.gather(*readers), asyncio.ensure_future(self.end_pipes(pipes))
        try:
            await asyncio.wait([done, accepting], return_when=asyncio.FIRST_COMPLETED)  # accepting ends by an error only
            await (done if done.done() else accepting)
        finally:
            ending.cancel()
            for transport in transports:
                transport.close()

    async def end_pipes(self, pipes):
        """When ddrun has ended: a process that was forked here while it was started may hold their other ends for long."""
        try:
            pidfd = os.pidfd_open(self.process.pid)
        except OSError:  # Linux 5.2
            return
        ended = asyncio.Event()
        self.loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            self.loop.remove_reader(pidfd)
            os.close(pidfd)
        for end, reader, transport in pipes:
            while not transport.is_closing() and any(fcntl.ioctl(end, termios.FIONREAD, bytes(4))):
                await asyncio.sleep(0.01)  # the caller takes its time
            if not transport.is_closing():
                reader.feed_eof()

    async def read_events(self, reader):
        pending = b""
        while chunk := await reader.read(CHUNK):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self.inbox.put(("event", json.loads(line)))

    async def read_lines(self, reader, stream, splitter):
        while chunk := await reader.read(CHUNK):
            for line in splitter.feed(chunk):
                self.add(stream, *line)
            while self.is_full():
                self.room.clear()
                self.paused = True
                if self.is_full():  # else it was taken before `paused`
                    await self.room.wait()
        for line in splitter.end():
            self.add(stream, *line)

    def is_full(self):
        return self.added - self.taken > HELD and not self.idle

    def add(self, stream, rank, text, number):
        size = len(text) + LINE_COST
        if self.idle and self.added + size - self.taken > HELD:
            self.dropped += len(text)
            return
        self.added += size
        self.lines.append((rank, stream, text, number, size))
        if self.waiting:
            self.inbox.put(None)

    async def accept(self):
        unproved, tasks = asyncio.Semaphore(MOST_UNPROVED), set()
        while True:
            await unproved.acquire()
            try:
                connection, _ = await self.loop.sock_accept(self.listener)
            except OSError:  # no descriptors are left, or the connection has ended
                unproved.release()
                await asyncio.sleep(0.1)
                continue
            tasks.add(task := asyncio.ensure_future(self.admit(connection, unproved)))
            task.add_done_callback(tasks.discard)

    async def admit(self, connection, unproved):
        peer = writer = None
        try:
            try:
                _channel.check_peer(connection)
                reader, writer = await asyncio.open_connection(sock=connection)
                incoming, peer = await asyncio.wait_for(self.greet(reader, writer), HANDSHAKE_TIMEOUT)
            finally:
                unproved.release()
            if not peer:
                return await writer.drain()
            self.inbox.put(("hello", peer))
            while True:
                frame = await read_frame(reader, incoming)
                try:
                    message = pickle.loads(frame)
                except Exception as error:  # it may need a class that is not here
                    message = None, "unreadable", f"{type(error).__name__}: {error}", {}
                self.inbox.put(("answer", peer, message))
        except Exception as error:  # of a stranger, too
            if peer and not isinstance(error, EOFError):
                peer.reason = f": {error}"
        finally:
            (writer or connection).close()
            if peer:
                self.inbox.put(("gone", peer))

    async def greet(self, reader, writer):
        """The peer is None for a server of --preload, which has no rank."""
        ours = os.urandom(_channel.NONCE_BYTES) if self.key else b""
        writer.write(ours)
        theirs = await reader.readexactly(len(ours))
        outgoing, incoming = _channel.directions(self.key, ours, theirs)
        hello = pickle.loads(await read_frame(reader, incoming, _channel.HELLO_LIMIT))
        peer = hello and Peer(hello, outgoing, writer)
        if peer:
            self.encodings[peer.rank] = peer.encoding
        writer.write(outgoing.frame(pickle.dumps(self.welcome)))
        return incoming, peer

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
        elif kind == "event" and content[0]["event"] == "verdict":
            self.verdict = content[0]["verdict"]
            self.proved = content[0]["round"] if self.verdict == "success" else None
        elif kind == "exit":
            self.status = content[0] or int(self.proved is None)
        return item

    def next(self, deadline):
        """Other items come before lines, and the deadline holds however many lines there are, until ddrun has ended."""
        while True:
            if self.lines and self.inbox.empty():
                if deadline is not None and time.monotonic() >= deadline and self.result is None:
                    return None
                if (mark := self.show_line()) is not None:
                    return "mark", mark
                continue
            if self.inbox.empty():
                if self.result is not None and self.status is None:
                    return "exit", self.result
                self.output.flush()
            times = [moment for moment in (deadline, self.output.deadline()) if moment is not None]
            self.waiting = True
            try:
                seconds = 0 if self.lines else min(times) - time.monotonic() if times else FOREVER
                # Python 3.9 waits for ever if a timeout of SimpleQueue ends while an older item is looked for.
                if item := self.inbox.get(timeout=seconds) if seconds > 0.001 else self.inbox.get_nowait():
                    return item
            except queue.Empty:
                self.output.show()
                if deadline is not None and time.monotonic() >= deadline:
                    return None
            finally:
                self.waiting = False

    def show_line(self):
        """Returns (number, stream) if that is what the task's output in this stream ends with."""
        rank, stream, text, number, size = self.lines.popleft()
        self.taken += size
        if self.paused and self.added - self.taken < HELD / 2:
            self.resume()
        self.shown = time.monotonic()
        self.output.line(rank, stream, text.decode(self.encodings.get(rank, "utf-8"), "replace"))
        return None if number is None else (number, stream)

    def show_lines(self):
        """Those that are there."""
        for _ in range(len(self.lines)):
            self.show_line()

    def set_idle(self, idle):
        """Between calls."""
        self.idle = idle
        if idle:
            self.resume()

    def resume(self):
        """Reading, if it is paused."""
        if self.paused:
            self.paused = False
            self.post(self.room.set)

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

    def end(self, peers=(), seconds=STOP_TIMEOUT):
        """Blocks until ddrun has ended. Ranks in `peers` end by themselves; what has not ended after `seconds` is killed."""
        self.set_idle(True)  # ddrun writes to the end
        for peer in peers:
            self.send(peer, "goodbye")
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

    reason = ""  # why it was closed, if not by the rank

    def __init__(self, hello, outgoing, writer):
        variables, self.host, self.pid, encoding = hello
        try:
            self.encoding = b"x".decode(encoding) and encoding
        except (LookupError, TypeError, ValueError):  # of this Python no text encoding
            self.encoding = "utf-8"
        self.rank, self.round = variables["RANK"], variables["DDRUN_ROUND"]
        self.world_size, self.local_world_size = variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]
        self.outgoing, self.writer = outgoing, writer

    def __repr__(self):
        return f"<rank {self.rank} of {self.world_size}: pid {self.pid} on {self.host}>"


async def read_frame(reader, direction, limit=1 << 62):
    header = await reader.readexactly(direction.header_bytes)
    return direction.payload(header, await reader.readexactly(direction.size(header, limit)))


def listen(remote):
    """A socket for ranks: of this machine, or of all of its addresses."""
    if remote:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        made = socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones inherit it
    else:
        made = socket.socket(socket.AF_UNIX)
        made.bind(f"\0ddrun-{os.urandom(16).hex()}")  # in no directory: nothing is left if this process is killed
        made.listen(1024)
    made.setblocking(False)
    return made


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
