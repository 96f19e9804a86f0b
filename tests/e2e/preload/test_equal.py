#!/usr/bin/env python3
"""A program that runs as a fork of --preload's server sees, writes and ends with what it would without it.

Each case runs both ways; stdout, stderr and exit status are compared. DDRUN_PYTHONS names Pythons to try besides this
one, separated by colons."""
import concurrent.futures
import dataclasses
import difflib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from cases import main  # noqa: E402
from running import DDRUN, run  # noqa: E402

# What differs from run to run: time and process id in ddrun's lines, other ids, addresses, names of temporary files.
CHANGING = re.compile(r"after [\d.]+ m?s|\bpid \d+|\bstarted \d+|/proc/\d+|\b0x[0-9a-f]+|/#\d+ |/dev/pts/\d+")
# The frames below the program's, which faulthandler shows; in C too since Python 3.14.
BOTTOM = re.compile(r'  File "<(?:ddrun --preload|string)>", line \d+ in .*\n|  Binary file ".*\n')
PYTHONS = [sys.executable, *filter(None, os.environ.get("DDRUN_PYTHONS", "").split(":"))]


@dataclasses.dataclass
class Case:
    name: str
    program: str = ""  # text of the file program_NAME.py, which is run unless `words` name another program
    words: tuple = ()
    options: tuple = ()
    before: tuple = ()  # words in front of ddrun's
    env: dict = dataclasses.field(default_factory=dict)
    stdin: bytes = b""
    module: str = ""  # text of a module that is preloaded, and that `program` begins with an import of; "": json
    code: int = 0
    says: str = ""  # a regular expression that is found in what both write

    @property
    def file(self):
        return f"program_{self.name.replace(' ', '_')}.py"

    @property
    def preload(self):
        return "nosy" if "watched" in self.name else f"module_{self.name.replace(' ', '_')}" if self.module else "json"


# What a program can see of itself, a line each.
FACTS = r'''
"""The text of the module."""
import ctypes, dataclasses, fcntl, gc, inspect, json, os, pickle, resource, signal, sys, threading, warnings
@dataclasses.dataclass
class Pair:
    left: int = 1
def function():
    return 1
names = sorted(globals())
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
def show(**facts):
    for name, value in facts.items():
        print(name, ascii(value), flush=True)
show(argv=sys.argv, orig_argv=getattr(sys, "orig_argv", None), path=sys.path, file=__file__, name=__name__, spec=__spec__,
     package=__package__, doc=__doc__, loader=type(__loader__), loaded=getattr(__loader__, "name", None), builtins=type(__builtins__),
     names=names, cached=globals().get("__cached__", "none"), annotations=globals().get("__annotations__", "none"),
     main=vars(sys.modules["__main__"]) is globals(), pickle=pickle.loads(pickle.dumps(Pair())), source=inspect.getsource(function),
     module=inspect.getmodule(function).__name__, flags=sys.flags, xoptions=sys._xoptions, prefix=(sys.prefix, sys.executable),
     exception=sys.exc_info(), last=[name for name in dir(sys) if name.startswith("last")],
     hooks=(sys.excepthook, sys.displayhook, sys.gettrace()), finders=sys.meta_path, path_hooks=len(sys.path_hooks),
     limits=(sys.getrecursionlimit(), sys.getswitchinterval()),
     gc=(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks),
     streams=[(stream.name, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), stream.mode)
              for stream in (sys.stdin, sys.stdout, sys.stderr)],
     originals=(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__),
     encoding=(sys.getfilesystemencoding(), sys.getdefaultencoding()),
     threads=threading.enumerate(), native=threading.main_thread().native_id == os.getpid())
show(cwd=os.getcwd(), handlers=[signal.getsignal(number) for number in sorted(signal.valid_signals())],
     status=[status[name] for name in (
         "Name", "Umask", "Threads", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "SigCgt", "SigPnd", "CapEff", "CapBnd",
         "Cpus_allowed_list", "Mems_allowed_list", "Uid", "Gid", "Groups")],
     mask=signal.pthread_sigmask(0, []), wakeup=signal.set_wakeup_fd(-1), timer=signal.getitimer(signal.ITIMER_REAL),
     nice=os.nice(0), policy=os.sched_getscheduler(0), group=(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()),
     rlimits=[resource.getrlimit(number) for number in range(16)], oom=open("/proc/self/oom_score_adj").read(),
     slack=open("/proc/self/timerslack_ns").read(), personality=open("/proc/self/personality").read(),
     exe=os.readlink("/proc/self/exe"), root=os.readlink("/proc/self/root"), parent=open(f"/proc/{os.getppid()}/comm").read(),
     last_words=open("/proc/self/cmdline", "rb").read().split(b"\0")[-1 - len(sys.argv[1:]):])
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    show(processes=0)
open_files = {fd: f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
show(descriptors=sorted((fd, os.readlink(path).split(":")[0]) for fd, path in open_files.items() if os.path.exists(path)),
     inheritable=[os.get_inheritable(fd) for fd in range(3)], flags=[fcntl.fcntl(fd, fcntl.F_GETFL) for fd in range(3)])
libc, value = ctypes.CDLL(None), ctypes.c_int()
show(death_signal=(libc.prctl(2, ctypes.byref(value)), value.value), dumpable=libc.prctl(3), huge_pages=libc.prctl(42, 0, 0, 0, 0))
'''

