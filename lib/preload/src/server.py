# The server of `ddrun --preload`: imports modules once; workers are forks of it. ddrun sends this text to
# `python -u -c LOADER PROGRAM ARG…`; `control` is descriptor 0, a SOCK_SEQPACKET socket to the agent.
#
# A generation forks standby workers and its successor and exits: all become children of the agent, a subreaper. A
# standby worker waits for its assignment and then is what `python -u PROGRAM ARG…` would be. Fields of messages are
# separated by NUL; lib/preload/README.md lists them.
import contextlib
import ctypes
import fcntl
import gc
import importlib.machinery
import os
import pkgutil
import runpy
import signal
import socket
import sys
import sysconfig
import termios
import threading
import time
import warnings

libc = ctypes.CDLL(None)
# They read a rank while being imported, and renew_state() puts it right.
MENDED = ("lightning.fabric.utilities.rank_zero", "lightning_fabric.utilities.rank_zero", "torchmetrics.utilities.prints")


def release_output():
    """The agent reads it to its end before it goes on. Returns /dev/null."""
    sys.stdout.flush()
    sys.stderr.flush()
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    return null


def refuse(why):
    release_output()
    control.send(b"refused\0" + why.encode(errors="replace")[:4000])
    os._exit(1)


def read(name):
    with open(f"/proc/self/{name}") as file:
        return file.read()


def lasting_threads():
    """OpenBLAS ends its threads before a fork and brings them back when needed; what is left after a fork stays."""
    if len(os.listdir("/proc/self/task")) > 1:
        with warnings.catch_warnings():  # of Python 3.12: the child does nothing that a thread could have locked
            warnings.simplefilter("ignore")
            if (pid := os.fork()) == 0:
                os._exit(0)
        os.waitpid(pid, 0)
    lasting = [read(f"task/{task}/comm").strip() for task in os.listdir("/proc/self/task")][1:]
    return lasting and [thread.name for thread in threading.enumerate()][1:] or lasting


def has_initialized_cuda():
    not_initialized = 3
    return "/libcuda.so" in read("maps") and \
        ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != not_initialized


def import_all(modules, names):
    """`names`: variables that only a worker has; a module that reads one would find another value there."""
    getter, reads = os._Environ.__getitem__, []

    def getitem(environ, name):
        if name in names:
            frame = sys._getframe(1)
            while frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
                frame = frame.f_back
            if (module := frame.f_globals.get("__name__")) not in MENDED:
                reads.append(f"reads {name} ({module}, line {frame.f_lineno}), which is set in workers only")
        return getter(environ, name)

    os._Environ.__getitem__ = getitem
    for name in modules:
        try:
            __import__(name)
        except BaseException as error:  # SystemExit too
            if not reads:
                shown = error.__traceback__.tb_next
                sys.excepthook(type(error), error.with_traceback(shown), shown)
                refuse(f"importing {name} failed: {type(error).__name__}: {error}")
        if reads:
            why = reads[0]
        elif threads := lasting_threads():
            count = f"{len(threads)} thread{'s' * (len(threads) > 1)}"
            why = f"starts {count} ({', '.join(sorted(set(threads)))}), which forked workers would lack"
        elif has_initialized_cuda():
            why = "initializes CUDA, which forked workers could not use"
        else:
            continue
        refuse(f"importing {name} {why}; leave {name} out of --preload")
    os._Environ.__getitem__ = getter


def send_source_files():
    """Modules that a user may be working on: a restart imports changed ones anew."""
    installed = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and not path.startswith(installed) and "/site-packages/" not in path:
            control.send(b"source\0" + os.fsencode(path))


def use_huge_pages():
    """A fork then copies some hundred page table entries instead of some 75,000 (MADV_COLLAPSE, Linux 6.1)."""
    huge, collapse = 2 << 20, 25
    for line in read("maps").splitlines():
        span, permissions, _, _, inode, *name = line.split()
        if inode == "0" and permissions.startswith("rw") and name in ([], ["[heap]"]):
            begin, end = (int(address, 16) for address in span.split("-"))
            begin, end = (begin + huge - 1) & -huge, end & -huge
            if begin < end:
                libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), collapse)


