#!/usr/bin/env python3
"""A wire on which what comes from one end arrives late at the other: what `tc qdisc add … netem delay` does where the kernel
has that.

    late_wire.py FROM TO MILLISECONDS

Carries packets between two interfaces until it is killed or one of them is gone: from FROM to TO after this time, the other
way at once. Needs root.
"""

import collections
import select
import socket
import sys
import time

ETH_P_ALL = 3
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
LARGEST = 1 << 17


def end_of(interface):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    # With it packets that a card would cut up and sum up are handed on as they are.
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    end.bind((interface, ETH_P_ALL))
    end.setblocking(False)
    return end


def packets_of(end):
    while True:
        try:
            yield end.recv(LARGEST)
        except BlockingIOError:
            return


def carry(slow, other, delay):
    under_way = collections.deque()  # (when it arrives, packet)

    def put(end, packet):
        try:
            end.send(packet)
        except (BlockingIOError, InterruptedError):
            pass  # a full wire loses packets
    while True:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            put(other, under_way.popleft()[1])
        rest = max(0, under_way[0][0] - now) if under_way else None
        readable, _, _ = select.select([slow, other], [], [], rest)
        if slow in readable:
            due = time.monotonic() + delay
            under_way.extend((due, packet) for packet in packets_of(slow))
        if other in readable:
            for packet in packets_of(other):
                put(slow, packet)


if __name__ == "__main__":
    ends = [end_of(interface) for interface in sys.argv[1:3]]
    print("carries", flush=True)
    try:
        carry(*ends, int(sys.argv[3]) / 1000)
    except OSError as gone:
        sys.exit(f"{sys.argv[0]}: {gone}")
