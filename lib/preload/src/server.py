# The server of `ddrun --preload`: imports modules once; workers are forks of it. ddrun sends this text to
# `python -u -c LOADER PROGRAM ARG…`; `control` is a copy of descriptor 0, a SOCK_SEQPACKET socket to the agent.
#
# A generation forks standby workers and its successor and exits: all become children of the agent, a subreaper. A
# standby worker waits for its assignment and then is what `python -u PROGRAM ARG…` would be. Fields of messages are
# separated by NUL; lib/preload/README.md lists them.
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.machinery
import io
import os
import pkgutil
import re
import runpy
import signal
import socket
import sys
import sysconfig
import termios
import threading
import time
import types
import warnings
import weakref

libc = ctypes.CDLL(None)
null = os.open("/dev/null", os.O_RDWR)
os.dup2(null, 0)
ENVIRON_MODULES = ("os", "collections.abc", "_collections_abc", "posixpath", "pathlib", "pathlib._local")
# They look for programs and terminals each time anew; the Python package of ddrun.
NOT_NOTED = ("subprocess", "shutil", "ddrun", "_rank")
# Libraries that read variables with a prefix when they are loaded or first used.
LIBRARIES = {b"OMP": r"gomp|i?omp5?|\w*openblas\w*|mkl\w*", b"KMP": "i?omp5?", b"MKL": r"mkl\w*|torch_cpu",
             b"OPENBLAS": r"\w*openblas\w*", b"ONEDNN": "torch_cpu", b"DNNL": "torch_cpu", b"ATEN": "torch_cpu"}
# They read a rank while being imported, and renew_state() puts it right.
MENDED = ("lightning.fabric.utilities.rank_zero", "lightning_fabric.utilities.rank_zero", "torchmetrics.utilities.prints")
HOLDERS = ("torch.distributed.distributed_c10d",)  # modules that hold what a worker has made: process groups
NEED_FINALIZE = {"mpi4py.MPI", "petsc4py.PETSc"}  # they finalize by Py_AtExit(), which only the interpreter's own end calls