def become_child_of(agent, parent):
    """Waits until `parent` has ended; from then on this process dies with the agent, which has adopted it."""
    while os.getppid() == parent:
        time.sleep(0.0002)
    libc.prctl(1, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(127)
    control.send(f"here\0{os.getpid()}".encode())


def serve():
    """Returns in a worker: its socket to the agent, the program's path, and whether that is a folder or an archive."""
    modules, names = (field.split(",") for field in control.recv(1 << 16).decode().split("\0"))
    agent = os.getppid()
    words = sys.argv[3:] if sys.argv[1] == "-c" else sys.argv[1:]  # --run-path has the script behind its text
    path = os.path.join(os.getcwd(), words[0])
    package = words[0] != "-m" and pkgutil.get_importer(path) is not None  # as Python looks for __main__.py
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if words[0] == "-m" else path if package else os.path.dirname(os.path.realpath(path))
    gc.disable()
    import_all(modules, names)
    gc.collect()
    if "triton._C.libtriton" not in sys.modules:  # nanobind takes frozen objects for leaked ones
        gc.freeze()
    send_source_files()
    null = release_output()
    control.send(b"ready")
    ends, first = [], True
    while True:
        order, fds, _, _ = socket.recv_fds(control, 16, 253)
        ends += fds
        if order == b"fork":
            continue
        if order not in (b"go on", b"end"):
            os._exit(0)  # the agent is gone, or needs no more workers
        if first and order == b"go on":
            use_huge_pages()  # before workers share the pages
        pids, failed, pid, parent = [], 0, -1, os.getpid()
        for end in ends + [None] * (order == b"go on"):  # None: the successor's
            try:
                pid = os.fork()
            except OSError as error:
                failed = error.errno
            if failed or pid == 0:
                break
            pids.append(pid)
        if pid != 0:
            successor = pids.pop() if len(pids) > len(ends) else 0
            control.send(f"forked\0{failed}\0{successor}\0{' '.join(map(str, pids))}".encode())
            control.recv(16)  # all processes are known
            os._exit(0)
        for other in ends:
            if other != end:
                os.close(other)
        if end is not None:
            os.setsid()
        become_child_of(agent, parent)
        if end is not None:
            os.dup2(null, control.detach())
            os.close(null)
            rehearse()
            return socket.socket(fileno=end), path, package
        ends, first = [], False


# ---- a worker


def rehearse():
    """Runs an empty program, so that a waiting worker has pages of its own that each start writes to. An assignment that
    comes later then takes half the time."""
    ours, theirs = socket.socketpair()
    data = b"\0".join([b"-1", b"1", b"/dev/null", *(b"=".join(item) for item in os.environb.items())])
    if len(data) < 100_000:  # the socket takes it at once
        socket.send_fds(ours, [len(data).to_bytes(8, "little") + data], [0, 1, 2])
        run(theirs, "/dev/null", False)


def take_terminal(fd):
    """As the controlling one, whose foreground group is that of a process which has ended."""
    with contextlib.suppress(OSError):  # where a sandbox forbids it
        fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.tcsetpgrp(fd, pid)
        os.waitpid(pid, 0)


def receive_assignment(sock):
    """The words of the program; streams, terminal and environment are set then. What else a worker has is inherited."""
    length, fds, _, _ = socket.recv_fds(sock, 8, 3)
    with sock.makefile("rb") as file:
        data = file.read(int.from_bytes(length, "little"))
    if not data:
        os._exit(0)  # the agent is gone, or needs this worker no longer
    terminal, count, *words = data.split(b"\0")
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    if int(terminal) >= 0:
        take_terminal(int(terminal))
    sock.send(b"k")
    sock.close()
    os.environb.clear()
    os.environb.update(entry.split(b"=", 1) for entry in words[int(count):])
    return [os.fsdecode(word) for word in words[: int(count)]]


def renew_state():
    """What a new process has for itself."""
    loaded = sys.modules
    threading.main_thread()._set_native_id()
    if random := loaded.get("numpy.random"):
        random.seed()
    if torch := loaded.get("torch"):
        torch.default_generator.seed()
        cpus = len(os.sched_getaffinity(0))
        if "OMP_NUM_THREADS" not in os.environ and cpus < torch.get_num_threads():
            torch.set_num_threads(cpus)
    for name in MENDED:
        if os.environ.get("RANK", "").isdigit() and hasattr(loaded.get(name), "rank_zero_only"):
            loaded[name].rank_zero_only.rank = int(os.environ["RANK"])
    gc.enable()


def load(words, path, main):
    if words[0] == "-c":
        main.__loader__ = importlib.machinery.BuiltinImporter
        return compile(words[1], "<string>", "exec", dont_inherit=True)
    main.__file__ = path
    compiled = path.endswith(".pyc")
    kind = importlib.machinery.SourcelessFileLoader if compiled else importlib.machinery.SourceFileLoader
    main.__loader__ = loader = kind("__main__", path)
    try:
        return loader.get_code("__main__") if compiled else compile(loader.get_data(path), path, "exec", dont_inherit=True)
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        sys.exit(2)


def hide_own_frames(error):
    """From what the interpreter does with an exception that the program has not caught."""
    hook, trace = sys.excepthook, error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == "<ddrun --preload>":
        trace = trace.tb_next

    def excepthook(kind, error, _):
        sys.excepthook, sys.last_traceback = hook, trace
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = excepthook


def run(sock, path, package):
    """As `python -u` with the words of an assignment. `path`: of the script."""
    words = receive_assignment(sock)
    renew_state()
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.orig_argv[0], "-u", *words]
    sys.argv = words[1:] if words[0] == "-m" else ["-c", *words[2:]] if words[0] == "-c" else words
    # A new one: the server's own is frozen, so its objects would not be finalized, and it has this text in it.
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    if sys.version_info < (3, 15):
        main.__cached__ = None
    try:
        if words[0] == "-m":
            runpy._run_module_as_main(words[1])
        elif package and words[0] != "-c":
            runpy._run_module_as_main("__main__", alter_argv=False)
        else:
            exec(load(words, path, main), main.__dict__)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            hide_own_frames(error)
        raise


run(*serve())
