#!/usr/bin/env python3
"""What pages say in tables and examples: exit statuses, variables, settings, bytes of the store."""
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from cases import main, wait_until  # noqa: E402
from documents import commands, parse, pattern  # noqa: E402
from running import DDRUN, Running, environment, run  # noqa: E402

ALLREDUCE = str(pathlib.Path(DDRUN).parent / "ddrun-allreduce")


class ExitCodes(unittest.TestCase):
    """The exit codes of docs/options.md, row by row."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-codes-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def ends(self, code, *args, program=DDRUN, says="", **variables):
        env = {"TMPDIR": str(self.folder), "HOME": str(self.folder), "XDG_CONFIG_HOME": None,
               "PATH": f"{pathlib.Path(DDRUN).parent}:{os.environ['PATH']}", **variables}
        result = run([program, *args], cwd=self.folder, env=env, timeout=60)
        self.assertEqual(result.code, code, str(result))
        self.assertIn(says, result.err)

    def shell(self, code, script, *options, **variables):
        self.ends(code, *options, "sh", "-c", script, **variables)

    def test_every_row(self):
        text = (ROOT / "docs/options.md").read_text(encoding="utf-8").split("## Exit codes")[1]
        rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
        played = {"0": self.success, "1 to 255": self.own_code, "128 + N": self.signals, "2": self.usage, "124": self.limits,
                  "125": self.itself, "126": self.not_executable, "127": self.not_found}
        self.assertEqual([row for row in rows if row not in ("Code", "---")], list(played))
        for row, play in played.items():
            with self.subTest(row):
                play()

    def success(self):
        self.ends(0, "true")
        self.shell(0, "exit 3", "--success-on=3")

    def own_code(self):
        for code in (1, 77, 255):
            self.shell(code, f"exit {code}")
        self.shell(8, "exit $((7 + TORCHELASTIC_RESTART_COUNT))", "--max-restarts=1")
        self.shell(1, "exit 0", "--success-on=3")

    def signals(self):
        for name, code in (("KILL", 137), ("SEGV", 139), ("ABRT", 134)):
            self.shell(code, f"ulimit -c 0; kill -{name} $$")
        for number, code in ((2, 130), (15, 143)):
            started = self.folder / f"started-{number}"
            running = Running([DDRUN, "sh", "-c", f"touch {started}; sleep 60"], timeout=60)
            self.addCleanup(running.kill)
            wait_until(started.exists)
            running.process.send_signal(number)
            self.assertEqual(running.wait().code, code)

    def usage(self):
        self.ends(2, "--no-such-option", "true")
        self.ends(2, "true", DDRUN_NPROC_PER_NODE="many")
        (self.folder / "bad.toml").write_text("label = 3\n")
        self.ends(2, "--config=bad.toml", "true")

    def limits(self):
        self.ends(124, "--timeout=100ms", "sleep", "60")
        self.shell(124, "[ $RANK = 0 ] || sleep 60", "--nproc-per-node=2", "--exit-skew=100ms")

    def itself(self):
        self.ends(125, "--log-dir=/proc/logs", "--tee=3", "true")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            self.ends(125, f"--master-port={taken.getsockname()[1]}", "true")

    def not_executable(self):
        (self.folder / "plain").write_text("text\n")
        self.ends(126, "./plain")

    def not_found(self):
        self.ends(127, "no-such-program-anywhere")

    def test_what_stands_below_the_table(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            nobody = free.getsockname()[1]
        self.ends(125, "store", "get", "key", f"--server=127.0.0.1:{nobody}", "--timeout=200ms")
        self.shell(1, "ddrun store get key --timeout=100ms")
        self.ends(2, "store", "--no-such-option")
        self.ends(0, "secret", "new")
        self.ends(2, "secret", "new", says="exists already")
        self.ends(2, "secret", "new", "--no-such-option")

        allreduce = ("--nproc-per-node=2", "ddrun-allreduce", "-e", "8", "-n", "1")
        self.ends(0, *allreduce)
        self.ends(1, *allreduce, "--corrupt-rank=1")
        self.ends(3, *allreduce, "--max-latency=1ns")
        self.ends(2, "--no-such-option", program=ALLREDUCE)
        if not os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/dxg"):
            self.ends(77, "--backend=nccl", program=ALLREDUCE)

    def test_verdict_and_how(self):
        """Telling a worker's own code from a signal."""
        for script, code, key in (("exit 9", 9, "exit_code"), ("kill -9 $$", 137, "signal")):
            self.shell(code, script, "--report=report.json")
            report = json.loads((self.folder / "report.json").read_text())
            self.assertEqual(report["verdict"], "worker_failed")
            worker = report["attempts"][0]["workers"][0]
            self.assertEqual({name for name in ("exit_code", "signal") if worker[name] is not None}, {key})


