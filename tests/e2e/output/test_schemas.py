#!/usr/bin/env python3
"""The schemas in docs/schemas: what jobs write with --report and --events, and `ddrun stacks --json`, fits them, and these jobs write each event,
verdict, kind of evidence and object that the schemas describe. That of settings files knows what ddrun reads."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main, wait_until  # noqa: E402
from documents import parse  # noqa: E402
from running import DDRUN, Running  # noqa: E402

try:
    import jsonschema
except ImportError:
    jsonschema = None

# A failure by exit code, traceback, error file and signal.
ATTEMPTS = r"""
[ $RANK = 1 ] || exec sleep 60
case $TORCHELASTIC_RESTART_COUNT in
0) exit 9 ;;
1) printf 'Traceback (most recent call last):\nValueError: no data\n' >&2; exit 1 ;;
2) echo '{"message": {"message": "lr is 0", "extraInfo": {"py_callstack": "line 1", "timestamp": "1790000000"}}}' \
   >"$TORCHELASTIC_ERROR_FILE"; exit 1 ;;
3) kill -KILL $$ ;;
esac
"""
# Rank 1 fails first, and ends after rank 0, which has lost its peer.
PEERS = r"""
if [ $RANK = 1 ]; then
  printf 'Traceback (most recent call last):\nValueError: no data\n' >&2; touch now; exec sleep 60
fi
until [ -e now ]; do sleep 0.01; done
echo 'RuntimeError: [gloo] Connection closed by peer' >&2
exit 1
"""
# Rank 0 gives up waiting for rank 1, once that sleeps: a process that runs or executes a program may have no readable stack.
TIMES_OUT = """[ $RANK = 1 ] && { ln -s /proc/$$/stat waits; exec sleep 60; }
until grep -qs '(sleep) S' waits; do sleep 0.05; done
echo 'RuntimeError: Timed out waiting 6000ms for recv' >&2; exit 1"""
# A worker that waits for its child, and one in Python.
ASKED = """[ $RANK = 1 ] || { sleep 60; true; }
exec python3 -c 'import time
def train(step): time.sleep(60)
train(3)'"""
RUNS = "until [ -e end ]; do sleep 0.02; done"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def child_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def values(value, key):
    """All that stands under a key, at any depth."""
    if isinstance(value, list):
        return [found for each in value for found in values(each, key)]
    if not isinstance(value, dict):
        return []
    here = [value[key]] if key in value else []
    return here + [found for each in value.values() for found in values(each, key)]


class Jobs:
    """Jobs in a folder, each with a report and events there."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-schemas-"))
        self.running = []

    def start(self, name, *args):
        files = [f"--report={self.folder / name}.report", f"--events={self.folder / name}.events"]
        running = Running([DDRUN, *files, *args], timeout=60, cwd=self.folder,
                          env={"DDRUN_SECRET": "a secret for tests only, and long", "XDG_CONFIG_HOME": str(self.folder)})
        self.running.append(running)
        return running

    def stacks(self):
        return [json.loads(file.read_text()) for file in self.folder.glob("*.stacks")]

    def events(self, name="*"):
        return [json.loads(line) for file in self.folder.glob(f"{name}.events")
                for line in file.read_text().rpartition("\n")[0].splitlines()]

    def reports(self):
        return [json.loads(file.read_text()) for file in self.folder.glob("*.report")]

    def wait_for(self, name, *kinds, nodes=None):
        """Until the job's last events are of these kinds, the last one with so many nodes."""
        def there():
            events = self.events(name)[-len(kinds):]
            return [event["event"] for event in events] == list(kinds) and nodes in (None, events[-1]["nodes"])
        wait_until(there, what=lambda: f"{kinds} of {name}: {self.events(name)}")

    def close(self):
        for running in self.running:
            running.kill()
            running.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def one_machine(jobs):
    (jobs.folder / "hello.py").write_text("print('hello')\n")
    jobs.start("success", "-n2", "--preload=json", "--before=true", "--after=kill -9 $$", "hello.py").wait()
    jobs.start("failures", "-n2", "--max-restarts=3", "--same-cause=0", "--log-dir=logs", "-r3", "sh", "-c", ATTEMPTS).wait()
    jobs.start("hang", "-n2", "--log-dir=logs", "sh", "-c", TIMES_OUT).wait()
    jobs.start("late", "--timeout=0.2", "sleep", "60").wait()
    with open("/dev/full", "w", encoding="utf-8") as full:
        subprocess.run([DDRUN, f"--events={jobs.folder}/full.events", "-n2", "echo", "lost"], stdout=full, stderr=subprocess.DEVNULL)
    jobs.start("missing", "no-such-program").wait()
    jobs.start("before", "--before=false", "true").wait()
    jobs.start("programs", "-n2", "false", ":", "-n1", "true").wait()
    port = str(free_port())
    jobs.start("service", "--service", f"--port={port}", "--ready=tcp", "-m", "http.server", port, ":", "-n1", "true").wait()
    stopped = jobs.start("stopped", "sleep", "60")
    jobs.wait_for("stopped", "started")
    stopped.process.send_signal(signal.SIGTERM)
    stopped.wait()