ENVIRONMENT = r'''
import os, subprocess
changing = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "DDRUN_ATTEMPT_DIR", "DDRUN_JOB_TAG", "DDRUN_TEST_RUN")
print(sorted(os.environ))
for name, value in sorted(os.environb.items()):
    if name.decode(errors="replace") not in changing:
        print(name, len(value), value[:200])
child = subprocess.run(["env", "-0"], stdout=subprocess.PIPE, check=True).stdout
print(dict(entry.split(b"=", 1) for entry in child.split(b"\0") if entry) == dict(os.environb))
del os.environ["RANK"]
print(subprocess.run(["sh", "-c", "echo ${RANK-none}"], stdout=subprocess.PIPE, check=True).stdout)
'''

# The second attempt shows.
RESTARTED = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(3)
print("restart", os.environ["TORCHELASTIC_RESTART_COUNT"])
""" + FACTS

CHAINED = """
def read():
    raise ValueError("no data")
try:
    read()
except ValueError as error:
    raise RuntimeError("cannot train") from error
"""

GROUP = """
import sys
error = ValueError("a")
if sys.version_info >= (3, 11):
    error.add_note("a note")
    error = ExceptionGroup("group", [error, TypeError("b")])
raise error
"""

LAST = """
import atexit, sys
atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))
1 / 0
"""

TRACE = """
import sys
events = []
def function():
    pass
sys.settrace(lambda frame, event, arg: events.append((event, frame.f_code.co_name)))
function()
sys.settrace(None)
print(events)
"""

AT_EXIT = """
import atexit, threading
class Resource:
    def __del__(self):
        print("released")
resource = Resource()
event = threading.Event()
def wait():
    event.wait()
    print("thread")
atexit.register(lambda: print("atexit"))
threading.Thread(target=wait).start()
threading.Timer(0.05, event.set).start()
print("end")
"""

# What the interpreter does at its end, in its order; the child shows what is in files then that nothing has closed.
ENDS = r"""
import atexit, concurrent.futures, logging, multiprocessing, os, sys, tempfile, threading, weakref
import package.open_file
folder = tempfile.mkdtemp()
if (pid := os.fork()) != 0:
    print(os.waitpid(pid, 0)[1])
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            print(name, len(file.read()))
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    sys.exit()
def path(name):
    return os.path.join(folder, name)
text, binary = open(path("text"), "w"), open(path("binary"), "wb")
cycle = [open(path("cycle"), "w")]
cycle.append(cycle)
os.kept = [open(path("kept"), "w")]
{}
for file in (text, cycle[0], os.kept[-1], package.open_file.open_in(folder)):
    file.write("x" * 5000)
binary.write(b"x" * 5000)
weakref.finalize(package, print, "finalized")
logging.getLogger().addHandler(logging.FileHandler(path("log"), delay=False))
logging.warning("logged")
class Handler(logging.Handler):
    def close(self):
        print("handler")
