"""docs/ssh.md: one ddrun on h4 starts the job on the other hosts."""

import os
import re
import shutil
import time
import unittest

from jobs import INTERRUPT, KILL, STOP, JobTest
from netcase import DDRUN, WORKER, held_writes, is_static, main, wait_until

SSHD = "/usr/sbin/sshd"
LASTING = ("stray", "forever", ";", "print", "up", "forever")


class SshTest(JobTest):
    hosts = 4
    bed_options = {"ssh": True}

    @classmethod
    def setUpClass(cls):
        if not os.access(SSHD, os.X_OK):
            raise unittest.SkipTest(f"{SSHD} is missing: scripts/setup --tests installs it")
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.home = self.bed[4]
        self.config = self.bed.dir / "ssh_config"

    def ssh_config(self, text):
        """The bed's, with this in front of it."""
        own = self.bed.dir / f"ssh_config-{self.number}"
        own.write_text(text + self.config.read_text(encoding="ascii"), encoding="ascii")
        return own

    def job(self, *options, on="h1,h2,h3", verbs=LASTING, words=None, config=None, program=DDRUN, ssh=(), env=None, out=None):
        """With `out`, a file, as its standard output."""
        args = [program, " ".join(["--ssh=ssh -F", str(config or self.config), *ssh]), f"--hosts={on}", "--nproc-per-node=2",
                "--shutdown-timeout=5", *options, "--", *(words or [WORKER, *verbs])]
        if out:
            args = ["sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", out, *args]
        return self.home.start(args, env=env)

    def running(self, *options, hosts=3, **more):
        job = self.job(*options, **more)
        self.until(lambda: job.out.count("up\n") == 2 * hosts, "the workers")
        return job

    def wait_for_none(self, hosts, seconds):
        def left():
            return [f"{host}: {seen}" for host in hosts for seen in host.processes()]
        wait_until(lambda: not left(), seconds, lambda: f"the end of {left()}\n{self.said()}")

    def errors(self, job):
        return [line for line in job.err.splitlines() if line.startswith("ddrun: error")]


class Jobs(SshTest):

    def test_hosts_by_their_ipv6_addresses(self):
        for on in ("[fd77::1],[fd77::2]", "h1-6,h2-6"):
            with self.subTest(on):
                meet = f"{DDRUN} store set r$RANK x >/dev/null && {DDRUN} store wait r0 r1 r2 r3 --timeout=20s && echo $MASTER_ADDR"
                job = self.job("--label=none", on=on, words=["sh", "-c", meet])
                self.assertEqual(job.wait(60), 0, self.said())
                self.assertEqual(job.out, "fd77::1\n" * 4, self.said())

    def test_interrupt(self):
        row = self.row("ssh-ctrl-c")
        job = self.running()
        job.signal(INTERRUPT)
        self.ends(row, [job])

    def test_the_users_ddrun_is_killed(self):
        row = self.row("ssh-home-killed")
        job = self.running()
        job.signal(KILL)
        self.assertEqual(job.wait(30), 137, self.said())
        self.wait_for_none(self.bed.hosts, row.seconds + 30)

    def test_a_host_is_cut_off(self):
        row = self.row("ssh-host-cut")
        job = self.running()
        self.bed[2].cut()
        self.ends(row, [job])
        self.wait_for_none([self.bed[1], self.bed[3], self.home], 15)
        self.wait_for_none([self.bed[2]], 30)

    def test_home_is_cut_off(self):
        row = self.row("ssh-home-cut")
        job = self.running()
        self.home.cut()
        self.ends(row, [job])
        self.wait_for_none(self.bed.hosts, 30)

    def test_ddrun_is_killed_on_a_host(self):
        row = self.row("ssh-relay-killed")
        job = self.running()
        self.bed[2].signal("relay", KILL)
        self.ends(row, [job])
        self.wait_for_none(self.bed.hosts, 30)

    def test_what_runs_for_ddrun_on_a_host_is_stopped(self):
        job = self.running()
        stopped = self.bed[2].signal("relay", STOP)[0]
        self.assertEqual(job.wait(60), 125, self.said())
        self.assertRegex(job.err, "lost the connection to host h2: nothing was heard from it for 30 s")
        # Nothing can end a stopped process but SIGKILL; what it was to watch over does not wait for it.
        wait_until(lambda: not [seen for seen in self.bed[2].processes() if seen.pid != stopped.pid], 60,
                   lambda: f"the end on h2\n{self.said()}")
        os.kill(stopped.pid, KILL)
        self.wait_for_none(self.bed.hosts, 30)


class Homes(SshTest):
    """What is slow in the middle of a job."""

    def test_the_disk_at_home_hangs_for_longer_than_the_silence(self):
        row = self.row("ssh-home-disk")
        if obstacle := is_static():
            self.skipTest(obstacle)
        disk, back = self.bed.dir / f"disk-{self.number}", self.bed.dir / f"back-{self.number}"
        disk.mkdir()
        self.addCleanup(back.touch)
        job = self.job(f"--events={disk}/events", out=disk / "out", env=held_writes(disk, back),
                       verbs=("print", "up", "await", str(self.go_file)))
        self.until((disk / ".held").exists, "a write that hangs")
        time.sleep(35)  # what is tried is this time, longer than the silence
        self.assertFalse(job.ended(), self.said())
        back.touch()
        self.until(lambda: (disk / "out").read_text(encoding="ascii").count("up\n") == 6, "the lines that have waited")
        self.go()
        self.ends(row, [job], 0)
        self.assertIn('"event":"verdict"', (disk / "events").read_text(encoding="ascii"))


