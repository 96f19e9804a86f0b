"""A table of jobs that hang: for each its program, and the first line of the page that `ddrun stacks` is to show. The same
programs run with any placement of their ranks, so that a job on three machines has the line of a job on one."""

import dataclasses
import re

# What keeps the rank from the others, and what the first line is to say of it.
KINDS = {
    "python": "in Python, or in a call of its standard library: the program's innermost own line",
    "system call": "blocked in the kernel: what it reads, locks or receives from",
    "native": "in a library's function, without the interpreter: the Python line that called it",
    "stopped": "by SIGSTOP, wherever it is: also within a collective",
    "state D": "uninterruptible: the process may be in a collective or not, and no signal ends it",
    "child": "waits for a process that it has started: that process's line too",
    "absent": "has not come to the others' group yet: these wait in init_process_group or for the store",
    "ended": "the others wait, and it is no longer there",
    "collective": "all ranks wait, in different collectives: which ranks are in which, as no rank is at work",
    "no verdict": "all ranks wait, and no page of stacks can tell for which: no such line",
}

# For programs without a library: collectives on sockets, over rank 0, whose address is in ddrun's store.
RANKS = """import os, socket, struct, sys, time
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def text(data): return struct.pack("<Q", len(data)) + data

class Group:
    def __init__(self):
        store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        store.sendall(struct.pack("<BI", 0, 0x3C85F7CE))  # the protocol of PyTorch's TCPStore
        if RANK == 0:
            server = socket.create_server(("", 0), backlog=1000)
            own = store.getsockname()[0]
            store.sendall(b"\\1" + text(b"hub") + text(f"{own} {server.getsockname()[1]}".encode()))
            self.peers = [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
        else:
            store.sendall(b"\\6" + struct.pack("<Q", 1) + text(b"hub"))
            store.recv(1)
            store.sendall(b"\\3" + text(b"hub"))
            host, port = store.recv(8, socket.MSG_WAITALL) and store.recv(1000).decode().split()
            self.peers = [socket.create_connection((host, int(port)))]
        self.store = store

    def send(self):
        for peer in self.peers:
            peer.send(b"x")

    def receive(self):
        for peer in self.peers:
            peer.recv(1)

    def barrier(self):
        for part in (self.receive, self.send) if RANK == 0 else (self.send, self.receive):
            part()

group = Group()
"""


@dataclasses.dataclass
class Scene:
    name: str
    kind: str       # of KINDS
    machines: int   # on which it is to be seen; 1: it needs what only one has
    line: str       # the page's first one; "…" is any text, FOLDER the job's, SERVER a server that does not answer
    program: str    # job.py, job.c, or kind of ddrun_test_hang
    library: str = "sockets"  # sockets, torch, c++, mpi (in C), mpi4py
    options: tuple = ()       # of ddrun, before the program
    others: tuple = ()        # programs after it, each behind a ":"
    also: str = ""            # to be on the page besides

    @property
    def ranks(self):
        return 2 * self.machines if self.machines > 1 else 4

    def pattern(self, folder, server, host=""):
        """Of its page. `host`: of names of machines, if they are several."""
        line = self.line or "where the ranks…"
        if host:
            line = re.sub("((?<= for rank )|(?<=^rank ))([0-9]+)(?=:| has)", r"\2 HOST", line)
        line = re.escape(line).replace("…", ".*").replace("HOST", "on " + host)
        also = re.escape(self.also).replace(":", f"( on {host})?:")
        return re.compile(line.replace("FOLDER", str(folder)).replace("SERVER", server) + rf"\n(.*\n)*.*{also}")


def sockets(name, kind, machines, line, program, **options):
    return Scene(name, kind, machines, line, "from ranks import *\n" + program, **options)


def torch(name, kind, machines, line, program, **options):
    head = 'import os, sys, time, torch, torch.distributed as dist\nRANK = int(os.environ["RANK"])\n'
    return Scene(name, kind, machines, line, head + program, library="torch", **options)


LOADS = """\
def load_batch(step):
    if RANK == 2 and step == 3: time.sleep(1000)
for step in range(10):
    load_batch(step)
    group.barrier()
"""