logging.getLogger().addHandler(Handler())
pool = concurrent.futures.ThreadPoolExecutor(1)
event = threading.Event()
pool.submit(event.wait).add_done_callback(lambda _: atexit.register(print, "registered by a thread"))
atexit.register(print, "atexit")
queue = multiprocessing.Queue()
queue.put("x" * 100)
threading.Timer(0.05, event.set).start()
print("end")
sys.exit(3)
"""
DAEMON = """
import threading, time
def work():
    while True:
        time.sleep(0)
threading.Thread(target=work, daemon=True).start()
"""

KILLED = """
import os, signal
print("before")
os.kill(os.getpid(), signal.{})
while True:
    signal.pause()
"""

MULTIPROCESSING = """
import multiprocessing, os, sys
def child(queue):
    queue.put((__name__, os.environ["RANK"], os.getcwd(), sys.argv, sys.path[0]))
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(method, queue.get())
        process.join()
        print(process.exitcode)
"""

POOL = """
import concurrent.futures, multiprocessing
def square(number):
    return number * number
if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(list(pool.map(square, range(4))))
"""

TERMINAL = """
import os, sys, termios
with open("/dev/tty", "w") as terminal:
    terminal.write("written to the terminal\\n")
print([os.isatty(fd) for fd in (0, 1, 2)], os.ttyname(1) == os.ttyname(2))
print(os.tcgetpgrp(1) == os.getpgrp(), os.getsid(0) == os.getpid(), termios.tcgetattr(1)[:4], os.get_terminal_size(1))
"""

UNCAUGHT = """
import sys
def hook(kind, error, trace):
    print("hook", kind.__name__, trace.tb_frame.f_code.co_name, trace.tb_lineno, error.__traceback__ is trace)
sys.excepthook = hook
1 / 0
"""

SYSTEM_CALLS = """
import ctypes, threading
libc = ctypes.CDLL(None)
print(libc.getpid() == libc.gettid(), threading.get_ident() == threading.main_thread().ident)
"""

# A module that looks at what it finds while it is imported, and changes it.
NOSY = r"""
import atexit, faulthandler, gc, logging, os, signal, sys, warnings
from sys import argv as ARGV
OUT, main = sys.stdout, sys.modules["__main__"]
SEEN = [sys.argv[:], getattr(sys, "orig_argv", None), sys.path[0], gc.isenabled(), gc.get_threshold(), sorted(vars(main)),
        [getattr(main, name, "none") for name in ("__file__", "__spec__", "__package__", "__cached__")], type(main.__loader__),
        [stream.isatty() for stream in (sys.stdout, sys.stderr)]]
main.SET = main.__name__
del main
sys.argv[1:] = ["--first", *(word for word in sys.argv[1:] if word != "dropped"), "--last"]
os.environ.update(SET="1", PATH="/nosy:" + os.environ["PATH"])
os.environ.setdefault("DEFAULT", "2")
os.environ.pop("DROPPED", None)
os.environb[b"RAW"] = b"\xff"
gc.disable()
gc.set_threshold(123, 4)
gc.set_debug(gc.DEBUG_UNCOLLECTABLE)
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
faulthandler.enable()
warnings.simplefilter("error", UserWarning)
sys.setrecursionlimit(2345)
os.umask(0o27)
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
atexit.register(print, "at exit", file=sys.stderr)
COPY = open(os.dup(2), "w", buffering=1)
"""

WATCHED = r"""
import nosy
import faulthandler, gc, logging, os, signal, sys, warnings
print(*nosy.SEEN, sep="\n")
print(globals().get("SET"), sys.argv, nosy.ARGV is sys.argv, nosy.OUT is sys.stdout)
print([os.environb.get(name) for name in (b"SET", b"DEFAULT", b"DROPPED", b"RAW", b"PATH", b"RANK")], flush=True)
os.system("echo $SET $DEFAULT $RAW ${DROPPED-none} $RANK")
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), sys.getrecursionlimit(), os.umask(0), faulthandler.is_enabled())
logging.info("logged")
print("copy", file=nosy.COPY)
os.kill(os.getpid(), signal.SIGUSR1)
try:
    warnings.warn("no error")
except UserWarning as error:
    print(error)
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.seekable(), stream.isatty(), stream.name, stream.mode, stream.line_buffering, stream.write_through)
print(sys.stdin.readline(), sys.stdin.seekable() and sys.stdin.tell())
class Resource:
    def __del__(self):
        print("released", nosy is not None)
