"""A worker whose rank 2 hangs as the first argument says, while the others wait for it in a barrier. With `torch` as the
second argument these use PyTorch's collectives over gloo, else sockets of their own. Kinds of PyTorch alone: `record`,
`forward`, `save`, `loader`, where its frames lie below the program's or between them."""
import ctypes
import os
import signal
import socket
import sys
import time

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
KIND = sys.argv[1]


class Sockets:
    """In a barrier rank 0 answers when all others have sent a byte, in an all-reduce these answer rank 0."""

    def __init__(self):
        path = f"{os.environ['HANG_FOLDER']}/hub"
        if RANK == 0:
            with socket.create_server(("127.0.0.1", 0)) as server:
                with open(path + ".new", "w") as file:
                    file.write(str(server.getsockname()[1]))
                os.rename(path + ".new", path)
                self.peers = [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
        else:
            while not os.path.exists(path):
                time.sleep(0.01)
            with open(path) as file:
                self.peers = [socket.create_connection(("127.0.0.1", int(file.read())))]

    def send(self):
        for peer in self.peers:
            peer.send(b"x")

    def receive(self):
        for peer in self.peers:
            peer.recv(1)

    def barrier(self):
        for part in (self.receive, self.send) if RANK == 0 else (self.send, self.receive):
            part()

    def all_reduce(self):
        for part in (self.send, self.receive) if RANK == 0 else (self.receive, self.send):
            part()


class Torch:
    def __init__(self):
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        self.tensor, self.dist = torch.ones(4), dist

    def barrier(self):
        self.dist.barrier()

    def all_reduce(self):
        self.dist.all_reduce(self.tensor)

    def forward(self, hangs):
        import torch
        from torch.distributed.fsdp import fully_shard

        class Layer(torch.nn.Linear):
            def forward(self, x):
                if hangs:
                    stuck_in_call()
                return super().forward(x)
        fully_shard(Layer(4, 4))(torch.ones(1, 4))

    def save(self, hangs):
        import torch.distributed.checkpoint as checkpoint
        folder = f"{os.environ['HANG_FOLDER']}/checkpoint"
        os.makedirs(folder, exist_ok=True)
        if hangs:
            os.mkfifo(f"{folder}/__{RANK}_0.distcp")  # nothing reads it
        checkpoint.save({f"tensor {RANK}": self.tensor}, checkpoint_id=folder)

    def loader(self, hangs):
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                if i == 2:
                    stuck_in_call()
                return i
        if hangs:
            list(DataLoader(Data(), num_workers=3))


def say(text):
    print(text, flush=True)


def stuck_in_python():
    n = 0
    while True:
        n = (n * 31 + 7) % 1000003


def stuck_in_call():
    out, _in = os.pipe()
    os.read(out, 1)


def stuck_in_native():
    mutex = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def stuck_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def stuck_in_kernel():
    ctypes.CDLL(os.environ["HANG_VFORK"]).hang_in_vfork()  # state D: its child does not execute a program


def stuck_in_order(group):
    group.all_reduce()


def train_step(group, step):
    if RANK == 2 and step == 3:
        say("stuck")
        if KIND == "python":
            stuck_in_python()
        elif KIND in ("call", "record"):
            stuck_in_call()
        elif KIND == "native":
            stuck_in_native()
        elif KIND == "stopped":
            stuck_stopped()
        elif KIND == "kernel":
            stuck_in_kernel()
        elif KIND == "order":
            stuck_in_order(group)
    if KIND in ("forward", "save", "loader") and step == 3:
        getattr(group, KIND)(hangs=RANK == 2)
    group.barrier()


def main():
    group = Torch() if sys.argv[2:] == ["torch"] else Sockets()
    for step in range(100):
        train_step(group, step)


if KIND == "record":
    from torch.distributed.elastic.multiprocessing.errors import record
    main = record(main)
main()
