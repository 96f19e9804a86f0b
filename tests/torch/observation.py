"""Runs one command line under one launcher and writes down, in words that do not change from run to run, what its
workers saw and what came out: {"what": value}. Two of these can be compared entry by entry."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import tempfile
import zipfile

from harness import DDRUN, SCRIPTS, TORCHRUN, Running, wait_until
from warm_torchrun import WarmRunning

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# How ddrun or torchrun, in its own words, says what.
MESSAGES = {
    "help": r"^(U|u)sage: (?s:.*)--nproc-per-node",
    "refusal": r"^(ddrun|torchrun): error: (?!rank \d)|^[\w.]*(Error|Exception)(: .*)?$",
    "report of a failure": r"^ddrun: error: rank \d|FAILED\n-----",
    "stopped by a signal": r"^ddrun: stopped by SIG|^[\w.]*SignalException: ",
    "warning about OMP_NUM_THREADS": r"Setting OMP_NUM_THREADS",
    "warning": r"^(ddrun: warning:|W\d{4} (?!.*/run\.py:\d+\] (\*|Setting OMP_| ?$)))",
}
# What a run finds in its environment: nothing of the user or the machine should play a part.
KEPT = {"PATH", "HOME", "LANG", "USER", "LD_LIBRARY_PATH"}
LAUNCHERS = {"ddrun": DDRUN, "torchrun": TORCHRUN}
# Of the harness and of Python itself.
NOT_COMPARED = {"DDRUN_TEST_RUN", "PROBE_DIR", "PWD", "LC_CTYPE"}
# The page of stacks that ddrun writes when the grace time ends and there is no log directory.
STACKS = re.compile(r"tmp/ddrun-stacks-\d+-\d+\.txt")


def free_port():
    """A port outside the kernel's ephemeral range."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Run:
    """One command line under one launcher, in a folder of its own."""

    def __init__(self, line, launcher, warm=None):
        """`warm` is a WarmTorchrun that stands for torchrun."""
        self.line = line
        self.launcher = launcher
        self.warm = warm
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-line-")).resolve()
        self.port = free_port()
        self.work, self.results = self.folder / "work", self.folder / "results"
        for folder in (self.work, self.results, self.folder / "tmp", self.work / "package"):
            folder.mkdir()
        for name in ("probe.py", "package/__init__.py", "package/inner.py", "with space.py"):
            shutil.copy(SCRIPTS / "probe.py", self.work / name)
        (self.work / "package/__init__.py").write_text("")
        shutil.copy(SCRIPTS / "probe.sh", self.work / "probe.sh")
        probe = (SCRIPTS / "probe.py").read_text(encoding="utf-8")
        (self.work / "app").mkdir()
        (self.work / "app/__main__.py").write_text(probe, encoding="utf-8")
        with zipfile.ZipFile(self.work / "app.pyz", "w") as archive:
            archive.write(SCRIPTS / "probe.py", "__main__.py")
        (self.work / "by-line").write_text(f"#!/usr/bin/env python3\n{probe}", encoding="utf-8")
        (self.work / "no-line").write_text(probe, encoding="utf-8")
        (self.work / "not-executable").write_text("echo\n")

    def fill_in(self, text):
        return text.replace("DIR", str(self.folder)).replace("PORT", str(self.port))

    def observe(self):
        try:
            return self._observe()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _observe(self):
        words = [self.fill_in(word) for word in self.line.words()]
        env = {name: value if value is None else self.fill_in(value) for name, value in self.line.env.items()}
        env = {name: None for name in os.environ if name not in KEPT} | env
        env |= {"PROBE_DIR": str(self.results), "PROBE_DO": self.line.do, "TMPDIR": str(self.folder / "tmp")}
        (self.folder / "input").write_text(self.line.stdin or "")
        with open(self.folder / "input" if self.line.stdin is not None else os.devnull, "rb") as stdin:
            args = [LAUNCHERS[self.launcher], *words]
            options = {"env": env, "cwd": self.work, "stdin": stdin, "timeout": 150}
            running = WarmRunning(self.warm, args, **options) if self.warm else Running(args, **options)
        try:
            if self.line.signal:
                wait_until(lambda: len(list(self.results.glob("*.json"))) >= self.line.workers or
                           running.process.poll() is not None, 100, "the workers")
                running.process.send_signal(getattr(signal, "SIG" + self.line.signal))
            result = running.wait()
        finally:
            running.kill()
        seen = {"exit status": result.code}
        for path in sorted(self.results.glob("*.json")):
            self._add_worker(seen, path)
        self._add_output(seen, "stdout", result.out)
        self._add_output(seen, "stderr", result.err)
        self._add_files(seen)
        self.raw = str(result)
        return seen

    def plain(self, value):
        """Without what is another in each run."""
        if isinstance(value, str):
            for path in (str(self.folder), str(self.folder).lstrip("/")):
                value = value.replace(path, "DIR")
            value = UUID.sub("UUID", value)
            value = re.sub(r"(?<!\d)\d{30,39}(?!\d)", "UUID", value)  # torchrun's for an empty id
            value = re.sub(r"\b(torchelastic|ddrun)_[a-zA-Z0-9_]{8}(?=/|$)", r"\1_RANDOM", value)
            return value.replace(str(self.port), "PORT")
        if isinstance(value, (list, tuple)):
            return [self.plain(each) for each in value]
        if isinstance(value, dict):
            return {name: self.plain(each) for name, each in value.items()}
        return value

    def _without_random_ends(self, path):
        """The job's folder is named <job id>_<8 random>."""
        return re.sub(r"([^/]+)_[a-zA-Z0-9_]{8}/attempt_", r"\1_RANDOM/attempt_", path)

    def _add_worker(self, seen, path):
        attempt, rank = path.stem.split(".")
        worker = f"attempt {attempt} rank {rank}"
        data = json.loads(path.read_text(encoding="ascii"))
        for name, value in data.pop("env").items():
            if name in NOT_COMPARED:
                continue
            if name == "TORCHELASTIC_ERROR_FILE":
                value = self._without_random_ends(self.plain(value))
            elif name == "DDRUN_ATTEMPT_DIR":
                value = "(a folder)"
            elif name == "DDRUN_JOB_TAG":
                value = "(a word)"
            elif name == "MASTER_PORT" and value.isdigit() and int(value) not in (0, self.port, 29500, 29400):
                value = "(a free port)"
            elif name == "MASTER_ADDR" and value == socket.getfqdn():
                value = "(the host's name)"
            seen[f"{worker}: variable {name}"] = self.plain(value)
        for fd, value in data.pop("descriptors").items():
            seen[f"{worker}: descriptor {fd}"] = self._without_random_ends(self.plain(value))
        for name, value in data.items():
            if name == "command":  # the interpreter is compared apart from the rest
                seen[f"{worker}: interpreter"] = self.plain(value[0])
                value = value[1:]
            seen[f"{worker}: {name}"] = self.plain(value)

    def _add_output(self, seen, name, text):
        """The workers' lines as they are, in no order; of what the launcher itself says the kind."""
        lines = []
        for line in text.replace(socket.gethostname().split(".")[0], "HOST").splitlines():
            if "probe " in line and not line.startswith(("ddrun: ", "  ")) and "torch/distributed" not in line:
                lines.append(self.plain(line))
            elif line.startswith('{"'):
                self._add_event(seen, line)
        seen[f"{name}: lines of workers"] = sorted(lines)
        for message, pattern in MESSAGES.items():
            if re.search(pattern, text, re.M):
                seen[f"message: {message}"] = True
        if "message: report of a failure" in seen or "message: stopped by a signal" in seen:
            seen.pop("message: refusal", None)
        if "message: refusal" in seen:
            seen.pop("message: help", None)  # torchrun also prints how it is used

    def _add_event(self, seen, line):
        event = json.loads(line)
        events = seen.setdefault("events", {})
        key = f"{event.get('source')} {event.get('name')}"
        events.setdefault(key, []).append(sorted(event) + sorted(event.get("metadata", {})))

    def _add_files(self, seen):
        """Every file and folder that the run made, and what is in the log files."""
        known = {"input", "results", "tmp", "work", "work/package", "work/app"} | \
            {f"work/{name}" for name in ("probe.py", "probe.sh", "package/__init__.py", "package/inner.py",
                                         "with space.py", "not-executable", "app/__main__.py", "app.pyz", "by-line",
                                         "no-line")}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            if name in known or name.startswith("results/") or "__pycache__" in name:
                continue
            if self.line.do == "stubborn" and STACKS.fullmatch(name):
                continue
            plain = self.plain(name)
            if plain.startswith("tmp/"):
                # Default log folders: each launcher names them differently.
                plain = re.sub(r"^tmp/\w+_RANDOM", "tmp/FOLDER", plain)
            plain = re.sub(r"([^/]+)_[a-zA-Z0-9_]{8}(?=$|/attempt_)", r"\1_RANDOM", plain) \
                if "/attempt_" in plain or path.is_dir() else plain
            if path.is_dir():
                seen[f"folder {plain}"] = True
            elif path.is_file():
                seen[f"file {plain}"] = sorted(self.plain(path.read_text(errors="surrogateescape")).splitlines())
            else:
                seen[f"other {plain}"] = True
