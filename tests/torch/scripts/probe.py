"""A worker that says what it sees: a JSON file for each worker, and a few lines of output. It needs no package.

PROBE_DIR is where the files go. PROBE_DO, which no launcher knows, says what else is done; see `act` below.
"""
import json
import os
import pathlib
import resource
import signal
import stat
import sys
import time

RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
FOLDER = pathlib.Path(os.environ["PROBE_DIR"])


def say(stream, text):
    """One write for one line, so that no launcher can read half of it."""
    os.write(stream, f"probe {RANK} {text}\n".encode("utf-8", "surrogateescape"))


def kind(fd):
    """What a descriptor leads to, in a word that is the same in every run."""
    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        return os.readlink(f"/proc/self/fd/{fd}")
    if stat.S_ISFIFO(status.st_mode):
        return "pipe"
    if stat.S_ISSOCK(status.st_mode):
        return "socket"
    if not stat.S_ISREG(status.st_mode):
        return oct(status.st_mode)
    path = os.readlink(f"/proc/self/fd/{fd}")
    return path if path.endswith(".log") else "file"


def status_lines(*names):
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        found = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return {name: found.get(name) for name in names}


def look():
    # What is open before anything here opens something.
    descriptors = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            descriptors[entry] = kind(int(entry))
        except OSError:
            pass  # the folder that is being listed
    with open("/proc/self/cmdline", "rb") as file:
        command = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "argv": sys.argv,
        "command": command,
        "name": __name__,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "descriptors": descriptors,
        "leads its session": os.getsid(0) == os.getpid(),
        "leads its process group": os.getpgid(0) == os.getpid(),
        "umask": oct(umask),
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource)
                   if name.startswith("RLIMIT_")},
        # Python ignores SIGPIPE and SIGXFSZ under each of them.
        "signals": status_lines("SigBlk", "SigIgn"),
        "rights": status_lines("NoNewPrivs", "Seccomp", "CapEff", "Uid", "Gid", "Groups"),
    }


def write_result(value):
    path = FOLDER / f"{ATTEMPT}.{RANK}.json"
    path.with_suffix(".new").write_text(json.dumps(value), encoding="ascii")
    path.with_suffix(".new").rename(path)


def wait_for_everybody():
    end = time.monotonic() + 60
    while len(list(FOLDER.glob(f"{ATTEMPT}.*.json"))) < int(os.environ["WORLD_SIZE"]):
        if time.monotonic() > end:
            sys.exit("probe: the others did not come")
        time.sleep(0.01)


def wait_for_the_end():
    time.sleep(120)
    sys.exit("probe: not stopped")


def act(what):
    """`exit RANK CODE`, `signal RANK NUMBER`: that worker fails while the others wait to be stopped;
    `once exit …`: in the first attempt only; `wait`: all wait to be stopped; `stubborn`: not even by SIGTERM."""
    if not what:
        return
    if what[0] == "once":
        if ATTEMPT == 0:
            act(what[1:])
        return
    wait_for_everybody()
    if what[0] in ("exit", "signal") and RANK == int(what[1]):
        if what[0] == "exit":
            os._exit(int(what[2]))
        os.kill(os.getpid(), int(what[2]))
    wait_for_the_end()


def on_signal(number, _):
    say(1, f"got {signal.Signals(number).name}")
    os._exit(128 + number)


def main():
    do = os.environ.get("PROBE_DO", "").split()
    seen = look()
    if do == ["read"]:
        seen["read"] = sys.stdin.read()
        do = []
    if do == ["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif do == ["wait"]:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, on_signal)
    say(1, "one")
    say(2, "error one")
    say(1, "two, and a comma")
    say(2, "error two")
    write_result(seen)
    act(do)


main()
