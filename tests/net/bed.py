"""A test bed of several hosts on this machine, by hosts.sh: starting processes there, breaking things, seeing what is left.

    with Bed(3) as bed:
        job = bed[1].start(["ddrun", …])      h1; also bed.hosts, bed.head
        bed[2].cut()
        job.wait(30)

Needs nothing but the standard library. The bed dies with the process that made it, also by SIGKILL; a folder that is left
then is removed by the next one. Two beds know nothing of each other.
"""

import ctypes
import dataclasses
import fcntl
import glob
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from cases import wait_until  # noqa: E402

SCRIPT = HERE / "hosts.sh"
PREFIX = "ddrun-net-"
LEASE = "# A job's lease in etcd" # first line of lib/lease/src/etcd.sh, part of its shells' command lines


def obstacle():
    """Why there can be no bed here; empty if there can."""
    if os.geteuid() != 0:
        return "making hosts needs root"
    missing = [program for program in ("ip", "iptables", "tc", "nsenter", "unshare") if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed: run scripts/setup --tests"
    tried = subprocess.run(["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--mount-proc", "ip",
                            "link", "add", "wire0", "type", "veth", "peer", "name", "wire1"], capture_output=True, text=True,
                           check=False)
    return f"no namespaces and wires for them: {tried.stderr.strip()}" if tried.returncode else ""


@dataclasses.dataclass
class Seen:
    """A process in a host. `pid` is what this machine calls it, `inner` what the host does; `role` is its part in a job:
    guard, sweeper, agent, worker, or lease (the program and all that it starts); relay is what ssh has started."""
    pid: int
    inner: int
    parent: int
    state: str
    name: str
    args: str
    role: str = "worker"

    def __str__(self):
        return f"{self.inner} {self.role} {self.state} {self.args or self.name}"


def _read(path):
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _status(pid):
    fields = {}
    for line in _read(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()
    return fields


def _space(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _die_with_parent():
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Started:
    """A process that was started in a host. Its output goes to files."""

    def __init__(self, host, args, env, cwd, gate):
        self.host = host
        self.args = [str(arg) for arg in args]
        count = host.bed.counter = host.bed.counter + 1
        base = host.bed.dir / f"{host.name}-{count}"
        self._out, self._err = open(f"{base}.out", "w+b"), open(f"{base}.err", "w+b")
        words = ["nsenter", "-t", str(host.init()), "-a", "--", "env", "-C", str(cwd or host.home)]
        self._gate = None
        if gate:
            os.mkfifo(f"{base}.gate")
            self._gate = os.open(f"{base}.gate", os.O_RDWR | os.O_CLOEXEC)
            words += ["sh", "-c", 'read -r _ <"$0"; exec "$@"', f"{base}.gate"]
        self._popen = subprocess.Popen(words + self.args, env=host.environment(env), stdin=subprocess.DEVNULL,
                                       stdout=self._out, stderr=self._err, start_new_session=True)

    def go(self):
        """Opens the gate: what was started with gate=True becomes its program now."""
        os.write(self._gate, b"\n")

    @property
    def pid(self):
        """The process itself, as this machine calls it; 0 once it is gone."""
        children = _read(f"/proc/{self._popen.pid}/task/{self._popen.pid}/children").split()
        return int(children[0]) if children else 0

    @property
    def code(self):
        """None while it runs, else as a shell shows it: 128 + N for signal N."""
        code = self._popen.poll()
        return 128 - code if code is not None and code < 0 else code

    @property
    def out(self):
        return self._text(self._out)

    @property
    def err(self):
        return self._text(self._err)

    @staticmethod
    def _text(file):
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")

    def signal(self, number):
        if number == signal.SIGCONT:
            self._popen.send_signal(number)  # nsenter stands still with what it has started
        pid = self.pid
        if pid:
            os.kill(pid, number)

    def wait(self, seconds=60):
        """Waits for its end and returns its code."""
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {seconds} s: {self}") from None
        return self.code

    def ended(self):
        return self.code is not None

    def close(self):
        if self._popen.poll() is None:
            self.signal(signal.SIGKILL)
            try:
                self._popen.wait(5)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        self._out.close()
        self._err.close()
        if self._gate is not None:
            os.close(self._gate)

    def __str__(self):
        return f"{self.host.name}$ {' '.join(self.args)}\nexit status {self.code}\n" \
               f"--- stdout of {self.host.name}\n{self.out}\n--- stderr of {self.host.name}\n{self.err}"


class Host:
    """One host of a bed. Names and addresses: h1 is 10.77.0.1 and fd77::1."""

    def __init__(self, bed, name):
        self.bed, self.name = bed, name
        number = name[1:] if name != "head" else "254"
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{int(number):x}"
        self.folder = bed.dir / name
        self.home, self.tmp = self.folder / "home", self.folder / "tmp"
        self._init = 0
        self._changed = set()
        self._clock, self._clock_library = bed.dir / f"{name}.clock", None

    def __str__(self):
        return self.name

    def environment(self, more=None):
        env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(self.home), "TMPDIR": str(self.tmp),
               "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("LD_LIBRARY_PATH", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                env[name] = os.environ[name]
        if self._clock_library:
            env.update(LD_PRELOAD=str(self._clock_library), DDRUN_TEST_CLOCK=str(self._clock))
        for name, value in (more or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = str(value)
        return env

    def init(self):
        """The host's first process, as this machine calls it."""
        space = _read(self.bed.dir / f"{self.name}.space").strip()
        if not space:
            raise AssertionError(f"{self.name} is not running")
        if not self._init or _space(self._init) != space:
            self._init = 0
            for entry in os.listdir("/proc"):
                if entry.isdigit() and _space(entry) == space and _status(entry).get("NSpid", "").split()[-1:] == ["1"]:
                    self._init = int(entry)
            if not self._init:
                raise AssertionError(f"{self.name} is not running")
        return self._init

    def start(self, args, env=None, cwd=None, gate=False):
        """Starts a program there. gate=True: it waits for go(), so that several begin at the same instant."""
        started = Started(self, args, env, cwd, gate)
        self.bed.started.append(started)
        return started

    def run(self, args, seconds=30, **options):
        """Runs a program there to its end."""
        started = self.start(args, **options)
        started.wait(seconds)
        return started

    def set_apart_clock(self, library):
        """What is started here from now on has a time of day of its own, by tests/helpers/clock_offset.cpp."""
        self._clock_library = library
        self.clock_jumps_to(0)

    def clock_jumps_to(self, seconds):
        """So far ahead of this machine's clock, for all that runs here, at this moment."""
        with open(self._clock, "r+b" if self._clock.exists() else "wb", buffering=0) as file:
            file.write(int(seconds * 1e9).to_bytes(8, sys.byteorder, signed=True))

    def has_clock_apart(self, pid):
        """Whether this process of it reads the time of day there."""
        maps = _read(f"/proc/{pid}/maps")
        return str(self._clock_library) in maps and str(self._clock) in maps

    def _tell(self, verb, *words):
        self._changed.add(verb)
        self.bed.tell(verb, self.name, *words)

    def was_changed(self):
        """Whether something has been done to its network."""
        return bool(self._changed)

    def mend(self):
        """Undoes that."""
        for verbs, undo in (({"cut"}, ("heal",)), ({"deaf", "mute", "loss", "block"}, ("open",)),
                            ({"rate"}, ("rate", 0)), ({"delay"}, ("delay", 0))):
            if self._changed & verbs:
                self._tell(*undo)
        self._changed.clear()
        if self._clock_library:
            self.clock_jumps_to(0)

    def cut(self):
        self._tell("cut")

    def heal(self):
        self._tell("heal")

    def deaf(self):
        self._tell("deaf")

    def mute(self):
        self._tell("mute")

    def loss(self, percent):
        self._tell("loss", percent)

    def rate(self, rate):
        self._tell("rate", rate)

    def delay(self, milliseconds):
        """Of what it sends."""
        self._tell("delay", milliseconds)

    def block(self, port):
        self._tell("block", port)

    def block_all_but(self, *ports):
        self._tell("block", "but", *ports)

    def block_to(self, port):
        """Of all others, for this host."""
        self._tell("block", "to", port)

    def reset(self):
        """False where the kernel cannot do it."""
        try:
            self._tell("reset")
        except AssertionError as error:
            if "could be reset" in str(error):
                return False
            raise
        return True

    def open(self):
        self._tell("open")

    def crash(self):
        space = _space(self.init())
        self._tell("crash")
        wait_until(lambda: not self.processes(everything=True, space=space), 20, f"the end of all processes of {self.name}")
        self._init = 0

    def boot(self):
        self._tell("boot")
        self._changed.clear()

    def is_up(self):
        try:
            return bool(self.init())
        except AssertionError:
            return False

    def answers(self, other, seconds=10):
        """Whether a packet comes back from `other` within this time: a closed port refuses, which is an answer."""
        probe = f": </dev/tcp/{other.address}/9"
        asked = self.run(["timeout", seconds, "bash", "-c", probe], 20)
        return asked.code == 0 or "Connection refused" in asked.err

    def small_disk(self, kibibytes):
        """A folder on a file system of this size, seen by this host only."""
        folder = self.folder / "small"
        done = self.run(["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", folder], cwd="/")
        if done.code != 0:
            raise AssertionError(str(done))
        return folder

    def processes(self, everything=False, space=None):
        """What runs there, without what belongs to the host itself: the first process and sshd."""
        space = space or _read(self.bed.dir / f"{self.name}.space").strip()
        found = {}
        if not space:
            return []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or _space(entry) != space:
                continue
            status = _status(entry)
            inner = status.get("NSpid", "").split()[-1:]
            if not inner or status.get("State", "Z")[0] in "ZX":
                continue
            args = _read(f"/proc/{entry}/cmdline").replace("\0", " ").strip()
            own = inner == ["1"] or status["Name"].startswith("sshd")
            if everything or not own:
                found[int(entry)] = Seen(int(entry), int(inner[0]), int(status["PPid"]), status["State"][0],
                                         status["Name"], args)
        def ancestry(seen):
            while seen:
                yield seen
                seen = found.get(seen.parent)
        for seen in found.values():
            parent = found.get(seen.parent)
            if seen.name == "job-sweeper":
                seen.role = "sweeper"
            elif any(LEASE in one.args for one in ancestry(seen)):
                seen.role = "lease"
            elif seen.name == "ddrun":
                seen.role = "agent" if parent and parent.name == "job-sweeper" else "guard"
                if seen.args.endswith(" relay") and not (parent and parent.name == "ddrun"):
                    seen.role = "relay"
        return list(found.values())

    def of_role(self, role):
        return [seen for seen in self.processes() if seen.role == role]

    def signal(self, role, number, count=1):
        """Sends a signal to the one process of this role (or `count` of them)."""
        seen = wait_until(lambda: self.of_role(role), 10, lambda: f"a {role} on {self.name}")
        if len(seen) < count:
            raise AssertionError(f"only {len(seen)} of role {role} on {self.name}")
        for process in seen[:count]:
            os.kill(process.pid, number)
        return seen[:count]


class Bed:
    """So many hosts h1, h2, …. clocks: each host's CLOCK_MONOTONIC is hours apart from the others', as on real
    machines. ssh: a server on each, and dir/ssh_config."""

    def __init__(self, hosts=2, clocks=True, ssh=False):
        remove_old()
        self.counter, self.started = 0, []
        new = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX[:-1] + "."))
        self._lock = os.open(new / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.dir = new.parent / (PREFIX + new.name.rpartition(".")[2])
        new.rename(self.dir)
        self._env = {**os.environ, "DDRUN_NET_DIR": str(self.dir), "DDRUN_NET_CLOCKS": "1" if clocks else "0",
                     "DDRUN_NET_SSH": "1" if ssh else "0"}
        self._log = open(self.dir / "log", "w+b")
        self._popen = subprocess.Popen([SCRIPT, "run", str(hosts)], env=self._env, stdin=subprocess.DEVNULL,
                                       stdout=self._log, stderr=self._log, preexec_fn=_die_with_parent)
        self.hosts = [Host(self, f"h{i + 1}") for i in range(hosts)]
        self.head = Host(self, "head")
        for folder in (self.head.home, self.head.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            wait_until(lambda: (self.dir / "ready").exists() or self._popen.poll() is not None, 60, "the hosts")
            if self._popen.poll() is not None:
                raise AssertionError(f"no hosts: {_read(self.dir / 'log')}")
        except BaseException:
            self.close()
            raise

    def __getitem__(self, number):
        """bed[1] is h1."""
        return self.hosts[number - 1]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def tell(self, *words):
        done = subprocess.run([SCRIPT, *map(str, words)], env=self._env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise AssertionError(f"hosts.sh {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def mend(self):
        """All hosts run, are joined and unlimited again, and nothing runs there. What was running is returned."""
        left = {}
        for started in self.started:
            started.close()
        self.started.clear()
        unsure = [host for host in self.hosts if not host.is_up() or host.was_changed()]
        for host in self.hosts:
            if not host.is_up():
                host.boot()
                continue
            for seen in host.processes():
                left.setdefault(host.name, []).append(str(seen))
                try:
                    os.kill(seen.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            host.mend()
        # A host that has looked for another's card in vain says "No route to host" for some time more.
        for host in unsure:
            for other in self.hosts:
                if other is not host:
                    wait_until(lambda one=host, two=other: one.answers(two) and two.answers(one), 30, f"{host} and {other}")
        return left

    def close(self):
        for started in self.started:
            started.close()
        self.started.clear()
        self._popen.kill()
        self._popen.wait()
        self._log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        os.close(self._lock)


def remove_old():
    """Folders of beds whose owners are gone; their hosts have gone with them."""
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), PREFIX + "*")):
        try:
            lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)
