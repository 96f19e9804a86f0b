"""Frames between the program that called ddrun and the ranks: 8 bytes of length, a tag if there is a key, the payload.

On one machine the kernel says whose process the peer is. Over TCP there is a key: each side first sends 32 random bytes,
and derives from them and the key one key for each direction; the tag is HMAC-SHA256 over the frame's number and payload.
So nothing is unpickled that was not sent by a process that knows the key, in this connection and in this order. Nothing
is encrypted.
"""

import os
import socket
import struct

NONCE_BYTES = TAG_BYTES = 32
HELLO_LIMIT = 4096  # bytes of a first frame, which has no valid tag yet


class Direction:
    """Frames of one direction."""

    def __init__(self, key, nonces, name):
        self.key, self.count = key and _digest(key, nonces, name), 0

    def tag(self, payload):
        if not self.key:
            return b""
        self.count += 1
        return _digest(self.key, self.count.to_bytes(8, "big"), payload)

    def frame(self, payload):
        return len(payload).to_bytes(8, "big") + self.tag(payload) + payload

    def check(self, tag, payload):
        if self.key:
            import hmac

            if not hmac.compare_digest(tag, self.tag(payload)):
                raise ConnectionError("a frame has a wrong tag")
        return payload


def _digest(key, *parts):
    import hashlib
    import hmac  # not at the top: local ranks have no key

    code = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        code.update(part)
    return code.digest()


def check_peer(connection):
    """On this machine: any user may connect to, or take, the name of a socket."""
    if connection.family == socket.AF_UNIX:
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():
            raise ConnectionError(f"the peer is a process of user {user}")


def directions(key, driver_nonce, rank_nonce):
    """To the rank, and from it."""
    nonces = driver_nonce + rank_nonce
    return Direction(key, nonces, b"to rank"), Direction(key, nonces, b"from rank")
