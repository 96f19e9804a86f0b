"""A stranger at the store of a running job. What one may say to the coordinator is tried in
tests/protocol/rendezvous/hostile_test.cpp."""

import re

from jobs import JobTest
from netcase import main

# The answer to a stranger's GET at the store.
ASK = """
import socket, struct, sys
try:
    peer = socket.create_connection(("10.77.0.1", int(sys.argv[1])), 10)
    peer.sendall(b"\\x00\\xce\\xf7\\x85\\x3c\\x04" + struct.pack("<Q", 1) + b"k" + struct.pack("<q", 1))
    peer.settimeout(20)
    print(len(peer.recv(1 << 16)))
except ConnectionError:
    print(0)
"""


class Strangers(JobTest):
    hosts = 3

    def test_the_store_is_for_the_rounds_machines(self):
        jobs = self.start(nnodes=2, hosts=self.bed.hosts[:2], verbs=["env", "MASTER_PORT", "await", str(self.go_file)])
        self.wait_for_workers(self.bed.hosts[:2])
        self.until(lambda: "MASTER_PORT" in jobs["h1"].out)
        port = re.search(r"MASTER_PORT=(\d+)", jobs["h1"].out)[1]
        asked = self.bed[3].run(["python3", "-c", ASK, port], 60)
        self.assertEqual((asked.code, asked.out), (0, "0\n"), str(asked))
        self.go()
        for job in jobs.values():
            self.assertEqual(job.wait(30), 0, self.said())


if __name__ == "__main__":
    main()
