"""Strangers at the ports of a running job: the job does not notice, and others can still join. What they may say there is
tried in tests/protocol/rendezvous/hostile_test.cpp."""

import re

from jobs import PORT, JobTest
from netcase import main

# Each is a program on h3; what it prints last is compared.
KNOCK = """
import socket, struct, sys
def connect():
    return socket.create_connection(("10.77.0.1", int(sys.argv[1])), 10)
def until_closed(peer):
    peer.settimeout(20)
    got = b""
    try:
        while data := peer.recv(1 << 16):
            got += data
    except ConnectionError:
        pass
    return got
def closed(peer):
    # The end, and how much came before it.
    return len(until_closed(peer))
"""


class Strangers(JobTest):
    hosts = 3

    def setUp(self):
        super().setUp()
        self.jobs = self.start(nnodes=2, hosts=self.bed.hosts[:2], verbs=["env", "MASTER_PORT", "await", str(self.go_file)])
        self.wait_for_workers(self.bed.hosts[:2])

    def knock(self, program, port=PORT, seconds=60):
        done = self.bed[3].run(["python3", "-c", KNOCK + program, str(port)], seconds)
        self.assertEqual(done.code, 0, str(done))
        return done.out.split()

    def is_unharmed(self):
        self.assertFalse(any(job.ended() for job in self.jobs.values()), self.said())
        spare = self.ddrun(self.bed[3], nnodes=2)
        self.until(lambda: "spare" in spare.err)
        self.go()
        for job in [*self.jobs.values(), spare]:
            self.assertEqual(job.wait(30), 0, self.said())

    def test_a_thousand_idle_connections(self):
        idle = self.bed[3].start(["python3", "-c", KNOCK + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
peers = []
for _ in range(1000):
    peers.append(connect())
print("there", flush=True)
for peer in peers:
    closed(peer)
print("gone", flush=True)
import time
time.sleep(1000)
""", str(PORT)])
        self.until(lambda: "there" in idle.out or idle.ended())
        # They are of one address: another machine is not kept out meanwhile.
        late = self.ddrun(self.bed[2], nnodes=2)
        self.until(lambda: "spare" in late.err)
        self.until(lambda: "gone" in idle.out)
        idle.signal(9)
        idle.wait(10)
        self.go()
        for job in [*self.jobs.values(), late]:
            self.assertEqual(job.wait(30), 0, self.said())

    def test_the_store_is_for_the_rounds_machines(self):
        self.until(lambda: "MASTER_PORT" in self.jobs["h1"].out)
        port = int(re.search(r"MASTER_PORT=(\d+)", self.jobs["h1"].out)[1])
        got = self.knock("""
try:
    peer = connect()
    peer.sendall(b"\\x00\\xce\\xf7\\x85\\x3c\\x04" + struct.pack("<Q", 1) + b"k" + struct.pack("<q", 1))
    print(closed(peer))
except ConnectionError:
    print(0)
""", port)
        self.assertEqual(got, ["0"])
        self.is_unharmed()


if __name__ == "__main__":
    main()
