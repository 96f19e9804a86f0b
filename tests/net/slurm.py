"""A Slurm cluster of four nodes on this machine, by slurm_cluster.sh, for tests.

    with Cluster() as cluster:
        cluster.run(["srun", "-N2", …])

It dies with the process that made it; two clusters know nothing of each other.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

from bed import wait_until

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "slurm_cluster.sh"
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scancel", "squeue", "munged", "ip", "unshare", "nsenter", "pgrep")


def obstacle():
    """Why there can be no cluster here; empty if there can."""
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if not shutil.which(program, path=path)]
    if missing:
        return f"{', '.join(missing)} not installed: run scripts/setup --tests"
    tried = subprocess.run(["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--mount-proc", "true"],
                           capture_output=True, text=True, check=False)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Cluster:
    """n1 to n4, each with 4 CPUs and 2 GPUs; `dir` is seen by all of them and is removed with it."""

    def __init__(self, nodes=4):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="ddrun-slurm-"))
        self.variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin", "HOME": str(self.dir),
                          "TMPDIR": str(self.dir), "LC_ALL": "C"}
        self._log = open(self.dir / "cluster.log", "w+b")
        self._keeper = subprocess.Popen([SCRIPT, "run", str(self.dir / "slurm"), str(nodes)], stdin=subprocess.PIPE,
                                        stdout=self._log, stderr=subprocess.STDOUT, env=self.variables)
        try:
            wait_until(lambda: "ready" in self._said() or self._keeper.poll() is not None, 60, self._said)
            if self._keeper.poll() is not None:
                raise AssertionError(f"no cluster: {self._said()}")
        except BaseException:
            self.close()
            raise

    def _said(self):
        return (self.dir / "cluster.log").read_text(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        self._keeper.stdin.close()
        try:
            self._keeper.wait(20)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._log.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, args, env=None, **options):
        """A process in the cluster, with pipes for what it says."""
        words = [str(SCRIPT), "exec", str(self.dir / "slurm")] + [str(arg) for arg in args]
        return subprocess.Popen(words, env={**self.variables, **(env or {})}, cwd=self.dir, text=True,
                                stdin=options.get("stdin", subprocess.DEVNULL), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)

    def run(self, args, seconds=60, env=None, text=None):
        """Runs it to its end; fails after `seconds`."""
        process = self.start(args, env, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
        try:
            out, err = process.communicate(text, timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{args} took longer than {seconds} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def submit(self, script, *options, env=None):
        """sbatch: the job's number; what it says goes to JOB.out in `dir`."""
        path = self.dir / "job.sh"
        path.write_text(script)
        done = self.run(["sbatch", "--parsable", f"--output={self.dir}/%j.out", *options, path], env=env)
        if done.returncode:
            raise AssertionError(done.stderr)
        return done.stdout.strip()

    def said(self, job):
        try:
            return (self.dir / f"{job}.out").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def job(self, number):
        """What Slurm knows of a job: {"JobState": "COMPLETED", "ExitCode": "0:0", …}."""
        text = self.run(["scontrol", "--oneliner", "show", "job", number]).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def end_of(self, number, seconds=60):
        """Waits for the job's end; what Slurm then knows of it."""
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return wait_until(lambda: (known := self.job(number)).get("JobState") in ends and known, seconds,
                          lambda: f"the end of job {number}: {self.job(number)}\n{self.said(number)}")

    def log_of(self, number):
        """What Slurm's daemons have written about a job."""
        logs = sorted((self.dir / "slurm").glob("slurm*.log"))
        lines = (f"{log.name}: {line}" for log in logs for line in log.read_text(errors="replace").splitlines())
        return "\n".join(line for line in lines if re.search(rf"(?i)job(id)?[ =]?0*{number}\b", line))

    def processes(self):
        """What runs there beside Slurm's daemons."""
        done = subprocess.run([SCRIPT, "list", str(self.dir / "slurm")], capture_output=True, text=True, check=True,
                              env=self.variables)
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]
