"""Runs programs for tests: each run has its own session, a time limit after which everything it started is
killed, and is checked to have left nothing behind. Needs nothing but the standard library."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import uuid

DDRUN = os.environ.get("DDRUN_TEST_PROGRAM", str(pathlib.Path(__file__).resolve().parents[2] / "build/dev/bin/ddrun"))
FIRST_IN_PATH = []  # folders that every run finds before those of our own PATH

# A variable that every process of a run inherits, and by which those it left behind are found.
MARK = "DDRUN_TEST_RUN"


@dataclasses.dataclass
class Result:
    """How one run ended. `code` is as the shell shows it: 128 + N for signal N."""
    args: list
    code: int
    out: str
    err: str
    seconds: float

    def __str__(self):
        return f"{' '.join(map(str, self.args))}\nexit status {self.code} after {self.seconds:.1f} s\n" \
               f"--- stdout\n{self.out}\n--- stderr\n{self.err}"


def environment(**extra):
    """What a run sees: ours, without what a launcher around this test may have set; None removes a name."""
    dropped = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK",
               "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "OMP_NUM_THREADS", "PYTHON_EXEC", "GITHUB_ACTIONS", "GITLAB_CI"}
    env = {name: value for name, value in os.environ.items()
           if name not in dropped and not name.startswith(("PET_", "TORCHELASTIC_", "DDRUN_"))}
    env["PATH"] = ":".join([*FIRST_IN_PATH, env.get("PATH", "/usr/bin:/bin")])
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    for name, value in extra.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = str(value)
    return env


def processes_of(mark):
    """The processes that carry this run's mark in their environment, zombies aside: {pid: command line}."""
    found = {}
    needle = f"{MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                if needle not in file.read().split(b"\0"):
                    continue
            with open(f"/proc/{entry.name}/stat", encoding="ascii", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    continue
            with open(f"/proc/{entry.name}/cmdline", "rb") as file:
                found[int(entry.name)] = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return found


class Running:
    """A run that was started and not yet waited for; for tests that kill something in the middle of it."""

    def __init__(self, args, timeout=120, env=None, cwd=None, stdin=subprocess.DEVNULL):
        self.args = [str(arg) for arg in args]
        self.timeout = timeout
        self.mark = uuid.uuid4().hex
        # Files, not pipes: a process that was left behind must not keep us waiting for the end of a pipe.
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._start = time.monotonic()
        self.process = self.start(environment(**{**(env or {}), MARK: self.mark}), cwd, stdin)

    def start(self, env, cwd, stdin):
        return subprocess.Popen(self.args, env=env, cwd=cwd, stdin=stdin, stdout=self._out, stderr=self._err,
                                start_new_session=True)

    def output(self):
        """stdout and stderr so far."""
        texts = []
        for file in (self._out, self._err):
            size = os.fstat(file.fileno()).st_size
            texts.append(os.pread(file.fileno(), size, 0).decode(errors="replace"))
        return texts

    def processes(self):
        return processes_of(self.mark)

    def wait(self):
        """Waits for its end, kills what is left (an assertion fails then, or when time is up), returns the Result."""
        timed_out = False
        try:
            self.process.wait(max(0.1, self._start + self.timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
            self.kill()
            self.process.wait(10)
        seconds = time.monotonic() - self._start
        code = self.process.returncode
        out, err = self.output()
        result = Result(self.args, 128 - code if code < 0 else code, out, err, seconds)
        left = {} if timed_out else self.processes()
        if left and os.path.basename(self.args[0]) != os.path.basename(DDRUN):
            # Only ddrun promises to leave nothing; a rival's left-overs are ended for it.
            self.kill()
            left = {}
        self.kill()
        if timed_out:
            raise AssertionError(f"not finished within {self.timeout} s: {result}")
        if left:
            raise AssertionError(f"left behind {left}: {result}")
        return result

    def kill(self):
        for _ in range(100):
            left = self.processes()
            if self.process.poll() is None:
                left[self.process.pid] = ""
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)


def run(args, **options):
    """Runs a command to its end. Options: timeout (seconds), env (a dict; None removes), cwd, stdin."""
    return Running(args, **options).wait()
