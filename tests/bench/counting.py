"""What a start of torch asks of its store: store-operations. The figures do not depend on the machine."""

import collections
import os
import select
import socket
import struct
import subprocess
import threading

from measuring import Comparison, Failure, wait_until
from storing import Server, torch_python, with_local_names

PHASES = {
    "connect": "store, rank, world = next(dist.rendezvous('env://'))",
    "init_process_group": "dist.init_process_group('gloo', store=dist.PrefixStore('default_pg', store), rank=rank, "
                          "world_size=world)",
    "new_group": "group = dist.new_group(list(range(world)))",
    "all_reduce": "dist.all_reduce(torch.ones(4))",
    "barrier": "dist.barrier()",
    "destroy_process_group": "dist.destroy_process_group()",
}
WORKER = "import os, sys, torch\nimport torch.distributed as dist\nsys.stdin.readline()\n" + "".join(
    f"{code}\nprint({phase!r}, flush=True)\nsys.stdin.readline()\n" for phase, code in PHASES.items()) + "os._exit(0)\n"

# How each request goes on after its opcode: k a text, n a number of 8 bytes, w one of 4, * texts and ** pairs of texts
# behind their number.
REQUESTS = {
    0: ("VALIDATE", "w"), 1: ("SET", "kk"), 2: ("COMPARE_SET", "kkk"), 3: ("GET", "k"), 4: ("ADD", "kn"),
    5: ("CHECK", "*"), 6: ("WAIT", "*"), 7: ("GETNUMKEYS", ""), 8: ("DELETE_KEY", "k"), 9: ("APPEND", "kk"),
    10: ("MULTI_GET", "*"), 11: ("MULTI_SET", "**"), 12: ("CANCEL_WAIT", ""), 13: ("PING", "w"),
    14: ("QUEUE_PUSH", "kk"), 15: ("QUEUE_POP", "k"), 16: ("QUEUE_LEN", "k"), 17: ("LIST_KEYS", ""),
    18: ("BARRIER", "kn"),
}


class Short(Exception):
    """The request has not come whole."""


def request_size(data):
    """Bytes of the first request in `data`."""
    at = 1

    def number():
        nonlocal at
        if len(data) < at + 8:
            raise Short
        at += 8
        return struct.unpack_from("<Q", data, at - 8)[0]

    def text():
        nonlocal at
        size = number()
        at += size

    if data[0] not in REQUESTS:
        raise Failure(f"opcode {data[0]} is not known here")
    shape = REQUESTS[data[0]][1]
    if shape.startswith("*"):
        for _ in range(number() * len(shape)):
            text()
    else:
        for field in shape:
            if field == "k":
                text()
            else:
                at += 8 if field == "n" else 4
    if len(data) < at:
        raise Short
    return at


class Counts:
    def __init__(self):
        self.requests, self.sent, self.received = collections.Counter(), 0, 0


class CountingProxy:
    """Stands between clients and a store, passes everything on and counts."""

    def __init__(self, port):
        self.upstream_port = port
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port = self.listener.getsockname()[1]
        self.commands, self.wake = socket.socketpair()
        self.answer, self.failure = None, None
        self.poll = select.poll()
        self.sockets, self.peers, self.unread = {}, {}, {}
        for one in (self.listener, self.commands):
            self.poll.register(one, select.POLLIN)
        self.counts = Counts()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def take(self):
        """What was counted since the last call; all that had been sent by then is in it."""
        self.answer = None
        self.wake.sendall(b"?")
        wait_until(lambda: self.answer or self.failure or not self.thread.is_alive(), 20, "an answer of the proxy")
        if self.failure:
            raise self.failure
        return self.answer

    def stop(self):
        self.wake.sendall(b"x")
        self.thread.join(10)
        for one in (*self.sockets.values(), self.listener, self.commands, self.wake):
            one.close()

    def run(self):
        try:
            while True:
                ready = dict(self.poll.poll())
                command = ready.pop(self.commands.fileno(), 0)
                for fd in ready:
                    if fd == self.listener.fileno():
                        self.accept()
                    elif fd in self.sockets:
                        self.pass_on(fd)
                if command and not ready:  # only when there is nothing else: all is counted
                    if self.commands.recv(1) == b"x":
                        return
                    self.answer, self.counts = self.counts, Counts()
        except Exception as error:  # pylint: disable=broad-except
            self.failure = Failure(f"the counting proxy: {error!r}")

    def accept(self):
        client = self.listener.accept()[0]
        server = socket.create_connection(("127.0.0.1", self.upstream_port))
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets[one.fileno()] = one
            self.peers[one.fileno()] = other
            self.poll.register(one, select.POLLIN)
        self.unread[client.fileno()] = bytearray()

    def pass_on(self, fd):
        try:
            data = self.sockets[fd].recv(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            for one in (self.sockets[fd], self.peers[fd]):
                self.poll.unregister(one)
                del self.sockets[one.fileno()], self.peers[one.fileno()]
                self.unread.pop(one.fileno(), None)
                one.close()
            return
        if fd in self.unread:
            self.count(self.unread[fd], data)
        else:
            self.counts.received += len(data)
        self.peers[fd].sendall(data)

    def count(self, unread, data):
        self.counts.sent += len(data)
        unread += data
        try:
            while unread:
                size = request_size(unread)
                self.counts.requests[REQUESTS[unread[0]][0]] += 1
                del unread[:size]
        except Short:
            pass


def count_start(bench, world):
    """{phase: Counts} of a start of `world` workers with gloo, as under an agent that has the store."""
    server = Server(bench, "ddrun")
    proxy = CountingProxy(server.port)
    workers = []
    try:
        start = [*with_local_names(bench), torch_python(bench), "-c", WORKER]
        for rank in range(world):
            environment = {
                **bench.environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(proxy.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0", "GLOO_SOCKET_IFNAME": "lo",
            }
            workers.append(subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            stderr=subprocess.DEVNULL, env=environment, cwd=bench.scratch))
        counts = {}
        for phase in PHASES:
            for worker in workers:
                worker.stdin.write("\n")
                worker.stdin.flush()
            for worker in workers:
                if worker.stdout.readline().strip() != phase:
                    raise Failure(f"a worker did not come through {phase}")
            counts[phase] = proxy.take()
        return counts
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
        proxy.stop()
        server.stop()


def store_operations(bench, note):
    """Requests and bytes that each worker exchanges with the store, for each phase of a start with gloo."""
    rows = []
    for world in (2, 4) if bench.quick else (2, 4, 8):
        for phase, counts in count_start(bench, world).items():
            kinds = ", ".join(f"{number / world:g} {name}" for name, number in counts.requests.items())
            per_worker = sum(counts.requests.values()) / world
            rows.append(Comparison("store-operations", f"{world} workers, {phase}: {kinds or 'nothing'}; "
                                   f"{counts.sent / world:.0f} bytes there, {counts.received / world:.0f} back",
                                   [per_worker], unit="requests each"))
        note(f"{world} workers")
    return rows
