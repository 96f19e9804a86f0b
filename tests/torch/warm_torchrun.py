"""torchrun without its two seconds of `import torch` for each command line: a process that has imported it once becomes
torchrun in forks of itself. What runs there is torch.distributed.run.main(), as in the real program, with the arguments,
environment, directory and descriptors that it would have; test_command_lines.py also compares the two.

    warm_torchrun.py FD [MODULE]...   FD is a socket for requests: JSON, and three descriptors; the modules are imported, too
"""

import gc
import importlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading

import harness


class Process:
    """As much of subprocess.Popen as harness.Running uses."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None
        self.ended = threading.Event()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("torchrun", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)


class WarmTorchrun:
    """The client's side. Several threads may use it."""

    def __init__(self):
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open(harness.TORCHRUN, encoding="utf-8") as file:
            python = file.readline().removeprefix("#!").strip()
        self._server = subprocess.Popen([python, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                        stdin=subprocess.DEVNULL, env=harness.environment())
        theirs.close()
        self._starting = threading.Lock()  # so that answers to requests come in their order
        self._started = threading.Semaphore(0)
        self._processes = {}
        self._last = None
        threading.Thread(target=self._read, daemon=True).start()

    def close(self):
        self._channel.shutdown(socket.SHUT_RDWR)
        self._server.wait(30)

    def start(self, args, env, cwd, files):
        request = {"args": args, "env": env, "cwd": str(cwd)}
        with self._starting:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [file.fileno() for file in files])
            self._started.acquire()
            if self._last is None:
                raise AssertionError("the process that stands for torchrun has ended")
            return self._last

    def _read(self):
        while True:
            try:
                data = self._channel.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self._last = None
                self._started.release()
                return
            answer = json.loads(data)
            if "code" in answer:
                process = self._processes.pop(answer["pid"])
                process.returncode = answer["code"]
                process.ended.set()
            else:
                self._last = self._processes[answer["pid"]] = Process(answer["pid"])
                self._started.release()


class WarmRunning(harness.Running):
    """A harness.Running of torchrun."""

    def __init__(self, warm, args, **options):
        self._warm = warm
        super().__init__(args, **options)

    def start(self, env, cwd, stdin):
        return self._warm.start(self.args, env, cwd or os.getcwd(), [stdin, self._out, self._err])


def serve(channel):
    """Answers requests until the client is gone. In a child it returns, with the request to carry out."""
    import torch.distributed.run  # noqa: F401  this is what takes the time
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # so that forks need not copy what they only look through
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is channel:
                data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
                if not data:
                    sys.exit()
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    channel.close()
                    for number, fd in enumerate(fds):
                        os.dup2(fd, number)
                        os.close(fd)
                    return json.loads(data)
                for fd in fds:
                    os.close(fd)
                channel.send(json.dumps({"pid": pid}).encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
            else:
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                _, status = os.waitpid(key.data, 0)
                channel.send(json.dumps({"pid": key.data, "code": os.waitstatus_to_exitcode(status)}).encode())


def become_torchrun(request):
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["args"]
    sys.modules["__main__"].__file__ = request["args"][0]  # multiprocessing's children look at it
    tempfile.tempdir = None  # it was chosen by the environment of before
    from torch.distributed.run import main
    sys.exit(main())


if __name__ == "__main__":
    become_torchrun(serve(socket.socket(fileno=int(sys.argv[1]))))