def release_output():
    """The agent reads it to its end before it goes on. Returns copies that imports have made: descriptor, and of 1 or 2."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, detached, closed
            stream.flush()
    files, copies = {os.fstat(fd)[:3]: fd for fd in (1, 2)}, {1: 1, 2: 2}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            copies.update({fd: files[file] for file in [os.fstat(fd)[:3]] if file in files and fd > 2})
    for fd in copies:
        os.dup2(null, fd, os.get_inheritable(fd))
    return copies


def refuse(why):
    release_output()
    control.send(b"refused\0" + why.encode(errors="replace")[:4000])
    os._exit(1)


def read(name):
    with open(f"/proc/self/{name}", encoding="utf-8", errors="replace") as file:
        return file.read()


def lasting_threads():
    """OpenBLAS ends its threads before a fork and brings them back when needed; what is left after a fork stays."""
    if len(os.listdir("/proc/self/task")) > 1:
        with warnings.catch_warnings():  # of Python 3.12: the child does nothing that a thread could have locked
            warnings.simplefilter("ignore")
            if (pid := os.fork()) == 0:
                os._exit(0)
        os.waitpid(pid, 0)
    lasting = []
    for task in os.listdir("/proc/self/task")[1:]:
        with contextlib.suppress(OSError):  # it has just ended
            lasting.append(read(f"task/{task}/comm").strip())
    lasting = [name for name in lasting if name != "jemalloc_bg_thd"]  # it has fork handlers (Arrow)
    return lasting and [thread.name for thread in threading.enumerate()][1:] or lasting


def lasting_processes():
    """Children, and what is left of theirs in the session; without those that have ended and were not waited for."""
    lasting, own = {}, os.getpid()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            name, _, rest = read(f"../{pid}/stat").partition("(")[2].rpartition(")")
            state, parent, _, session = rest.split()[:4]
            if state not in "ZX" and int(pid) != own and own in (int(parent), int(session)):
                lasting[int(pid)] = name
    return lasting


def find_lasting():
    """Threads or processes of an import, in words; what was told to end has a moment for it."""
    deadline = time.monotonic() + 0.2
    while (threads := lasting_threads()) or (processes := lasting_processes()):
        if time.monotonic() > deadline:
            names, what, lost = threads, "thread", "forked workers would lack"
            if not threads:
                for pid in processes:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                while lasting_processes() and time.monotonic() < deadline + 1:  # they hold the output open
                    time.sleep(0.001)
                names, what, lost = processes.values(), "process", "all workers would share"
            plural = ("es" if what[-1] == "s" else "s") * (len(names) > 1)
            return f"starts {len(names)} {what}{plural} ({', '.join(sorted(set(names)))}), which {lost}"
        time.sleep(0.005)


def has_initialized_cuda():
    not_initialized = 3
    return "/libcuda.so" in read("maps") and \
        ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != not_initialized


def mentioned(value, names):
    """Those of `names` that are among the constants of a piece of code, in whatever case."""
    value = getattr(value, "co_consts", value)
    if isinstance(value, (tuple, frozenset)):
        return set().union(*(mentioned(part, names) for part in value))
    return {os.fsdecode(value).upper()} & names if isinstance(value, (str, bytes)) else set()


def outside_environ(frame):
    """The frame that uses os.environ, by any of its methods."""
    while frame.f_back and frame.f_globals.get("__name__") in ENVIRON_MODULES:
        frame = frame.f_back
    return frame


def describe_copy(frame, names):
    """Of os.environ, made by `frame` for a module that is being imported: the module's globals, the line there, and names
    looked up in it: those in the code that runs, and fields of objects whose methods run (pydantic-settings)."""
    module, line, found = {}, 0, set()
    while frame and frame.f_globals.get("__name__") != "importlib._bootstrap":
        code, module, line = frame.f_code, frame.f_globals, frame.f_lineno
        if module.get("__name__") not in ENVIRON_MODULES:
            owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            found |= mentioned(code, names)
            for kind in getattr(owner if isinstance(owner, type) else type(owner), "__mro__", ()):
                with contextlib.suppress(Exception):  # Python 3.14 evaluates annotations now
                    found |= mentioned(tuple(kind.__annotations__), names)
        frame = frame.f_back
    return module, line, found


def import_all(modules, names):
    """`names`: variables that only a worker has; a module that reads one would find another value there."""
    getter, iterate, reads, copies, listed = os._Environ.__getitem__, os._Environ.__iter__, [], {}, {}
    own = {name.upper() for name in os.environ}

    def getitem(environ, name):
        if isinstance(name, (str, bytes)) and id(name) not in listed:  # else it belongs to a copy
            frame = outside_environ(sys._getframe(1))
            module = frame.f_globals.get("__name__")
            if os.fsdecode(name) not in names:
                if str(module).partition(".")[0] not in NOT_NOTED:
                    imported.reads.setdefault(os.fsencode(name), (str(module), environ._data.get(os.fsencode(name))))
            elif module not in MENDED:
                reads.append(f"reads {os.fsdecode(name)} ({module}, line {frame.f_lineno}), which is set in workers only")
        return getter(environ, name)

    def copied(environ):
        module, line, found = describe_copy(sys._getframe(1), names)
        copies.setdefault(module.get("__name__"), [module, line, set()])[2].update(found)
        return (listed.setdefault(id(name), name) for name in iterate(environ))

    os._Environ.__getitem__, os._Environ.__iter__ = getitem, copied
    for name in modules:
        try:
            __import__(name)
        except BaseException as error:  # SystemExit too
            if not reads:
                shown = error.__traceback__.tb_next
                sys.excepthook(type(error), error.with_traceback(shown), shown)
                refuse(f"importing {name} failed: {type(error).__name__}: {error}")
        why = reads[0] if reads else find_lasting()
        if not why and has_initialized_cuda():
            why = "initializes CUDA, which forked workers could not use"
        if why:
            refuse(f"importing {name} {why}; leave {name} out of --preload")
    os._Environ.__getitem__, os._Environ.__iter__ = getter, iterate
    for module, (variables, line, found) in copies.items():
        kept = any(isinstance(value, dict) and own <= {key.upper() for key in value if isinstance(key, (str, bytes))}
                   for value in list(variables.values()))
        if found or kept:
            control.send(f"notice\0importing {module} copies os.environ ({module}, line {line}), which lacks "
                         f"{', '.join(sorted(found)) or 'RANK and the like'} until workers start".encode(errors="replace"))


def send_source_files():
    """Modules that a user may be working on: a restart imports changed ones anew."""
    installed = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    for module in list(sys.modules.values()):
        path = getattr(module, "__dict__", {}).get("__file__")  # a lazy module's __getattr__ is not called
        if isinstance(path, str) and not path.startswith(installed) and "/site-packages/" not in path:
            control.send(b"source\0" + os.fsencode(path))


def is_file(value):
    return issubclass(type(value), io.IOBase.__base__)


def flush(*files):
    for file in files:
        with contextlib.suppress(Exception):  # None, closed, full
            file.flush()


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


def enter(cgroup):
    """The job's. The first move into it waits for an RCU grace period, 5 ms and more."""
    with contextlib.suppress(OSError):  # the job has none, or the kernel refuses
        fd = os.open(f"{cgroup}/cgroup.procs", os.O_WRONLY)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)