SCENES = [
    sockets("sleep", "python", 1, "ranks 0,1,3 wait for rank 2: load_batch (job.py:3), sleeps", LOADS),
    sockets("lock", "python", 1, "ranks 0,1,3 wait for rank 2: update (job.py:4), waits for another thread (futex)", """\
import threading
lock = threading.Lock()
def update(): lock.acquire()
update()
if RANK == 2: update()
group.barrier()
"""),
    sockets("queue", "python", 3,
            "ranks 0,1,3-5 wait for rank 2: next_batch (job.py:5), waits for another thread (futex)", """\
import queue, threading
batches = queue.Queue()
def next_batch():
    return batches.get()  # its producer has ended
batches.put(1)
next_batch()
if RANK == 2: next_batch()
group.barrier()
"""),
    sockets("loop", "python", 3, "ranks 0,1,3-5 wait for rank 2: tokenize (job.py:3), computes", """\
def tokenize():
    while True: pass
if RANK == 2: tokenize()
group.barrier()
"""),
    sockets("fifo", "system call", 1, "ranks 0,1,3 wait for rank 2: read_shard (job.py:5), reads FOLDER/fifo", """\
def read_shard():
    os.mkfifo("fifo")
    fd = os.open("fifo", os.O_RDWR)
    os.read(fd, 1)
if RANK == 2: read_shard()
group.barrier()
"""),
    sockets("flock", "system call", 3,
            "ranks 0,1,3-5 wait for rank 2: take_cache (job.py:4), waits for the lock of FOLDER/lock", """\
import fcntl
def take_cache():
    for file in (open("lock", "w"), open("lock", "w")): fcntl.flock(file, fcntl.LOCK_EX)
if RANK == 2: take_cache()
group.barrier()
"""),
    sockets("server", "system call", 3, "ranks 0,1,3-5 wait for rank 2: fetch (job.py:4), receives from SERVER", """\
def fetch(host, port):
    with socket.create_connection((host, int(port))) as server:
        server.recv(1)
if RANK == 2: fetch(*os.environ["SCENE_SERVER"].split(":"))
group.barrier()
"""),
    sockets("event loop", "python", 3, "ranks 0,1,3-5 wait for rank 2: load_batch (job.py:4), sleeps", """\
import selectors
def load_batch():
    time.sleep(1000)
def run_until_peers_are_done():
    loop = selectors.DefaultSelector()
    for source in (os.pipe()[0], *group.peers): loop.register(source, selectors.EVENT_READ)
    loop.select()
load_batch() if RANK == 2 else run_until_peers_are_done()
"""),
    sockets("usleep", "native", 3, "ranks 0,1,3-5 wait for rank 2: decode (job.py:4), sleeps", """\
import ctypes
def decode():
    ctypes.CDLL(None).usleep(1000_000_000)
if RANK == 2: decode()
group.barrier()
"""),
    sockets("pause", "native", 1, "ranks 0,1,3 wait for rank 2: decode (job.py:4), waits for a signal", """\
import ctypes
def decode():
    ctypes.CDLL(None).pause()
if RANK == 2: decode()
group.barrier()
"""),
    sockets("stopped", "stopped", 3, "ranks 0,1,3-5 wait for rank 2: train (job.py:4), is stopped by a signal", """\
import signal
def train():
    os.kill(os.getpid(), signal.SIGSTOP)
if RANK == 2: train()
group.barrier()
"""),
    torch("stopped in a collective", "stopped", 1,
          "ranks 0,1,3 wait for rank 2: evaluate (job.py:6), is stopped by a signal", """\
import signal, threading
def evaluate():
    if RANK == 2: threading.Timer(1, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    dist.barrier()
dist.init_process_group("gloo")
if RANK == 3: time.sleep(2)
evaluate()
"""),
    sockets("vfork", "state D", 1,
            "ranks 0,1,3 wait for rank 2: spawn (job.py:4), is in uninterruptible sleep (state D…", """\
import ctypes
def spawn():
    ctypes.CDLL(os.environ["HANG_VFORK"]).hang_in_vfork()
if RANK == 2: spawn()
group.barrier()
"""),
    sockets("compiler", "child", 1,
            "ranks 0,1,3 wait for rank 2: compile (job.py:4), waits for a child process; child … sleep: …sleeps", """\
import subprocess
def compile():
    subprocess.run(["sleep", "1000"])
if RANK == 2: compile()
group.barrier()
"""),
    sockets("a service", "python", 1, "a ranks 0,1,3 wait for a rank 2: load_batch (job.py:3), sleeps", LOADS,
            options=("--role=a",), others=(":", "-n", "1", "--service", "--role=b", "sleep", "1000")),
    torch("torch", "python", 3, "ranks 0,1,3-5 wait for rank 2: load_batch (job.py:4), sleeps", """\
def load_batch(step):
    if RANK == 2 and step == 3: time.sleep(1000)
dist.init_process_group("gloo")
for step in range(10):
    load_batch(step)
    dist.all_reduce(torch.ones(4))
"""),
    torch("record", "system call", 3, "ranks 0,1,3-5 wait for rank 2: load_batch (job.py:5), reads a pipe", """\
from torch.distributed.elastic.multiprocessing.errors import record
def load_batch():
    if RANK == 2: os.read(os.pipe()[0], 1)
@record
def main():
    dist.init_process_group("gloo")
    load_batch()
    dist.all_reduce(torch.ones(4))
main()
"""),
    torch("another collective", "collective", 3,
          "rank 2 is in barrier (job.py:5), ranks 0,1,3-5 in all_reduce (job.py:6)", """\
dist.init_process_group("gloo")
def train_step():
    if RANK == 2: dist.barrier()
    dist.all_reduce(torch.ones(4))
train_step()
"""),
    torch("order of collectives", "collective", 1,
          "ranks 0,1 are in all_gather_object (job.py:5), ranks 2,3 in broadcast (job.py:7)", """\
dist.init_process_group("gloo")
def metrics():
    dist.all_gather_object([None] * 4, RANK)
def weights():
    dist.broadcast(torch.ones(4), 1)
for part in (metrics, weights) if RANK < 2 else (weights, metrics): part()
"""),
    torch("another group", "no verdict", 3, "", """\
dist.init_process_group("gloo")
group = dist.new_group()
def weights(): dist.all_reduce(torch.ones(4), group=group)
def losses(): dist.all_reduce(torch.ones(4))
weights() if RANK == 2 else losses()
""", also="  ranks 0,1,3-5: waits for other ranks, "),
    torch("send and receive", "no verdict", 1, "", """\
dist.init_process_group("gloo")
if RANK < 3: dist.recv(torch.ones(4), (RANK + 1) % 3)
else: dist.barrier()
""", also="  ranks 0-2: waits for other ranks, "),
    torch("not in the group yet", "absent", 3,
          "rank 2 has not reached init_process_group; ranks 0,1,3-5 wait for it: build_vocabulary (job.py:4), sleeps", """\
def build_vocabulary():
    time.sleep(1000)
if RANK == 2: build_vocabulary()
dist.init_process_group("gloo")
""", also="in the store for "),
    torch("never in the store", "absent", 1,
          "rank 2 has not reached init_process_group; ranks 0,1,3 wait for it: clock_nanosleep…, sleeps", """\
if RANK == 2: os.execvp("sleep", ["sleep", "1000"])
dist.init_process_group("gloo")
"""),
    torch("ended", "ended", 3, "ranks 0,1,3-5 wait for other ranks; rank 2 has ended", """\
if RANK == 2: sys.exit(0)
dist.init_process_group("gloo")
"""),
    torch("forked loader", "child", 1,
          "ranks 0,1,3 wait for rank 2: main (job.py:12), …; child … pt_data_worker: Data.__getitem__ (job.py:7), sleeps", """\
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 5: time.sleep(1000)
        return i
def main():
    dist.init_process_group("gloo")
    if RANK == 2:
        for batch in DataLoader(Data(), num_workers=2, multiprocessing_context="fork"): pass
    dist.barrier()
if __name__ == "__main__": main()
"""),
    torch("spawned loader", "child", 3,
          "ranks 0,1,3-5 wait for rank 2: main (job.py:12), …; child … pt_data_worker: Data.__getitem__ (job.py:7), sleeps",
          """\
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 5: time.sleep(1000)
        return i
def main():
    dist.init_process_group("gloo")
    if RANK == 2:
        for batch in DataLoader(Data(), num_workers=2, multiprocessing_context="spawn", pin_memory=True): pass
    dist.barrier()
if __name__ == "__main__": main()
"""),
    torch("checkpoint", "system call", 3, "ranks 0,1,3-5 wait for rank 2: save (job.py:6), opens a file", """\
import torch.distributed.checkpoint
def save():
    if RANK == 2: os.mkfifo("saved/__2_0.distcp")  # no process reads it
    dist.checkpoint.save({f"tensor {RANK}": torch.ones(4)}, checkpoint_id="saved")
dist.init_process_group("gloo")
os.makedirs("saved", exist_ok=True)
save()
"""),
    Scene("c++", "system call", 1, "ranks 0,1,3 wait for rank 2: …train::stuck_in_call…, reads a pipe", "call",
          library="c++"),
    Scene("two threads", "native", 1,
          "ranks 0,1,3 wait for rank 2: pthread_mutex_lock < train::take_both…, waits for another thread (futex)",
          "deadlock", library="c++", also="thread ddrun_test_hang: pthread_mutex_lock < train::take_both"),
    Scene("mpi", "python", 1, "ranks 0,1,3 wait for rank 2: clock_nanosleep < …load < main…, sleeps", r"""
#include <mpi.h>
#include <unistd.h>
__attribute__((noinline)) int load(void) { return (int)sleep(1000) + 1; }
int main(int argc, char** argv) {
  int rank = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 2) rank += load();
  MPI_Bcast(&rank, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
}
""", library="mpi", options=("--mpi",)),
    Scene("another collective of MPI", "collective", 1, "rank 2 is in MPI_Bcast (train), ranks 0,1,3 in MPI_Barrier (evaluate)",
          r"""
#include <mpi.h>
__attribute__((noinline)) int train(int data) { return MPI_Bcast(&data, 1, MPI_INT, 0, MPI_COMM_WORLD) + 1; }
__attribute__((noinline)) int evaluate(void) { return MPI_Barrier(MPI_COMM_WORLD) + 1; }
int main(int argc, char** argv) {
  int rank = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank == 2 ? train(rank) : evaluate();
}
""", library="mpi", options=("--mpi",)),
    Scene("mpi4py", "python", 3, "ranks 0,1,3-5 wait for rank 2: load_batch (job.py:4), sleeps", """\
import time
from mpi4py.MPI import COMM_WORLD as world
def load_batch():
    if world.rank == 2: time.sleep(1000)
load_batch()
world.Barrier()
""", library="mpi4py", options=("--mpi",)),
]
