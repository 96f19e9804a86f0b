"""Jobs on the hosts of a bed: starting ddrun on each, waiting for workers, and what a row of the table promises."""

import itertools
import os
import re
import signal

import table
from netcase import DDRUN, WORKER, NetTest, wait_until

SECRET = "sixteen bytes and more of secret"
PORT = 29400
# On top of a row's bound: a machine that does other work must not fail a test. DDRUN_NET_PATIENCE is less where none is done.
PATIENCE = float(os.environ.get("DDRUN_NET_PATIENCE", "30"))


class JobTest(NetTest):
    """Each test has a job id and a port of its own, so that nothing left of another can be in its way."""
    _numbers = itertools.count(1)

    def setUp(self):
        super().setUp()
        self.number = next(self._numbers)
        self.reports = self.bed.dir / f"reports-{self.number}"
        self.go_file = self.bed.dir / f"go-{self.number}"
        self.rows = []

    def options(self, nnodes=None):
        return [f"--nnodes={nnodes or len(self.bed.hosts)}", "--nproc-per-node=2", "--shutdown-timeout=5",
                "--rdzv-backend=c10d", f"--rdzv-id=job{self.number}", f"--rdzv-endpoint={self.bed[1].address}:{PORT}"]

    def ddrun(self, host, *options, verbs=("pause",), nnodes=None, env=None, program=DDRUN, **more):
        """Starts one agent."""
        return host.start([program, *self.options(nnodes), *options, "--", WORKER, *verbs],
                          env={"DDRUN_SECRET": SECRET, **(env or {})}, **more)

    def start(self, *options, verbs=("pause",), hosts=None, **more):
        """Starts an agent on each host (or these): {name: Started}."""
        return {host.name: self.ddrun(host, *options, verbs=verbs, **more) for host in hosts or self.bed.hosts}

    def until(self, condition, what="it", seconds=60):
        """Waits for something that a running job does; fails at once if no agent is left that could do it."""
        def holds():
            value = condition()
            if not value and self.bed.started and all(started.ended() for started in self.bed.started) and not condition():
                self.fail(f"all have ended before {what}\n{self.said()}")
            return value
        wait_until(holds, seconds, lambda: f"{what}\n{self.said()}")

    def workers(self, hosts=None):
        return sum(len(host.of_role("worker")) for host in hosts or self.bed.hosts)

    def wait_for_workers(self, hosts=None, each=2):
        """Until so many workers have begun on each of the hosts."""
        hosts = hosts or self.bed.hosts
        self.until(lambda: all(len(self.begun(host)) == each for host in hosts), f"the workers on {', '.join(map(str, hosts))}")

    @staticmethod
    def begun(host):
        """Workers that have become their program."""
        return [seen for seen in host.of_role("worker") if seen.name.startswith("ddrun_test_work")]

    def said(self):
        return "\n".join(map(str, self.bed.started))

    def attempts(self):
        """What workers with the verb `report` wrote: {attempt: sorted ranks}."""
        found = {}
        if self.reports.exists():
            for line in self.reports.read_text(encoding="ascii").splitlines():
                rank, attempt, _ = line.split()
                found.setdefault(int(attempt), []).append(int(rank))
        return {attempt: sorted(ranks) for attempt, ranks in found.items()}

    def wait_for_attempt(self, attempt, ranks):
        """Until these ranks of an attempt have begun, since the last call too."""
        self.until(lambda: self.attempts().get(attempt) == sorted(ranks), f"ranks {sorted(ranks)} of attempt {attempt}")

    def go(self):
        """Lets workers with the verbs `await go` go on."""
        self.go_file.touch()

    def row(self, name):
        return table.ROWS[name]

    def ends(self, row, jobs, code=None):
        """All of these end within the row's bound, with one code (the row's), and say what the row says."""
        code = row.code if code is None else code
        for job in jobs:
            try:
                ended = job.wait(row.seconds + PATIENCE)
            except AssertionError:
                self.fail(f"{job.host} has not ended {row.seconds + PATIENCE} s after it: {self.said()}")
            self.assertEqual(ended, code, f"{row.id}: the exit status on {job.host}\n{self.said()}")
        self.says(row, jobs)

    def says(self, row, jobs):
        for job in jobs:
            for text in row.says:
                self.assertRegex(job.err, text, f"{row.id}: what {job.host} says\n{self.said()}")

    def names_once(self, job, *words):
        """The report of a failure is one line that starts with "ddrun: error"."""
        found = [line for line in job.err.splitlines() if line.startswith("ddrun: error")]
        self.assertEqual(len(found), 1, self.said())
        for word in words:
            self.assertRegex(found[0], re.escape(word))


INTERRUPT, TERMINATE, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
STOP, CONTINUE = signal.SIGSTOP, signal.SIGCONT