def become_child_of(agent, parent, end):
    """Waits until `parent` has ended: it alone holds the pipe open whose other end is `end`. From then on this process
    dies with the agent, which has adopted it."""
    os.read(end, 1)
    os.close(end)
    while os.getppid() == parent:  # it closes descriptors shortly before its children are adopted
        time.sleep(0.0002)
    libc.prctl(1, signal.SIGKILL)
    if os.getppid() != agent:
        os._exit(127)
    control.send(f"here\0{os.getpid()}".encode())


def find_main(module, path):
    """The spec of what `-m module`, or the folder or archive at `path`, runs, or None. Imports nothing."""
    name, where, spec = "", None if module else [path], None
    for part in [*(module.split(".") if module else []), "__main__"]:
        if spec and where is None:
            break
        name = f"{name}.{part}" if name else part
        try:
            spec = next(filter(None, (finder.find_spec(name, where) for finder in sys.meta_path)))
        except Exception:  # not found; a namespace package in another
            return None
        where = spec.submodule_search_locations
    return spec


def pose_as(words, path, package):
    """sys.argv and `__main__` as the program has them when its own imports run."""
    main = sys.modules["__main__"] = imported.main
    module = words[1] if words[0] == "-m" else None
    spec = find_main(module, path) if module or package else None
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.orig_argv[0], "-u", *sys.argv[1:]]
    if spec:
        main.__spec__, main.__loader__, main.__package__, main.__file__ = spec, spec.loader, spec.parent, spec.origin
        if hasattr(main, "__cached__"):
            main.__cached__ = spec.cached
    elif sys.argv[1] == "-c":  # --run-path
        main.__file__, main.__package__ = words[0], ""
    elif not module and not package:
        main.__file__, main.__loader__ = path, loader_of(path)
    sys.argv = [spec.origin if spec else "-m", *words[2:]] if module else list(words)


def settings(stream):
    with contextlib.suppress(AttributeError, ValueError):  # of another kind, detached
        return stream.buffer, stream.encoding, stream.errors, stream.line_buffering, stream.write_through


@contextlib.contextmanager
def rare_collections():
    """An import is faster without; whether there are any, and how often, is for the modules to decide."""
    getter, before, rarely = gc.get_threshold, gc.get_threshold(), 700_007
    gc.set_threshold(rarely, *before[1:])
    gc.get_threshold = lambda: before if getter()[0] == rarely else getter()
    yield
    gc.set_threshold(*gc.get_threshold())
    gc.get_threshold = getter


