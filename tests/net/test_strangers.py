"""Strangers at the ports of a running job: whatever they send, the job does not notice, and others can still join."""

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
def refused(peer):
    # The coordinator's greeting, and 32 bytes of 0 instead of its proof; less if it closed with bytes unread.
    got = until_closed(peer)
    return len(got) <= 48 + 32 and not any(got[48:])
hello = b"DDRUN-RV" + struct.pack("<HHI", 2, 1, 0) + bytes(32)
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

    def test_garbage(self):
        got = self.knock("""
for text in (b"GET / HTTP/1.1\\r\\n\\r\\n" + bytes(64), bytes(48), b"\\xff" * 100000, hello[:10] + b"\\xff" * 38):
    peer = connect()
    try:
        peer.sendall(text)
    except ConnectionError:
        pass
    print(closed(peer) <= 48)
""")
        self.assertEqual(got, ["True"] * 4)
        self.is_unharmed()

    def test_a_greeting_that_is_cut_off_or_never_comes(self):
        got = self.knock("""
peers = [connect() for _ in range(4)]
peers[1].sendall(hello[:20])
peers[2].sendall(hello)
peers[3].sendall(hello + bytes(31))
print(*[closed(peer) for peer in peers])
""")
        self.assertEqual(got, ["0", "0", "48", "48"])
        self.is_unharmed()

    def test_a_wrong_proof_and_a_frame_without_one(self):
        got = self.knock("""
peer = connect()
peer.sendall(hello + bytes(32))
print(refused(peer))
peer = connect()
peer.sendall(hello + bytes(32) + struct.pack("<IB", 1 << 31, 1) + bytes(1000))
print(refused(peer))
without = b"DDRUN-RV" + struct.pack("<HHI", 2, 0, 0) + bytes(32)
peer = connect()
peer.sendall(without)
answer = peer.recv(48)
print(struct.unpack("<H", answer[10:12])[0], closed(peer))
""")
        self.assertEqual(got, ["True", "True", "2", "0"])
        self.is_unharmed()

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

    def test_a_greeting_that_was_listened_to_is_of_no_use(self):
        # A spare comes by way of a stranger, who keeps what it said, and says it again.
        way = self.bed[3].start(["python3", "-c", KNOCK + """
import threading
server = socket.create_server(("", 29999))
print("listening", flush=True)
agent = server.accept()[0]
job = connect()
heard = bytearray()
def back():
    while data := job.recv(1 << 16):
        agent.sendall(data)
threading.Thread(target=back, daemon=True).start()
while data := agent.recv(1 << 16):
    heard += data
    job.sendall(data)
job.close()
again = connect()
try:
    again.sendall(bytes(heard))
except ConnectionError:
    pass
print(len(heard) > 200, refused(again), flush=True)
""", str(PORT)])
        self.until(lambda: "listening" in way.out)
        spare = self.ddrun(self.bed[2], f"--rdzv-endpoint={self.bed[3].address}:29999", nnodes=2)
        self.until(lambda: "spare" in spare.err)
        spare.signal(9)
        spare.wait(10)
        self.assertEqual(way.wait(30), 0, self.said())
        self.assertEqual(way.out.split()[-2:], ["True", "True"], self.said())
        self.is_unharmed()

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