class Environment(unittest.TestCase):
    """docs/environment.md, list by list."""
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")

    def section(self, title):
        return re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", self.page, re.MULTILINE | re.DOTALL)[1]

    def workers_see(self, *options, **variables):
        # A Python worker: some variables are for those only.
        script = "import os; [print(f'{name}={value}') for name, value in os.environ.items()]"
        result = run([DDRUN, *options, "--", "python3", "-c", script], env=variables)
        self.assertEqual(result.code, 0, str(result))
        return dict(line.split("=", 1) for line in result.out.splitlines() if "=" in line)

    def test_every_variable_is_there(self):
        seen = self.workers_see("--seed=1", "--port=8419", "--virtual-local-rank", "--interface=lo", TORCHELASTIC_ENABLE_FILE_TIMER=1,
                                HIP_VISIBLE_DEVICES="0")
        lists = self.section("As torchrun sets it") + self.section("ddrun's own")
        named = {name for entry in re.findall(r"^\* (`[^:]*):", lists, re.MULTILINE) for name in re.findall(r"`([A-Z_]+)`", entry)}
        self.assertGreater(len(named), 20)
        # Those that the page makes depend on something else.
        self.assertEqual(named - set(seen) - {"OMP_NUM_THREADS", "DDRUN_ATTEMPT_DIR"}, set())

    def test_what_is_taken_out(self):
        named = re.findall(r"`([A-Z][A-Za-z0-9_]+)`", self.section("Taken out").split("Variables about the job")[0])
        self.assertGreater(len(named), 20)
        given = {name + "X" if name.endswith("_") else name: "1" for name in named}
        stay = {"SLURM_JOB_ID": "1", "SLURM_NODEID": "0"}
        self.assertEqual(set(self.workers_see("--env-detect=none", **given, **stay)) & {*given, *stay}, set(stay))
        self.assertLessEqual(set(given), set(self.workers_see("--env-detect=none", "--keep-scheduler-env", **given)))

    def test_where_error_files_are_without_logs(self):
        """As docs/output.md says."""
        result = run([DDRUN, "sh", "-c", "echo $TORCHELASTIC_ERROR_FILE"], env={"TMPDIR": None})
        folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
        self.assertRegex(result.out, rf"^{folder}/ddrun_[a-z0-9]{{8}}/error_0_0\.json\n$")

    def test_seeds(self):
        rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", self.section("DDRUN_SEED"), re.MULTILINE)
        self.assertTrue(rows)
        for seed, *expected in rows:
            result = run([DDRUN, f"--seed={seed}", "--nproc-per-node=3", "sh", "-c", "echo $DDRUN_SEED"])
            self.assertEqual([line.split()[1] for line in sorted(result.out.splitlines())], expected)