def serve():
    """Returns in a worker: its socket to the agent, the program's path, and whether that is a folder or an archive."""
    modules, names, cgroup = os.fsdecode(control.recv(1 << 16)).split("\0")
    modules, names = modules.split(","), names.split(",")
    agent = os.getppid()
    words = sys.argv[3:] if sys.argv[1] == "-c" else sys.argv[1:]  # --run-path has the script behind its text
    path = os.path.join(os.getcwd(), words[0])
    package = words[0] != "-m" and pkgutil.get_importer(path) is not None  # as Python looks for __main__.py
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if words[0] == "-m" else path if package else os.path.dirname(os.path.realpath(path))
    pose_as(words, path, package)
    imported.streams = [(stream, settings(stream)) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    environ, argv = dict(os.environb), list(sys.argv)
    with rare_collections():
        import_all(modules, set(names))
    maps = read("maps")
    for prefix, pattern in LIBRARIES.items():
        if found := re.search(rf" (/.*/lib(?:{pattern})[-.][^/\n]*)$", maps, re.M):
            imported.libraries[prefix] = found[1].rpartition("/site-packages/")[2]
    imported.values = dict(os.environb)
    imported.environ = {name: os.environb.get(name) for name in {*environ, *os.environb} - set(map(os.fsencode, names))
                        if os.environb.get(name) != environ.get(name)}
    if (now := list(sys.argv)) != argv:
        imported.argv = argv, now
    imported.collects, flags = gc.isenabled(), gc.get_debug()
    gc.disable()
    gc.set_debug(0)
    gc.collect()
    gc.set_debug(flags)
    for one in (imported.main, vars(imported.main)):  # not to be frozen: what is in it is finalized
        if gc.is_tracked(one):
            ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(one))
    imported.files = list(filter(is_file, gc.get_objects()))
    flush(*imported.files)  # else each worker would write what is buffered
    imported.modules = {name: module for name, module in sys.modules.items() if module is not imported.main}
    imported.sys = {*vars(sys)}
    gc.freeze()
    send_source_files()
    imported.copies = release_output()
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
        parent_end, own_end = os.pipe()
        for end in ends + [None] * (order == b"go on"):  # None: the successor's
            try:
                pid = os.fork()
            except OSError as error:
                failed = error.errno
            if failed or pid == 0:
                break
            pids.append(pid)
            if len(pids) % 50 == 0:
                control.send(b"forking")
        if pid != 0:
            successor = pids.pop() if len(pids) > len(ends) else 0
            control.send(f"forked\0{failed}\0{successor}\0{' '.join(map(str, pids))}".encode())
            control.recv(16)  # all processes are known
            os._exit(0)
        os.close(own_end)
        for other in ends:
            if other != end:
                os.close(other)
        if end is not None:
            os.setsid()
        become_child_of(agent, parent, parent_end)
        if end is not None:
            control.close()
            os.close(null)
            enter(cgroup)
            rehearse()
            imported.pid = os.getpid()
            return socket.socket(fileno=end), path, package, vars(imported).pop("main")
        ends, first = [], False


# ---- a worker


def rehearse():
    """Runs an empty program and an operation of torch, so that a waiting worker has pages of its own that each start writes
    to, and torch has read the CPU's features. An assignment that comes later then takes a third of the time."""
    ours, theirs = socket.socketpair()
    data = b"\0".join([b"-1", b"1", b"/dev/null", *(b"=".join(item) for item in os.environb.items())])
    if len(data) < 100_000:  # the socket takes it at once
        socket.send_fds(ours, [len(data).to_bytes(8, "little") + data], [0, 1, 2])
        run(theirs, "/dev/null", False, new_main())
    if torch := sys.modules.get("torch"):
        with contextlib.suppress(Exception):
            torch.ones(4, 4, device="cpu") @ torch.ones(4, 4, device="cpu")