class Starts(SshTest):
    """What cannot be started: one line that names the host, and nothing is left elsewhere."""

    def refuses(self, row, text, *options, on="h1,bad,h3", seconds=30, **more):
        job = self.job(*options, on=on, verbs=LASTING, **more)
        self.assertEqual(job.wait(seconds), 125, self.said())
        self.assertEqual(job.out, "", self.said())
        self.assertEqual(len(self.errors(job)), 1, self.said())
        self.assertRegex(self.errors(job)[0], f"cannot start ddrun on host bad: .*{text}")
        self.assertFalse(self.left(), self.said())
        if row:
            self.says(row, [job])

    def test_no_answer(self):
        row = self.row("ssh-no-answer")
        self.bed[2].block(22)
        config = self.ssh_config("Host bad\n  HostName 10.77.0.2\n")
        self.refuses(None, "timed out", config=config)
        self.refuses(row, "no answer within 3.0 s", "--join-timeout=3s", config=config, ssh=["-o ConnectTimeout=0"])
        # The first host is waited for by all others.
        self.refuses(row, "no answer within 3.0 s", "--join-timeout=3s", config=config, ssh=["-o ConnectTimeout=0"],
                     on="bad,h1,h3")

    def test_power_is_off(self):
        self.bed[2].crash()
        self.refuses(self.row("ssh-refused"), "(No route to host|timed out)", config=self.ssh_config("Host bad\n  HostName 10.77.0.2\n"))

    def test_refused(self):
        self.refuses(self.row("ssh-refused"), "Connection refused",
                     config=self.ssh_config("Host bad\n  HostName 10.77.0.2\n  Port 9\n"))


class Copies(SshTest):
    """Where ddrun is missing."""

    def setUp(self):
        super().setUp()
        # No shell is asked to read such a name, and so the hosts do not find it there.
        self.unseen = self.bed.dir / "it's" / "ddrun"
        self.unseen.parent.mkdir(exist_ok=True)
        if not self.unseen.exists():
            shutil.copy(DDRUN, self.unseen)

    def mount(self, where, *what):
        done = self.bed[1].run(["mount", *what, where], cwd="/")
        self.assertEqual(done.code, 0, str(done))
        self.addCleanup(lambda: self.bed[1].run(["umount", where], cwd="/"))

    def no_programs_in(self, *folders):
        for folder in folders:
            self.mount(folder, "-t", "tmpfs", "-o", "noexec", "tmpfs")

    def where(self):
        """Runs a job there: from where ddrun runs, and what lies around."""
        job = self.job("--label=none", "--nproc-per-node=1", on="h1", program=self.unseen,
                       words=["sh", "-c", "readlink /proc/$PPID/exe; ls -d /dev/shm/ddrun.* $HOME/ddrun.* $TMPDIR/ddrun.* 2>/dev/null"
                              "; true"])
        self.assertEqual(job.wait(60), 0, self.said())
        return job.out

    def test_nothing_may_be_executed_there(self):
        self.no_programs_in(self.bed[1].tmp)
        self.assertRegex(self.where(), rf"^{self.bed[1].home}/ddrun\.\w+/ddrun \(deleted\)\n$")
        self.no_programs_in(self.bed[1].home)
        self.assertRegex(self.where(), r"^/dev/shm/ddrun\.\w+/ddrun \(deleted\)\n$")

    def test_nothing_may_be_executed_anywhere(self):
        folders = [self.bed[1].tmp, self.bed[1].home, "/dev/shm"]
        self.no_programs_in(*folders)
        job = self.job(on="h1,h2", program=self.unseen)
        self.assertEqual(job.wait(60), 125, self.said())
        self.assertEqual(len(self.errors(job)), 1, self.said())
        self.assertRegex(self.errors(job)[0], "cannot run a copy of ddrun on host h1: .*Permission denied")
        for folder in folders:
            self.assertEqual(self.bed[1].run(["sh", "-c", f"ls -d {folder}/ddrun.*"], cwd="/").out, "")

    def test_libraries_are_missing(self):
        needed = self.bed[1].run(["ldd", DDRUN]).out
        found = re.search(r"=> (\S*/libstdc\+\+\S*)", needed)
        if not found:
            self.skipTest("this ddrun is static")
        empty = self.bed.dir / "empty"
        empty.touch()
        self.mount(os.path.realpath(found[1]), "--bind", str(empty))
        job = self.job(on="h1,h2", program=self.unseen)
        self.assertEqual(job.wait(60), 125, self.said())
        self.assertEqual(len(self.errors(job)), 1, self.said())
        self.assertRegex(self.errors(job)[0], "cannot run a copy of ddrun on host h1: .*libstdc.*; this ddrun needs shared "
                                              "libraries: install the static one, or the same build there")


if __name__ == "__main__":
    main()