class Settings(unittest.TestCase):
    def test_every_form_of_the_table(self):
        """Settings files of docs/options.md."""
        text = (ROOT / "docs/options.md").read_text(encoding="utf-8").split("## Settings files")[1].split("## ")[0]
        forms = []
        for row in re.findall(r"^\| [^|]+ \| ([^|]*=[^|]*) \|$", text, re.MULTILINE):
            spans = re.findall(r"`([^`]+)`", row)
            for at, span in enumerate(spans):
                if span.startswith("["):
                    forms.append("\n".join([span, *spans[at + 1:]]))
                    break
                key = span.split(" = ")[0] if " = " in span else key
                forms.append(span if " = " in span else f"{key} = {span}")
        self.assertGreater(len(forms), 10)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-settings-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        for name in (".env", "more.env"):
            (folder / name).write_text("A=1\n")
        for form in forms:
            with self.subTest(form=form):
                (folder / "job.toml").write_text(form + "\n")
                result = run([DDRUN, "config", "show", f"--config={folder / 'job.toml'}"], cwd=folder)
                self.assertEqual(result.code, 0, str(result))
                self.assertIn("job.toml", result.out)


class OtherLaunchers(unittest.TestCase):
    """docs/coming-from-others.md, row by row: what it says to write is understood, and is what ddrun answers by itself."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-launchers-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / ".deepspeed_env").write_text("A=1\n")

    def settings(self, line):
        return run([DDRUN, "config", "show", *shlex.split(line), "true"], cwd=self.folder)

    def test_every_row(self):
        page = (ROOT / "docs/coming-from-others.md").read_text(encoding="utf-8")
        tables = re.findall(r"^\| .* \| ddrun \|\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
        self.assertEqual(len(tables), 3)
        lines = 0
        for row in "".join(tables).splitlines():
            *theirs, ours = row.strip("|").split("|")
            known = [self.settings(line) for line in re.findall(r"`(--?[\w-]+[ =][^`]+)`", ours)]
            for result in known:
                self.assertEqual(result.code, 0, str(result))
            for line in re.findall(r"`(-[^`]+)`", " ".join(theirs)):
                lines += 1
                with self.subTest(line=line):
                    said = self.settings(line)
                    if said.code == 0:
                        self.assertTrue("the same" in ours or "not needed" in ours or said.out in [result.out for result in known])
                    elif "; not needed" in said.err or line == "--label":
                        self.assertIn("not needed", ours)
                    else:
                        hint = re.search(r"; (?:in ddrun:|did you mean) (.*)", said.err)
                        self.assertTrue(hint, said.err)
                        named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", hint[1])
                        self.assertTrue(set(named) & set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", ours)), said.err)
        self.assertGreater(lines, 60)


class Schedulers(unittest.TestCase):
    def test_what_env_prints_in_a_step(self):
        """The example of docs/schedulers.md, with the variables that srun sets."""
        block = next(block for block in parse(ROOT / "docs/schedulers.md") if "ddrun env" in block.text)
        command = commands(block)[0]
        result = run([DDRUN, *command.text.split("ddrun ")[1].split()], env={
            "SLURM_JOB_ID": 12, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_NODES": 2, "SLURM_STEP_NUM_TASKS": 2, "SLURM_NODEID": 0,
            "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": 2, "SLURM_PROCID": 0})
        self.assertRegex(result.out, "^" + pattern(command.expected) + "$")


class StoreProtocol(unittest.TestCase):
    def test_the_example_of_the_page(self):
        """Byte for byte against `ddrun store`."""
        block = next(block for block in parse(ROOT / "lib/store/PROTOCOL.md") if "greeting" in block.text)
        server = subprocess.Popen([DDRUN, "store", "--port=0"], stdout=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(server.wait)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.terminate)
        port = int(re.search(r":(\d+)", server.stdout.readline())[1])
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            for place, line in block.lines:
                side, data = re.match(r"([<>]) ((?:[0-9a-f]+ ?)+)(?:  |$)", line).groups()
                data = bytes.fromhex(data)
                if side == ">":
                    client.sendall(data)
                else:
                    received = b""
                    while len(received) < len(data):
                        received += client.recv(len(data) - len(received))
                    self.assertEqual(received, data, place)


if __name__ == "__main__":
    main()