def take_terminal(fd):
    """As the controlling one. Unless it is stdin, its foreground group is that of a process which has ended."""
    with contextlib.suppress(OSError):  # where a sandbox forbids it
        fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
        if fd == 0:
            return
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
    for copy, fd in imported.copies.items():
        os.dup2(fd, copy, os.get_inheritable(copy))
    if int(terminal) >= 0:
        take_terminal(int(terminal))
    sock.send(b"k")
    sock.close()
    os.environ._data = os.environb._data = dict(os.environb._data)  # no Variables
    environ = {**dict(entry.split(b"=", 1) for entry in words[int(count):]), **imported.environ}
    os.environb.clear()
    os.environb.update((name, value) for name, value in environ.items() if value is not None)
    return [os.fsdecode(word) for word in words[: int(count)]]


def renew_streams():
    """As new ones for these descriptors; the objects stay, as imports may hold them, and so does what imports have changed."""
    for fd, (stream, before) in enumerate(imported.streams):
        if not before or settings(stream) != before or stream.closed:
            continue
        buffer = io.FileIO(fd, "wb" if fd else "rb", closefd=False)
        buffer.name = stream.name
        if fd == 0:
            before[0].__init__(buffer)
            buffer = before[0]
        stream.__init__(buffer, *before[1:3], "\n", *before[3:])
        imported.streams[fd] = stream, settings(stream)


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
    if imported.collects:
        gc.enable()


class Variables(dict):
    """Of os.environ: warns if the program changes one that a preloaded module has read."""

    def __setitem__(self, name, value):
        differs = self.get(name) != value
        super().__setitem__(name, value)
        if differs:
            self.warn(name, value)

    def __delitem__(self, name):
        super().__delitem__(name)
        if sys._getframe(2).f_code.co_name != "popitem":  # of clear()
            self.warn(name, None)

    def warn(self, name, value):
        library = imported.libraries.get(name.partition(b"_")[0], "")
        reader, read_value = imported.reads.get(name) or (library, None)
        if not reader or value in (read_value, imported.values.get(name)) or os.getpid() != imported.pid:
            return
        frame, kinds = outside_environ(sys._getframe(2)), (types.ModuleType, types.FunctionType, type)
        used = [one.__name__ if isinstance(one, types.ModuleType) else one.__module__
                for one in {**frame.f_globals, **frame.f_locals}.values() if isinstance(one, kinds)]
        packages = {str(one).partition(".")[0] for one in [frame.f_globals.get("__name__"), *used]}
        if re.split("[./]", reader)[0] not in packages:  # else it comes too late without --preload as well
            imported.reads[name] = "", None  # warn once
            with contextlib.suppress(OSError):
                os.write(2, b"ddrun: warning: %s was read by %s when it was preloaded; set it with --env\n"
                         % (name, reader.encode()))


def loader_of(path):
    kinds = importlib.machinery.SourceFileLoader, importlib.machinery.SourcelessFileLoader
    return kinds[path.endswith(".pyc")]("__main__", path)


def load(words, path, main):
    if words[0] == "-c":
        main.__loader__ = importlib.machinery.BuiltinImporter
        return compile(words[1], "<string>", "exec", dont_inherit=True)
    main.__file__ = path
    main.__loader__ = loader = loader_of(path)
    try:
        sourceless = path.endswith(".pyc")
        return loader.get_code("__main__") if sourceless else compile(loader.get_data(path), path, "exec", dont_inherit=True)
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
        try:
            hook(kind, error.with_traceback(trace), trace)
        except SystemExit as exit_error:
            imported.status = exit_status(exit_error)
            raise

    sys.excepthook = excepthook


def new_main():
    """The server's own has this text in it."""
    main = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    if sys.version_info < (3, 15):
        main.__cached__ = None
    return main


def exit_status(error):
    code = error.code if isinstance(error, SystemExit) else 1
    return 0 if code is None else 1 if not isinstance(code, int) else (code if abs(code) < 1 << 63 else -1) & 0xff