def several_machines(jobs):
    excluded = ("--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--last-call=0", "--join-timeout=1")
    jobs.start("peers", *excluded, "-n2", "--max-restarts=1", "--node-max-failures=1", "sh", "-c", PEERS).wait()

    common = ("--nnodes=2:3", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--last-call=0", "--fence=0", "--join-timeout=1")
    job = (*common, "--max-restarts=1", "sh", "-c", RUNS)
    home = jobs.start("home", *job)
    wait_until(lambda: jobs.events("home"))  # it runs the coordinator
    leaves, dies = jobs.start("leaves", *job), jobs.start("dies", *job)
    jobs.wait_for("home", "started", nodes=3)
    leaves.process.send_signal(signal.SIGTERM)
    leaves.wait()
    jobs.wait_for("home", "started", nodes=2)
    jobs.start("refused", *common, "--max-restarts=2", "sh", "-c", RUNS).wait()
    os.kill(child_of(child_of(dies.process.pid)), signal.SIGKILL)  # the agent: below the guard and the sweeper
    dies.wait()
    home.wait()


def a_lease(jobs):
    lease = f"--rdzv-lease=python3 {ROOT}/tests/e2e/several/file_lease.py {jobs.folder / 'lease'}"
    job = ("--nnodes=1:2", lease, "--lease-ttl=2", "--rdzv-id=leased", "--last-call=0", "sh", "-c", RUNS)
    agents = {name: jobs.start(name, *job) for name in ("a", "b")}
    jobs.wait_for("*", "started", nodes=2)
    [leader] = [name for name in agents if jobs.events(name)]
    agents[leader].process.send_signal(signal.SIGTERM)
    agents.pop(leader).wait()
    [other] = agents
    jobs.wait_for(other, "started", nodes=1)
    (jobs.folder / "end").touch()
    agents[other].wait()


def asked(jobs):
    job = jobs.start("asked", "--world=w", ":", "-n1", "sh", "-c", ASKED, ":", "-n1", "sh", "-c", ASKED)

    def sleeps():
        answer = subprocess.run([DDRUN, "stacks", str(job.process.pid), "--json"], capture_output=True, text=True).stdout
        (jobs.folder / "asked.stacks").write_text(answer)
        return answer.count('"sleeps"') == 2 and '"train"' in answer
    wait_until(sleeps)
    job.process.send_signal(signal.SIGQUIT)  # its report has the stacks, too
    job.wait()


# A settings file with one slip each.
SLIPS = r"""nproc = 4
nproc-per-node = 0
nproc-per-node = "all"
max-restarts = "3"
max-restarts = -1
max-restarts = 1000001
timeout = 0
timeout = "20 minutes"
timeout = "1y"
lease-ttl = 1.5
timestamps = 1
timestamps = "yes"
bind = "core"
label = ["rank"]
tee = 4
tee = "0=3"
success-on = [0, 256]
success-on = "0;3"
log-rotate = "10MM"
env = "A=1"
env = ["A"]
master-port = 65536
nnodes = "1-2"
stdin = "first"
config = "other.toml"
log--dir = "logs"
args = ["x"]
program = []
program = {a = 1}
[[program]]\nnproc-per-node = 2
[[program]]\ncommand = "a b"
[[program]]\ncommand = "a"\nmax-restarts = 1
program = "a"\n[workers]\ncount = 4"""
# With both spellings, each type of TOML, and forms that ddrun reads besides those in the examples.
READ = r"""nproc_per_node = "auto"
log_line-prefix_template = 7
quiet = true
verbose = 2
tee = {0 = 3, 1-3 = 1}
redirects = "0:3,12-13:1"
success-on = "0, 3,100-120"
no-restart-on = [2, "64-78"]
timeout = "1h30m"
exit-skew = 1.5
fence = "auto"
log-rotate = "1.5GiB"
rdzv-conf = {timeout = 60}
rdzv-conf = "timeout=60"
env = {A = 1, B = "x"}
export = ["A", "B=1"]
mpi = true
mpi = "pmix"
nnodes = "1:4"
seed = "12"
hosts = ["a", "b:2"]
program = "x"\nargs = ["-n", 4]
program = ["x", 4]
[[program]]\ncommand = "a"\nnproc_per_node = 2\n[[program]]\ncommand = ["b", 1]"""


class SettingsFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if jsonschema is None:
            raise unittest.SkipTest("python3-jsonschema not installed: run scripts/setup --tests")
        schema = json.loads((ROOT / "docs/schemas/settings.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        cls.schema = jsonschema.Draft202012Validator(schema)

    def refusal_of(self, text):
        """What ddrun says of a settings file, empty if it reads it."""
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(text)
            file.flush()
            # A program only to files that have none: the command line's would replace theirs.
            program = [] if "program" in text else ["x"]
            return subprocess.run([DDRUN, "config", "show", f"--config={file.name}", *program], capture_output=True, text=True).stderr

    def test_every_file_in_this_tree_fits(self):
        files = [file.read_text(encoding="utf-8") for folder in ("configs", "tests/e2e") for file in (ROOT / folder).rglob("*.toml")]
        pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        blocks = [block.text for page in pages for block in parse(page) if block.language == "toml"]
        self.assertGreaterEqual(len(files), 5)
        self.assertTrue(blocks)
        for text in files + blocks:
            error = jsonschema.exceptions.best_match(self.schema.iter_errors(tomllib.loads(text)))
            self.assertIsNone(error, text)

    def test_a_slip_is_refused_by_the_schema_and_by_ddrun(self):
        for text in (line.replace(r"\n", "\n") for line in SLIPS.splitlines()):
            with self.subTest(text):
                self.assertFalse(self.schema.is_valid(tomllib.loads(text)))
                self.assertIn("ddrun: error: ", self.refusal_of(text))

    def test_what_ddrun_reads_fits(self):
        for text in (line.replace(r"\n", "\n") for line in READ.splitlines()):
            with self.subTest(text):
                self.assertEqual(self.refusal_of(text), "")
                self.assertIsNone(jsonschema.exceptions.best_match(self.schema.iter_errors(tomllib.loads(text))))


class Schemas(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if jsonschema is None:
            raise unittest.SkipTest("python3-jsonschema not installed: run scripts/setup --tests")
        cls.schemas = {name: json.loads((ROOT / f"docs/schemas/{name}.schema.json").read_text(encoding="utf-8"))
                       for name in ("report", "events", "stacks")}
        cls.written = {"report": [], "events": [], "stacks": []}
        plays = (one_machine, several_machines, a_lease, asked)
        with concurrent.futures.ThreadPoolExecutor(len(plays)) as pool:
            jobs = [Jobs() for _ in plays]
            for each in jobs:
                cls.addClassCleanup(each.close)
            for done in [pool.submit(play, each) for play, each in zip(plays, jobs)]:
                done.result()
        for each in jobs:
            cls.written["report"] += each.reports()
            cls.written["events"] += each.events()
            cls.written["stacks"] += each.stacks()

    def test_what_is_written_fits(self):
        for name, schema in self.schemas.items():
            jsonschema.Draft202012Validator.check_schema(schema)
            validator = jsonschema.Draft202012Validator(schema)
            for written in self.written[name]:
                with self.subTest(f"{name} {written}"):
                    error = jsonschema.exceptions.best_match(validator.iter_errors(written))
                    self.assertIsNone(error)

    def test_no_object_may_have_other_keys(self):
        def objects(schema):
            if isinstance(schema, list):
                return [found for each in schema for found in objects(each)]
            if not isinstance(schema, dict):
                return []
            return [schema] * (schema.get("type") == "object") + [one for each in schema.values() for one in objects(each)]
        for schema in self.schemas.values():
            for one in objects(schema):
                self.assertIs(one.get("additionalProperties"), False, one)
                self.assertLessEqual(set(one["required"]), set(one["properties"]))

    def test_each_event_is_seen_and_no_other_is_in_the_code(self):
        described = {one["$ref"].rpartition("/")[2] for one in self.schemas["events"]["oneOf"]}
        self.assertEqual({event["event"] for event in self.written["events"]}, described)
        code = "".join((ROOT / file).read_text(encoding="utf-8")
                       for file in ("lib/rendezvous/src/deciders/event_text.cpp", "lib/agent/src/job_preload.cpp",
                                    "lib/agent/src/readiness.cpp", "lib/agent/src/events_file.cpp"))
        self.assertEqual(set(re.findall(r'(?:"event", |node_event\()"(\w+)"', code)), described)

    def test_each_value_is_seen_and_no_other_is_in_the_code(self):
        def named(file, kind):
            text = (ROOT / file).read_text(encoding="utf-8")
            return set(re.findall(rf'case {kind}::\w+: return "(\w+)"', text))
        report, events = self.schemas["report"], self.schemas["events"]["$defs"]
        verdicts = set(report["properties"]["verdict"]["enum"])
        self.assertEqual(set(events["verdict"]["properties"]["verdict"]["enum"]), verdicts)
        self.assertEqual(named("lib/rendezvous/src/deciders/event_text.cpp", "VerdictKind"), verdicts)
        self.assertEqual({each["verdict"] for each in self.written["report"]}, verdicts)
        self.assertEqual(set(values(self.written["events"], "verdict")), verdicts)
        kinds = set(report["$defs"]["attempt_cause"]["properties"]["evidence"]["enum"])
        self.assertEqual(named("lib/agent/src/json_report.cpp", "EvidenceKind"), kinds)
        self.assertEqual(set(values(self.written["report"], "evidence")), kinds)

    def test_each_key_has_a_value_somewhere(self):
        # Losses of output, a full /dev/shm, a missing module: other tests cause them.
        elsewhere = {"log_error", "console_error", "shm", "python", "note"}
        for name, schema in self.schemas.items():
            keys = {key for place in [schema, *schema["$defs"].values()] for key in place.get("properties", {})}
            empty = {key for key in keys if all(value is None for value in values(self.written[name], key))}
            machines = {"host"} if name == "stacks" else set()  # tests/e2e/hangs/test_machines.py
            self.assertEqual(empty - elsewhere - machines, set())


if __name__ == "__main__":
    main()