resource = Resource()
cycle = lambda: resource
"""

CASES = [
    # Names
    Case("facts", FACTS, ("facts.py", "a", "-b", "--", "c d")),
    Case("path", FACTS, ("folder/../facts.py",)),
    Case("absolute", FACTS, ("FOLDER/facts.py",)),
    Case("link", FACTS, ("link.py",)),
    Case("module", FACTS, ("-m", "package.inner", "a", "-b")),
    Case("package", FACTS, ("-m", "package", "a")),
    Case("folder", FACTS, ("application", "a")),
    Case("archive", FACTS, ("application.pyz", "a")),
    Case("compiled", FACTS, ("compiled.pyc", "a")),
    Case("run-path", FACTS, ("facts.py", "a"), options=("--run-path",)),
    Case("safe path", FACTS, ("facts.py",), env={"PYTHONSAFEPATH": "1"}),
    Case("safe path, module", FACTS, ("-m", "package", "a"), env={"PYTHONSAFEPATH": "1"}, code=None),  # until Python 3.11 it is found
    Case("chdir", FACTS, ("inner.py",), options=("--chdir=package",)),
    Case("options of Python", FACTS, ("facts.py",), env={"PYTHONOPTIMIZE": "1", "PYTHONWARNINGS": "error", "PYTHONUTF8": "1"}),
    Case("C locale", FACTS, ("facts.py",), env={"LC_ALL": "C"}),
    Case("missing module", words=("-m", "nothing"), code=1, says="No module named nothing"),
    Case("missing module in a package", words=("-m", "package.nothing"), code=1, says="No module named package.nothing"),
    Case("package without __main__", words=("-m", "empty"), code=1, says="cannot be directly executed"),
    Case("missing script", words=("nothing.py",), code=127, says="no such file"),
    Case("script that cannot be opened", words=("socket.py",), code=2, says="can't open file"),
    Case("folder named as a script", words=("folder.py",), code=1, says="can't find '__main__' module"),

    # Ends
    Case("status", "import sys; sys.exit(3)", code=3),
    Case("status of True", "import sys; sys.exit(True)", code=1),
    Case("large status", "import sys; sys.exit(256 + 7)", code=7),
    Case("text", "import sys; sys.exit('gone wrong')", code=1, says="gone wrong"),
    Case("chained", CHAINED, code=1, says="(?s)no data.*direct cause.*cannot train"),
    Case("raised in a module", "import package.raising", code=1, says="package/raising.py"),
    Case("raised by -m", words=("-m", "package.raising"), code=1, says="package/raising.py"),
    Case("groups", GROUP, code=1, says="ExceptionGroup|ValueError"),
    Case("syntax", "x = )\n", code=1, says="SyntaxError"),
    Case("encoding", "# -*- coding: latin-1 -*-\nprint('\\xe9 in the text')\nprint(len('\xe9'))\n"),
    Case("at once", "import os; os._exit(7)", code=7),
    Case("at exit", AT_EXIT, says="end\nthread\natexit\nreleased"),
    Case("ends", ENDS.format(""), says=r"end\n(registered by a thread\n)?atexit\nfinalized\nhandler\n768\n.*\ncycle 5000\nkept 5000\nlog 7\nopen 5000\ntext 5000"),
    Case("ends with a thread", ENDS.format(DAEMON), says="768"),
    *(Case(f"ends, {name}", ENDS.format("").replace(old, new), says="text 5000")
      for name, old, new in (("with an exception", "sys.exit(3)", "1 / 0"), ("held", "os.kept = [", "os.kept = [lambda: text, "))),
    Case("status beyond 32 bits", "import sys; sys.exit(2 ** 40 + 5)", code=5),
    Case("negative status", "import sys; sys.exit(-3)", code=253),
    Case("status of an own SystemExit", "class Done(SystemExit): pass\nraise Done(4)", code=4),
    Case("output that is full", "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')\n", code=120, says="No space left"),
    Case("errors that are full", "import sys\nsys.stderr = open('/dev/full', 'w')\nsys.stderr.write('x')\n", code=None),
    Case("output of its own", "import os, sys\nsys.stdout = open(os.dup(1), 'w')\nprint('x', end='')\n", says="x"),
    Case("own shutdown", "import threading\nshutdown = threading._shutdown\nthreading._shutdown = lambda: (print('own'), shutdown())", says="own"),
    Case("inspected", "print('x')", env={"PYTHONINSPECT": "1"}, stdin=b"print('y')\n", code=None, says="x"),
    Case("file of a module", "import os\nmodule.FILE.write('written')\nos.dup2(1, module.FILE.fileno())\n", says="written",
         module="import os; FILE = open(os.dup(0), 'w')\n"),
    Case("held by sys", "import os, sys\nclass Kept:\n    def __del__(self, write=os.write): write(1, b'gone\\n')\nsys.kept = Kept()\n", says="gone"),
    Case("signal while finalizing", "import os, signal\nsignal.signal(signal.SIGTERM, print)\nclass Ends:\n"
         "    def __del__(self): os.kill(os.getpid(), signal.SIGTERM)\nends = Ends()\n", code=143),
    Case("raised at exit", "import atexit\natexit.register(lambda: 1 / 0)\n", says="ZeroDivisionError"),
    Case("SystemExit in a hook", "import sys\nsys.excepthook = lambda *_: sys.exit(5)\n1 / 0\n", code=5),
    Case("hook", UNCAUGHT, code=1, says="hook ZeroDivisionError <module> 6 True"),
    Case("last exception", LAST, code=1, says="ZeroDivisionError'> division by zero 4"),
    *(Case(name, KILLED.format(name), code=code) for name, code in (("SIGKILL", 137), ("SIGTERM", 143), ("SIGABRT", 134), ("SIGHUP", 129))),
    Case("interrupt", KILLED.format("SIGINT"), code=130, says="KeyboardInterrupt"),
    Case("interrupt raised", "raise KeyboardInterrupt", code=130, says="KeyboardInterrupt"),
    Case("interrupt raised by -m", words=("-m", "package.interrupted"), code=130, says="KeyboardInterrupt"),
    Case("interrupt in atexit", "import atexit\nprint(1)\ndef end():\n    raise KeyboardInterrupt\natexit.register(end)\n"),
    Case("broken pipe", "import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')\n", code=1, says="BrokenPipeError"),

    # Streams
    Case("stdin", "import sys\nprint(ascii(sys.stdin.readline()), ascii(sys.stdin.read()))\nsys.stderr.write('e\\n')", stdin=b"a\nb\xff",
         says=r"'a\\n' 'b"),
    Case("input", "print(input('? '))", stdin=b"answer\n", says="answer"),
    Case("no newline", "print('no newline', end='')"),
    Case("closed stdout", "import os; os.close(1); print('x')", code=1),
    Case("warnings", "import warnings\nwarnings.warn('one')\nwarnings.warn('old', DeprecationWarning)\n", says="UserWarning: one"),
    Case("unraisable", "class A:\n    def __del__(self): 1 / 0\na = A()\ndel a", says="Exception ignored"),
    Case("raised in a thread", "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start(); t.join()\n", says="in thread t"),
    Case("terminal", TERMINAL, options=("--pty=always",), says=r"\[True, True, True\]|\[False, True, True\]"),

    # Children
    Case("multiprocessing", MULTIPROCESSING, ("program_multiprocessing.py", "a"), says="forkserver"),
    Case("multiprocessing by -m", words=("-m", "package.processes"), says="forkserver"),
    Case("pool", POOL, says=r"\[0, 1, 4, 9\]"),
    Case("threads", SYSTEM_CALLS, says="True True"),
    Case("fork", "import os\nif os.fork() == 0:\n    print('child')\nelse:\n    print(os.wait()[1])\n", says="child"),
    Case("exec", "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import sys; print(sys.argv); sys.exit(4)', 'a'])",
         code=4),

    # Python
    Case("annotations", "x: int = 1\nprint(__annotations__)", code=None),  # until Python 3.14
    Case("future annotations", "from __future__ import annotations\nx: Nothing = 1\nprint(__annotations__)", says="Nothing"),
    Case("no future", "x: Nothing = 1\n", code=None),  # an error until Python 3.14
    Case("import of __main__", "import __main__, sys\nprint(__main__.__file__, len(sys.modules['__main__'].__dict__))\n"),
    Case("runpy", "import runpy\nprint(runpy.run_module('package.value')['value'])\n",
         says="42"),
    Case("trace", TRACE),
    Case("recursion", "def f(n):\n    return n and f(n - 1)\nprint(f(900))"),
    Case("random", "import random, uuid, tempfile\nrandom.seed(1)\nprint(random.random())\n"),
    Case("breakpoint", "x = 5\nbreakpoint()\nprint(x)\n", stdin=b"p x + 1\nc\n", says="6"),

    # Environment, arguments, properties of the process
    Case("environment", ENVIRONMENT, options=("--seed=7", "--env=SET=1"),
         env={"ODD": "\udcff\n =", "EMPTY": "", **{f"BIG{n}": "x" * 100_000 for n in range(10)}}),
    Case("arguments", "import os, sys\nprint([os.fsencode(word) for word in sys.argv])\n",
         ("program_arguments.py", "${rank}", "a${local_rank}", "a\nb", "", " ", "\udcff\udcfe", "é", "-m", "-c"),
         says=r"b'0', b'a0', b'a\\nb', b'', b' ', b'\\xff\\xfe'"),
    Case("inherited", FACTS, ("facts.py",),
         before=("sh", "-c", "umask 077; ulimit -n 512; trap '' HUP INT USR1; exec nice -n 3 \"$@\"", "sh")),
    Case("terminal of its own", FACTS, ("facts.py",), options=("--pty=always",)),
    Case("bound", FACTS, ("facts.py",), options=("--bind=cores",)),
    Case("restarted", RESTARTED, options=("--max-restarts=1",), says="restart 1"),

    # What a module finds and changes while it is imported
    *(Case(f"watched {words[-1]}", words=(*words, "a", "dropped", "b"), options=options, stdin=b"line", says="released True",
           env={"DROPPED": "1", "PYTHONPATH": "."})
      for words, options in ((("watched.py",), ()), (("watched.py",), ("--pty=always",)), (("-m", "package.watched"), ()),
                             (("watching",), ()), (("watching.pyz",), ()))),
    Case("argv of its own", "import sys; print(sys.argv)", module="import sys; sys.argv = [sys.argv[0], 'x']\n", says="'x'"),
    Case("argv of a rank", "import sys; print(sys.argv[1:])", ("program_argv_of_a_rank.py", "a", "r${rank}", "b"),
         module="import sys; sys.argv[1:2] = 'cd'; sys.argv.pop()\n", says=r"\['c', 'd', 'r0'\]"),
    Case("detached", "import sys; print('\\xe9', sys.stdout.encoding)", says="iso8859-1|latin-1",
         module="import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'latin-1', write_through=True)\n"),
    Case("reconfigured", "import sys; print('\\xe9', sys.stdout.encoding)", says="latin-1|iso8859-1",
         module="import sys; sys.stdout.reconfigure(encoding='latin-1', newline='\\r\\n')\n"),
    Case("wrapped", "print('written')", module="import codecs, sys; sys.stdout = codecs.getwriter('utf-8')(sys.stdout.buffer)\n", says="written"),
    Case("closed stdin", "import sys; print(sys.stdin.closed)", module="import sys; sys.stdin.close()\n", says="True"),
    Case("no stdout", "import sys; print(sys.stdout, file=sys.stderr)", module="import sys; sys.stdout = None\n", says="None"),
    Case("stdin of an import", "print(module.READ)", says="b''", module=
         "import subprocess, sys; READ = [subprocess.run(['cat'], stdout=subprocess.PIPE).stdout, sys.stdin.read(), sys.stdin.isatty()]\n"),
    Case("processes of an import", "print(module.PROCESS.wait())", says="0", module=
         "import subprocess; subprocess.run(['true']); PROCESS = subprocess.Popen(['true']); PROCESS.wait()\n"),
    Case("thresholds", "import gc; print(gc.isenabled(), gc.get_threshold())",
         module="import gc; first, *others = gc.get_threshold(); gc.set_threshold(first * 10, *others)\n", says="True"),
    Case("no collections", "import gc; print(gc.isenabled(), gc.get_threshold())", module="import gc; gc.set_threshold(0)\n", says="True .0,"),
    Case("lazy module", "print('ran')", says="ran", module=
         "import sys, types\nclass Lazy(types.ModuleType):\n    def __getattr__(self, name): raise RuntimeError(name)\n"
         "sys.modules['lazy'] = Lazy('lazy')\n"),
    Case("seed", "import os\nprint(os.environ['DDRUN_SEED'])", options=("--seed=3",)),
]



FILES = {"package/__init__.py": "", "package/__main__.py": FACTS, "package/inner.py": FACTS, "package/raising.py": CHAINED,
         "package/interrupted.py": "raise KeyboardInterrupt", "package/processes.py": MULTIPROCESSING, "package/value.py": "value = 42",
         "package/open_file.py": "def open_in(folder):\n    global file\n    file = open(folder + '/open', 'w')\n    return file\n",
         "empty/__init__.py": "", "application/__main__.py": FACTS, "folder.py/file": "", "folder/file": "", "facts.py": FACTS,
         "nosy.py": NOSY, "watched.py": WATCHED, "package/watched.py": WATCHED, "watching/__main__.py": WATCHED,
         **{case.file: f"import {case.preload} as module\n" * bool(case.module) + case.program for case in CASES},
         **{f"{case.preload}.py": case.module for case in CASES if case.module}}


class Equal(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-preload-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in FILES.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode("latin-1"))
        with socket.socket(socket.AF_UNIX) as unopenable:
            unopenable.bind(str(self.folder / "socket.py"))
        (self.folder / "link.py").symlink_to("package/inner.py")
        with zipfile.ZipFile(self.folder / "application.pyz", "w") as archive:
            archive.writestr("__main__.py", FACTS)
        with zipfile.ZipFile(self.folder / "watching.pyz", "w") as archive:
            archive.writestr("__main__.py", WATCHED)

    def outcome(self, python, case, *options):
        words = [word.replace("FOLDER", str(self.folder)) for word in case.words or (case.file,)]
        with tempfile.TemporaryFile() as stdin:
            stdin.write(case.stdin)
            stdin.seek(0)
            return run([*case.before, DDRUN, "--label=none", *options, *case.options, *words], cwd=self.folder, stdin=stdin, timeout=20,
                       env={"PYTHON_EXEC": python, "LC_ALL": "C.UTF-8", **case.env})

    def compare(self, python, case):
        plain, forked = (self.outcome(python, case, *options) for options in ((), (f"--preload={case.preload}",)))
        if case.code is not None:
            self.assertEqual(plain.code, case.code, str(plain))
        self.assertIsNotNone(re.search(case.says, plain.out + plain.err), str(plain))
        lines = [CHANGING.sub("…", BOTTOM.sub("", f"{done.code}\n{done.out}\n{done.err}")).splitlines() for done in (plain, forked)]
        if lines[0] != lines[1]:
            self.fail("\n".join(difflib.unified_diff(*lines, "plain", "forked", n=0)))

    def test_equal(self):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for python in PYTHONS:
                subprocess.run([python, "-c", "import py_compile; py_compile.compile('facts.py', 'compiled.pyc')"],
                               cwd=self.folder, check=True)
                for case, done in [(case, pool.submit(self.compare, python, case)) for case in CASES]:
                    with self.subTest(case.name, python=python):
                        done.result()

    def test_ranks(self):
        """Each has its own arguments and environment; the first reads."""
        (self.folder / "ranks.py").write_text("import os, sys; print(sys.argv[1:], os.environ['RANK'], sys.stdin.read())")
        case = Case("ranks", words=("ranks.py", "${rank}"), options=("--nproc-per-node=3",), stdin=b"input")
        for options in (), ("--preload=json",):
            self.assertEqual(sorted(self.outcome(sys.executable, case, *options).out.splitlines()),
                             ["['0'] 0 input", "['1'] 1 ", "['2'] 2 "])

    def test_workers_are_forks(self):
        """Else there is nothing to compare."""
        (self.folder / "forked.py").write_text("import sys; print('ftplib' in sys.modules)")
        for option, expected in (("--preload=json", "False\n"), ("--preload=ftplib", "True\n")):
            self.assertEqual(run([DDRUN, "--label=none", option, "forked.py"], cwd=self.folder).out, expected)


if __name__ == "__main__":
    main()
