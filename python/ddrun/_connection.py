"""A rank's connection to the program that called ddrun."""

import os
import pickle
import socket
import sys
import threading
import time

from ddrun import _channel

TIMEOUT = 60  # seconds until the caller has answered
NOT_CONNECTED = 117  # exit code of a rank whose caller is gone


class Connection:
    """address: the path of a socket, or [host, port]. Blocks until the caller has answered with `welcome`, at most to the
    deadline (time.monotonic()). Raises OSError, EOFError at the end of the connection. `send` may be called by all threads."""

    def __init__(self, address, key, hello, deadline):
        self.deadline, self.sending = deadline, threading.Lock()
        self.socket = socket.socket(socket.AF_UNIX) if isinstance(address, str) else None
        try:
            if self.socket:
                self.socket.connect(address)
                _channel.check_peer(self.socket)
            else:
                self.socket = socket.create_connection(address, timeout=min(10, max(0.01, deadline - time.monotonic())))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs = self.read(_channel.NONCE_BYTES) if key else b""
            ours = os.urandom(_channel.NONCE_BYTES) if key else b""
            self.socket.sendall(ours)
            self.incoming, self.outgoing = _channel.directions(key, theirs, ours)
            self.send(hello)
            self.welcome = self.receive()
        except BaseException:
            self.close()
            raise
        self.deadline = None
        self.socket.settimeout(None)

    def read(self, size):
        data, count = bytearray(size), 0
        while count < size:
            if self.deadline is not None:
                self.socket.settimeout(max(0.01, self.deadline - time.monotonic()))
            received = self.socket.recv_into(memoryview(data)[count:])
            if not received or self.deadline is not None and time.monotonic() > self.deadline:
                raise EOFError("the connection has ended" if not received else "no answer")
            count += received
        return data

    def receive(self):
        header = self.read(self.incoming.header_bytes)
        return pickle.loads(self.incoming.payload(header, self.read(self.incoming.size(header))))

    def send(self, message):
        payload = pickle.dumps(message)
        with self.sending:
            self.socket.sendall(self.outgoing.frame(payload))

    def close(self):
        if self.socket:
            self.socket.close()


def connect(job, hello):
    """To the first address at which the caller answers; ends the process if it does not within TIMEOUT. job: of Job."""
    addresses, key, end = list(job["addresses"]), bytes.fromhex(job["key"]), time.monotonic() + TIMEOUT
    if port := job["port"]:
        addresses.append([os.environ.get("SSH_CONNECTION", "127.0.0.1").split()[0], port])
    refused = set()
    while len(refused) < len(addresses) and time.monotonic() < end:
        for number, address in enumerate(addresses):
            try:
                now = time.monotonic()
                return Connection(address, key, hello, now + (end - now) / (len(addresses) - number))
            except ConnectionRefusedError as error:
                refused.add(number)
                reason = error
            except (OSError, EOFError) as error:
                reason = error
        time.sleep(0.05)
    print(f"{socket.gethostname()} cannot connect to the program that called ddrun at {addresses}: {reason}", file=sys.stderr)
    sys.exit(NOT_CONNECTED)