def end():
    """The last function of atexit. After it the interpreter finalizes what only the program held, as always; leave() is
    called then, before all that was imported would be visited. Not if threads or libraries need the rest of that end."""
    with contextlib.suppress(Exception):
        for stream in filter(is_file, (sys.stdout, sys.stderr)):
            stream.closed or stream.flush()  # if this fails the interpreter says so, and ends with 120
        if imported.modules and threading.active_count() == 1 and \
                not os.environ.get("PYTHONINSPECT") and not NEED_FINALIZE & set(sys.modules):
            if not gc.isenabled():
                gc.collect()  # puts what holds objects before these: else a file would be closed before its buffer
            imported.own = [weakref.ref(module) for name, module in sys.modules.items()
                            if (name in HOLDERS or imported.modules.get(name) is not module) and
                            issubclass(type(module), types.ModuleType)]
            imported.last = sys.modules["ddrun --preload"] = types.ModuleType("ddrun --preload")
            imported.last.member = Last()
            return
    flush(*imported.files)
    imported.modules.clear()
    if "triton._C.libtriton" in sys.modules:  # nanobind takes frozen objects for leaked ones
        gc.unfreeze()


class Last:
    """In the module that is imported last, with which the interpreter begins when it clears modules that something holds."""

    def __del__(self):
        leave()


def clear(names, kept):
    """As the interpreter clears a module; `kept`: types of objects that stay."""
    for name in sorted(names, key=lambda name: not re.match("_[^_]", str(name))):
        if name != "__builtins__" and not issubclass(type(names.get(name)), kept):
            names[name] = None


def leave():
    """The rest of the interpreter's end, without what was preloaded."""
    for kept in ((types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type), ()):  # __del__ may need these
        for module in [reference() for reference in reversed(imported.own)]:
            clear({} if module is None else vars(module), kept)
        gc.collect()
    for name in [name for name in vars(sys) if name not in imported.sys]:
        setattr(sys, name, None)
    gc.collect()
    files = [*imported.files, *filter(is_file, gc.get_objects())]
    inner = {id(one) for file in files for one in gc.get_referents(file, getattr(file, "__dict__", None))}
    for file in sorted(files, key=lambda file: id(file) in inner):
        with contextlib.suppress(Exception):  # closed, or full
            file.flush() if id(file) in inner else file.close()
    if imported.interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    ctypes.PyDLL(None).exit(imported.status)


def run(sock, path, package, main):
    """As `python -u` with the words of an assignment. `path`: of the script."""
    words = receive_assignment(sock)
    os.environ._data = os.environb._data = Variables(os.environb._data)
    renew_state()
    renew_streams()
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.orig_argv[0], "-u", *words]
    flag = [words[0]] * (words[0] == "-c")
    argv = words[2:] if flag else ["-m", *words[2:]] if words[0] == "-m" else words
    if imported.argv:
        before, now = imported.argv
        own = dict(zip(before, argv))  # words may differ by rank
        argv = [own.get(word, word) for word in now]
    sys.argv[:] = flag + argv
    if flag:
        main = new_main()  # of its text, not of the script
    for one in (main, vars(main)):
        if not gc.is_tracked(one):
            ctypes.pythonapi.PyObject_GC_Track(ctypes.py_object(one))
    sys.modules["__main__"] = main
    try:
        if words[0] == "-m":
            runpy._run_module_as_main(words[1])
        elif package and words[0] != "-c":
            runpy._run_module_as_main("__main__", alter_argv=False)
        else:
            try:
                exec(load(words, path, main), main.__dict__)
            finally:
                if not flag:
                    flush(sys.stderr, sys.stdout)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            hide_own_frames(error)
        raise


# What serve() leaves for workers: `main`; `environ` and `argv`: what imports have changed; `streams`, and `copies` of them.
imported = types.SimpleNamespace(main=new_main(), argv=None, reads={}, libraries={}, modules={}, files=[],
                                 status=0, interrupted=False)
atexit.register(end)
try:
    run(*serve())
except BaseException as error:
    imported.status, imported.interrupted = exit_status(error), type(error) is KeyboardInterrupt
    raise
