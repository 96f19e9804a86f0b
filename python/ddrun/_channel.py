"""Frames between the program that called ddrun and the ranks: 8 bytes of length, its tag, the payload's tag, the payload.

On one machine the kernel says whose process the peer is, and there are no tags. Over TCP there is a key: each side first
sends 32 random bytes, and derives from them and the key one key for each direction; a tag is HMAC-SHA256 over its number in
this direction and what it is for. So nothing is unpickled, and no memory taken for it, that was not sent by a process that
knows the key, in this connection and in this order. Nothing is encrypted.
"""

import os
import socket
import struct

NONCE_BYTES = TAG_BYTES = 32
HELLO_LIMIT = 4096  # bytes of a rank's first frame


class Direction:
    """Frames of one direction."""

    def __init__(self, key, nonces, name):
        self.key, self.count = key and _digest(key, nonces, name), 0
        self.header_bytes = 8 + 2 * TAG_BYTES if key else 8

    def tag(self, content):
        if not self.key:
            return b""
        self.count += 1
        return _digest(self.key, self.count.to_bytes(8, "big"), content)

    def frame(self, payload):
        size = len(payload).to_bytes(8, "big")
        return size + self.tag(size) + self.tag(payload) + payload

    def size(self, header, limit=1 << 62):
        """Of the payload that follows. Raises ConnectionError."""
        self.check(header[8 : 8 + TAG_BYTES], header[:8])
        if (size := int.from_bytes(header[:8], "big")) > limit:
            raise ConnectionError(f"a frame of {size} bytes is too long")
        return size

    def payload(self, header, payload):
        """The payload. Raises ConnectionError."""
        self.check(header[8 + TAG_BYTES :], payload)
        return payload

    def check(self, tag, content):
        if self.key:
            import hmac

            if not hmac.compare_digest(tag, self.tag(content)):
                raise ConnectionError("a frame has a wrong tag")


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
    nonces = bytes(driver_nonce + rank_nonce)
    return Direction(key, nonces, b"to rank"), Direction(key, nonces, b"from rank")
